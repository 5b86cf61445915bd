"""``holdfast worker --autoscale`` and ``holdfast dev --autoscale`` as a person uses them: signals, kill -9, errors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.client import Client
from holdfast.config import Settings
from holdfast.runs.run import Status
from tests.support.cli.dev_command import Command, Dev, gone, greeting, version
from tests.support.redis.valkey_process import free_port
from tests.support.waiting import wait_until


class Autoscaling(Command):
    """The command, and the workers that it has."""

    def __init__(self, folder: Path, url: str, *options: str, **environ: str) -> None:
        arguments = ("worker", "--app", "desk.py:app", "--autoscale", *options)
        super().__init__(folder, *arguments, REDIS_URL=url, **environ)

    def workers(self) -> list[int]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child.pid for child in children if "holdfast worker" in " ".join(child.cmdline())]


@pytest.fixture
def folder(short_dir: Path) -> Path:
    (short_dir / "desk.py").write_text(version("Hello"))
    (short_dir / "holdfast.yaml").write_text("queue: {scaling: {down_seconds: 1, max_workers: 2}}\n")
    return short_dir


@pytest.fixture
def start(folder: Path, redis, redis_url: str) -> Iterator[Any]:
    started: list[Command] = []

    def start(*options: str, **environ: str) -> Autoscaling:
        command = Autoscaling(folder, redis_url, *options, **environ)
        started.append(command)
        return command

    yield start
    for command in started:
        command.close()


def lines_of(command: Command) -> list[dict[str, Any]]:
    return [json.loads(line) for line in command.lines]


async def test_a_run_brings_a_worker_which_leaves_when_there_is_nothing_to_do(start, redis_url: str):
    command = start(HOLDFAST_LOG_FORMAT="console")
    async with Client(redis_url, settings=Settings()) as client:
        assert await (await client.submit("greet", "Ada")).result(timeout=30) == "Hello Ada"
    command.says("agent-queue scaled 0 -> 1: 1 run wants a slot, 3 each")
    command.says("agent-queue scaled 1 -> 0: nothing to do in the last 1 s")
    command.says("shutdown phase 3 complete")
    assert any(line.startswith("agent-queue-1 │ ") and "run settled" in line for line in command.lines)
    assert "agent-queue has 0 to 2 workers of 3 slots, fewer after 1 s" in command.text


async def test_every_line_is_json_for_machines_and_says_why(start, redis_url: str):
    command = start("1..2", "--json")
    async with Client(redis_url, settings=Settings()) as client:
        assert await (await client.submit("greet", "Ada")).result(timeout=30) == "Hello Ada"
    command.says("run settled")
    lines = lines_of(command)
    scaled = next(line for line in lines if line["event"].startswith("scaled"))
    assert (scaled["queue"], scaled["before"], scaled["workers"]) == ("agent-queue", 0, 1)
    assert scaled["event"] == f"scaled 0 -> 1: {scaled['why']}"


async def test_sigterm_lets_runs_finish_ends_every_worker_and_exits_0(start, redis_url: str):
    command = start("2..2", "--json")
    command.says("worker ready", 2)
    ready = {line["name"] for line in lines_of(command) if line["event"] == "worker ready"}
    assert len(ready) == 2
    workers = command.workers()
    async with Client(redis_url, settings=Settings()) as client:
        run = await client.submit("slow", 1.0)
        async for event in run.events():
            if event.type == "working":
                break
        command.process.send_signal(signal.SIGTERM)
        assert command.exited() == 0
        assert (await run.status()) is Status.SUCCEEDED
    assert len(workers) == 2
    assert all(map(gone, workers))
    assert command.text.count("shutdown phase 3 complete") == 2
    assert {line.get("name") for line in lines_of(command) if "shutdown phase" in line["event"]} == ready
    assert "scaled 2 -> 0: the autoscaler stops" in command.text


async def test_a_second_signal_hands_runs_back_at_once(start, redis_url: str):
    command = start("1..1", HOLDFAST_DRAIN_SECONDS="300")
    async with Client(redis_url, settings=Settings()) as client:
        run = await client.submit("slow", 600)
        async for event in run.events():
            if event.type == "working":
                break
        command.process.send_signal(signal.SIGTERM)
        command.says("shutdown phase 1 complete")
        command.process.send_signal(signal.SIGTERM)
        assert command.exited(60) == 0  # of 300 s that the run would have
        assert (await run.status()) is Status.QUEUED
    assert "handing back unfinished runs" in command.text


def test_kill_9_of_the_autoscaler_leaves_no_orphans(start):
    command = start("2..2")
    command.says("worker ready", 2)
    workers = command.workers()
    assert len(workers) == 2
    command.process.kill()
    wait_until(lambda: all(map(gone, workers)), what=f"the end of {workers}")


@pytest.fixture
def three_ports() -> Iterator[int]:
    """The first of three ports in a row, which stay free for the servers of this test: see ``free_port``."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack:
            try:
                for port in (first + 1, first + 2):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            except OSError:
                continue
            yield first
            return


def test_a_worker_has_a_port_of_its_own_for_metrics(three_ports: int, start):
    """Beside the autoscaler's: two on one port would keep each other from starting."""
    first = three_ports
    command = start("2..2", METRICS_PORT=str(first))
    command.says("worker ready", 2)
    ports = {psutil.Process(pid).environ()["METRICS_PORT"] for pid in command.workers()}
    assert ports == {str(first + 1), str(first + 2)}
    with urllib.request.urlopen(f"http://127.0.0.1:{first}/metrics", timeout=20) as page:
        assert 'holdfast_scaling_workers{queue="agent-queue"} 2.0' in page.read().decode()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("8",), "--autoscale '8' is not a range: write MIN..MAX like 0..8"),
        (("3..1",), "--autoscale 3..1 has a minimum (3) above its maximum (1)"),
        (("0..0",), "--autoscale 0..0 allows no worker at all"),
    ],
)
def test_a_wrong_range_is_an_error_in_a_sentence(start, options: tuple[str, ...], told: str):
    command = start(*options)
    assert command.exited() == 2
    assert told in command.text
    assert "Traceback" not in command.text


def test_an_app_that_cannot_be_loaded_ends_the_command_though_no_worker_is_wanted(start, folder: Path):
    (folder / "desk.py").write_text("app = 1 / 0\n")
    command = start("0..1")
    assert command.exited() == 1
    assert "ZeroDivisionError" in command.text
    assert "Traceback" not in command.text


def test_a_stop_does_not_wait_for_an_app_that_takes_long_to_import(start, folder: Path):
    (folder / "desk.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(600)\n")
    command = start("1..1")
    wait_until((folder / "begun").exists, what="the import of the app")
    command.process.send_signal(signal.SIGTERM)
    assert command.exited() == 0
    assert "Traceback" not in command.text


async def test_dev_with_an_autoscaler_scales_reloads_and_stops(folder: Path):
    dev = Dev(folder, "--autoscale", workers=())
    try:
        dev.says("agent-queue has 0 to 2 workers of 3 slots")
        assert await greeting(dev) == "Hello Ada"
        dev.says("agent-queue scaled 0 -> 1: 1 run wants a slot, 3 each")
        dev.says("agent-queue scaled 1 -> 0: nothing to do in the last 1 s")
        (folder / "desk.py").write_text(version("Good morning"))
        dev.says("reloading the workers, the scheduler")
        assert await greeting(dev) == "Good morning Ada"
        family = dev.family()
        os.kill(dev.process.pid, signal.SIGTERM)
        assert dev.exited() == 0
        assert all(map(gone, family))
    finally:
        dev.close()


def test_dev_refuses_a_cap_below_what_must_be_kept(folder: Path):
    (folder / "holdfast.yaml").write_text("queue: {scaling: {min_workers: 3}}\n")
    dev = Dev(folder, "--autoscale", workers=("--workers", "2"))
    try:
        assert dev.exited() == 2
        assert "has a minimum (3) above its maximum (2)" in dev.text
    finally:
        dev.close()
