"""The local autoscaler with real worker processes: up at once, down slowly, and never to the cost of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from holdfast.config import QueueSettings, RedisSettings, Settings
from holdfast.config.scaling import ScalingSettings
from holdfast.runs.run import Status, Submission
from holdfast.services.autoscaler import Autoscaler
from holdfast.services.connections import Connections
from tests.support.runs.system import System
from tests.support.runs.worker_processes import AGENTS, Ledger
from tests.support.waiting import stays, until

NEVER_SECONDS = 3600.0


class Heard:
    """A voice that remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.facts: list[dict[str, object]] = []
        self.warned: list[str] = []
        self.lines: list[tuple[str, str]] = []

    def introduce(self, name: str) -> None:
        del name

    def line(self, name: str, text: str) -> None:
        self.lines.append((name, text))

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def tell(self, queue: str, text: str, **facts: object) -> None:
        self.told.append((queue, text))
        self.facts.append(facts)

    def trouble(self, queue: str, text: str, **facts: object) -> None:
        self.warned.append(f"{queue} {text}")
        self.facts.append(facts)

    def scaled(self, queue: str = "") -> list[str]:
        return [text for name, text in self.told if text.startswith("scaled") and queue in ("", name)]


class Scaled:
    """An autoscaler that runs as a task of the test, and its real workers."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        self.heard = Heard()
        self.scaler = Autoscaler(
            settings, AGENTS, self.heard, queues=settings.worker_queues(), **{"poll_seconds": 0.1, **options}
        )
        self.task = asyncio.create_task(self.scaler.run())

    @property
    def pids(self) -> list[int]:
        return [pid for pool in self.scaler.pools for pid in pool.pids]

    def workers(self, queue: str) -> float:
        found = self.scaler.metrics.registry.get_sample_value("holdfast_scaling_workers", {"queue": queue})
        assert found is not None
        return found

    async def until(self, condition: Any, seconds: float = 30.0) -> None:
        try:
            await until(lambda: condition() or self.task.done(), seconds=seconds)
        except AssertionError as exc:
            exc.add_note(f"{self.heard.told} {self.heard.warned} {self.heard.lines}")
            raise
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        self.scaler.request_stop()
        await asyncio.wait_for(self.task, 30)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    ledger = Ledger(tmp_path / "ledger")
    monkeypatch.setenv("CHAOS_LEDGER", str(ledger.path))
    return ledger


@contextlib.asynccontextmanager
async def scaled(system: System, scaling: ScalingSettings, **options: Any) -> AsyncIterator[Scaled]:
    """An autoscaler whose workers have the settings of a system."""
    settings = system.settings
    queue = msgspec.structs.replace(settings.queue, scaling=scaling)
    running = Scaled(msgspec.structs.replace(settings, queue=queue), **options)
    try:
        yield running
    finally:
        running.scaler.request_stop()
        running.scaler.request_stop()
        await asyncio.wait_for(asyncio.gather(running.task, return_exceptions=True), 30)
        assert not [pid for pid in running.pids if psutil.pid_exists(pid)]


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the workers read of the settings; the rest is told by the autoscaler."""
    # A worker that has no CPU for so long loses its runs: only where one is frozen is that waited for.
    monkeypatch.setenv("HOLDFAST_LEASE_TTL_SECONDS", "30")
    monkeypatch.setenv("HOLDFAST_DRAIN_SECONDS", "5")
    monkeypatch.setenv("HEARTBEAT_INTERVAL", "1")
    monkeypatch.setenv("WORKER_POD_MESSAGES_BATCH_SIZE", "1")


@pytest.fixture
async def system(redis, redis_settings, environ, ledger) -> AsyncIterator[System]:
    async with System(redis_settings, slots=1, ttl=30.0) as system:
        yield system


async def test_the_first_run_brings_the_first_worker_at_once(system, ledger):
    """Not at the next look: there is none."""
    async with scaled(system, ScalingSettings(), poll_seconds=NEVER_SECONDS) as running:
        await running.until(lambda: running.scaler.ready)
        await stays(lambda: not running.pids, seconds=0.3)
        run = await system.ended(await system.submit("work", 0), 30)
        assert run.status is Status.SUCCEEDED
        assert running.heard.scaled() == ["scaled 0 -> 1: 1 run wants a slot, 1 each"]


async def test_a_run_in_any_partition_brings_the_first_worker_at_once(redis, redis_settings, environ, ledger):
    async with (
        System(redis_settings, slots=1, partitions=3) as system,
        scaled(system, ScalingSettings(), poll_seconds=NEVER_SECONDS) as running,
    ):
        await system.queue.look_around(say=True)  # as a producer does, so that the workers know of all three
        await running.until(lambda: running.scaler.ready)
        await stays(lambda: not running.pids, seconds=0.3)
        ticket = await system.queue.partitions[2].submit(Submission(agent="work", input=0))
        assert (await system.ended(ticket.run_id, 30)).status is Status.SUCCEEDED


async def test_workers_come_with_the_work_and_leave_after_it(system, ledger):
    async with scaled(system, ScalingSettings(max_workers=3, down_seconds=1.0)) as running:
        await system.queue.submit_many([Submission(agent="work", input=0.2) for _ in range(8)])
        await running.until(lambda: len(running.pids) == 3)
        assert running.workers("agent-queue") == 3
        await running.until(lambda: not running.pids)
        assert running.heard.scaled()[-1].endswith("-> 0: nothing to do in the last 1 s")
        assert running.workers("agent-queue") == 0
        assert len(ledger.lines("end")) == 8
        facts = next(facts for facts in running.heard.facts if facts.get("workers") == 3)
        assert f"scaled {facts['before']} -> 3: {facts['why']}" in running.heard.scaled()
    ledger.check_nothing_ran_twice_under_one_fence()
    await system.nothing_left()


@pytest.fixture
async def short_leases(redis, redis_settings, environ, ledger, monkeypatch) -> AsyncIterator[System]:
    """A system in which a worker that renews nothing loses its run soon."""
    monkeypatch.setenv("HOLDFAST_LEASE_TTL_SECONDS", "4")
    async with System(redis_settings, slots=1, ttl=4.0) as system:
        yield system


async def test_a_worker_that_is_frozen_is_killed_and_its_run_goes_on_elsewhere(
    short_leases, ledger, tmp_path
):
    """Fails if whoever has a process counts: its run would wait for it as long as it stands still."""
    system = short_leases
    async with scaled(system, ScalingSettings(max_workers=1)) as running:
        run_id = await system.submit("gated", str(tmp_path / "gate"))
        await until(lambda: ledger.lines("begin", run_id))
        (frozen,) = running.pids
        (post,) = running.scaler.pools[0]._pooled.values()
        await until(lambda: post.joined)  # it was seen alive
        os.kill(frozen, signal.SIGSTOP)
        await until(lambda: len(ledger.lines("begin", run_id)) == 2, seconds=60)
        (tmp_path / "gate").touch()
        assert (await system.ended(run_id)).attempt == 2
        assert frozen not in running.pids
        assert any("has no heartbeat any more: killed" in text for text in running.heard.warned)
    ledger.check_nothing_ran_twice_under_one_fence()


async def test_a_worker_whose_code_blocks_it_is_left_alone(short_leases, ledger):
    """Its leases are kept by a thread: only its beat is silent."""
    system = short_leases
    async with scaled(system, ScalingSettings(max_workers=1)):
        run = await system.ended(await system.submit("blocking", 8.0), 40)
        assert (run.status, run.attempt) == (Status.SUCCEEDED, 1)


async def test_an_idle_worker_leaves_before_a_busy_one(system, ledger, tmp_path):
    """Also if the busy one is the younger, which would be the one to go otherwise."""
    async with scaled(system, ScalingSettings(max_workers=2, down_seconds=0.3)) as running:
        first = await system.submit("gated", str(tmp_path / "first"))
        await until(lambda: ledger.lines("begin", first))
        second = await system.submit("gated", str(tmp_path / "second"))
        await until(lambda: ledger.lines("begin", second))
        (tmp_path / "first").touch()
        await running.until(lambda: len(running.pids) == 1)
        assert running.pids == [ledger.lines("begin", second)[0].pid]
        (tmp_path / "second").touch()
        run = await system.ended(second)
        assert (run.status, run.attempt, run.fence) == (Status.SUCCEEDED, 1, 1)


async def test_a_busy_worker_that_must_leave_hands_its_run_back_and_loses_nothing(
    system, ledger, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOLDFAST_DRAIN_SECONDS", "0.2")
    monkeypatch.setenv("WORKER_POD_MESSAGES_BATCH_SIZE", "2")
    # The autoscaler believes in two slots each, so that two busy workers are one too many at once.
    system.settings = msgspec.structs.replace(
        system.settings, queue=msgspec.structs.replace(system.settings.queue, slots=2)
    )
    async with scaled(system, ScalingSettings(max_workers=2, down_seconds=0.3)):
        gates = {await system.submit("gated", str(tmp_path / name)): tmp_path / name for name in "abcd"}
        await until(lambda: len(ledger.lines("begin")) == 4)
        doing = {line.pid: line.run_id for line in ledger.lines("begin")}
        assert len(doing) == 2
        for run_id in doing.values():  # one of each: two workers with one run each, which one could do
            gates.pop(run_id).touch()
        await until(lambda: len(ledger.lines("begin")) == 5)
        for gate in gates.values():
            gate.touch()
        ended = [await system.ended(run_id) for run_id in gates]
        assert {(run.status, run.attempt) for run in ended} == {(Status.SUCCEEDED, 1)}
        assert sorted(run.fence > 1 for run in ended) == [False, True], "one was handed back, one went on"
    ledger.check_nothing_ran_twice_under_one_fence()


async def test_a_worker_that_crashes_is_replaced(system, ledger):
    async with scaled(system, ScalingSettings(min_workers=1)) as running:
        await running.until(lambda: any("worker ready" in text for _, text in running.heard.lines))
        crashed = running.pids[0]
        os.kill(crashed, signal.SIGKILL)
        await running.until(lambda: running.pids and running.pids != [crashed])
        assert "agent-queue-1 was ended by SIGKILL; starting it again in 0.5 s" in running.heard.warned
        assert (await system.ended(await system.submit("work", 0), 30)).status is Status.SUCCEEDED
        assert running.heard.scaled() == ["scaled 0 -> 1: at least 1 is kept"]


async def test_a_type_that_is_not_scaled_keeps_its_worker_and_says_so(system):
    async with scaled(system, ScalingSettings(enabled=False, max_workers=4)) as running:
        await running.until(running.heard.scaled)
        assert [text for _, text in running.heard.told] == [
            "is not scaled (scaling.enabled is false): keeps 1 worker of 1 slot",
            "scaled 0 -> 1: not scaled, 1 is kept",
        ]


async def test_a_stop_that_comes_with_an_arrival_is_not_lost(system):
    """In Python 3.11 `asyncio.wait_for` swallows the cancellation, and the autoscaler never ends."""
    async with scaled(system, ScalingSettings(), poll_seconds=NEVER_SECONDS) as running:
        await running.until(lambda: running.scaler.ready and running.scaler.pools[0]._look._waiters)
        running.scaler.pools[0]._look.set()
        await running.stop()


async def test_every_worker_type_has_a_pool_of_its_own(redis, redis_settings, environ, ledger, tmp_path):
    queues = {
        "browser:jobs": QueueSettings(name="browser:jobs", slots=1, scaling=ScalingSettings(max_workers=2)),
        "tankpit:jobs": QueueSettings(name="tankpit:jobs", slots=1, scaling=ScalingSettings(min_workers=1)),
    }
    settings = Settings(redis=redis_settings, queues=queues)
    worker = msgspec.structs.replace(settings.worker, queues=tuple(queues))
    running = Scaled(msgspec.structs.replace(settings, worker=worker))
    async with Connections(settings) as connections:
        browser = connections.sender(queues["browser:jobs"])
        tickets = [
            await browser.submit(Submission(agent="gated", input=str(tmp_path / "gate"))) for _ in range(5)
        ]
        await running.until(lambda: len(ledger.lines("begin")) == 2)
        await running.until(lambda: running.workers("tankpit:jobs") == 1)
        assert running.workers("browser:jobs") == 2
        names = {name for name, _ in running.heard.lines}
        assert names <= {"browser:jobs-1", "browser:jobs-2", "tankpit:jobs-1"}
        assert running.heard.scaled("tankpit:jobs") == ["scaled 0 -> 1: at least 1 is kept"]
        (tmp_path / "gate").touch()
        await until(lambda: len(ledger.lines("end")) == len(tickets))
        await running.stop()


async def test_while_redis_is_away_everybody_stays(restartable_valkey, environ, ledger, tmp_path):
    """Redis hangs for longer than fewer workers would have been enough: nobody leaves, and it is said once."""
    # Ample for a Redis that is there: one that is late for workers which start is not away.
    redis = RedisSettings(url=restartable_valkey.url, socket_timeout_seconds=4.0, connect_timeout_seconds=4.0)
    async with (
        System(redis, slots=1, ttl=30.0) as system,
        scaled(system, ScalingSettings(max_workers=2, down_seconds=0.5)) as running,
    ):
        runs = [await system.submit("gated", str(tmp_path / "gate")) for _ in range(2)]
        await until(lambda: len(ledger.lines("begin")) == 2)
        pids = sorted(running.pids)
        restartable_valkey.freeze()
        try:
            await running.until(lambda: running.heard.warned)
            # Four times the time after which they would leave.
            await stays(lambda: sorted(running.pids) == pids, seconds=2.0)
        finally:
            restartable_valkey.thaw()
        await running.until(lambda: ("agent-queue", "depth can be read again") in running.heard.told)
        (tmp_path / "gate").touch()
        assert (
            running.heard.warned[0]
            == "agent-queue depth can't be read: 2 workers are kept until Redis responds"
        )
        assert len([text for text in running.heard.warned if "can't be read" in text]) == 1
        for run_id in runs:
            assert (await system.ended(run_id, 30)).status is Status.SUCCEEDED
        await running.until(lambda: not running.pids)
