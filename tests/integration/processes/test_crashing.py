"""What happens to an agent that ends though nobody asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import ProcessFailed
from holdfast.processes.info import EventKind, ProcessStatus
from holdfast.processes.limits import Limits
from holdfast.processes.processes import Processes
from holdfast.processes.restarts import RestartPolicy
from tests.support.processes.child_processes import PATIENCE, Heard, is_gone

MIB = 1024 * 1024


def test_a_killed_agent_is_started_again(processes: Processes, heard: Heard):
    before = processes.spawn("a", "willing", {"n": 1}, fence=5).result(PATIENCE)
    os.kill(before.pid, signal.SIGKILL)
    exited = heard.next("a", EventKind.EXITED).process
    assert (exited.status, exited.exit_code) == (ProcessStatus.BACKING_OFF, -signal.SIGKILL)
    assert exited.last_error == "was killed by SIGKILL"
    after = heard.next("a", EventKind.READY).process
    assert after.pid != before.pid
    assert (after.restarts, after.fence, after.info["payload"]) == (1, 5, {"n": 1})


@pytest.mark.parametrize("payload", [{"code": 0}, {"code": 3}, {"raise": "no more"}])
def test_an_agent_that_ends_again_and_again_is_crashed(processes: Processes, heard: Heard, payload: dict):
    processes.spawn("a", "quits", payload).result(PATIENCE)
    ended = heard.next("a", EventKind.EXITED, status=ProcessStatus.CRASHED).process
    assert (ended.restarts, ended.is_alive) == (2, False)
    assert ended.exit_code == payload.get("code", 1)
    assert payload.get("raise", "exited with code") in ended.last_error
    assert processes.get("a") == ended
    assert processes.stop("a").result(PATIENCE)
    assert processes.spawn("a", "willing").result(PATIENCE).restarts == 0


def test_a_restart_that_fails_counts(processes: Processes, heard: Heard, tmp_path: Path):
    info = processes.spawn("a", "quits_again", {"marker": str(tmp_path / "marker")}).result(PATIENCE)
    os.kill(info.pid, signal.SIGKILL)
    ended = heard.next("a", EventKind.EXITED, status=ProcessStatus.CRASHED).process
    assert ended.restarts == 2
    assert "not this time" in ended.last_error


def test_an_agent_that_waits_for_its_restart_is_stopped(make: Callable[..., Processes]):
    processes = make(restarts=RestartPolicy(base_seconds=600, cap_seconds=600))
    heard = Heard(processes)
    processes.spawn("a", "quits", {"code": 1}).result(PATIENCE)
    heard.next("a", EventKind.EXITED, status=ProcessStatus.BACKING_OFF)
    assert processes.stop("a").result(PATIENCE)
    assert processes.get("a").status is ProcessStatus.STOPPED


def test_an_agent_that_eats_memory_ends_and_says_so(processes: Processes, heard: Heard):
    neighbour = processes.spawn("b", "willing").result(PATIENCE)
    processes.spawn("a", "eats", limits=Limits(memory_bytes=256 * MIB)).result(PATIENCE)
    ended = heard.next("a", EventKind.EXITED, status=ProcessStatus.CRASHED).process
    assert "MemoryError" in ended.last_error
    assert ended.restarts == 2
    assert 64 * MIB < ended.max_rss_bytes < 512 * MIB
    assert processes.get("b") == neighbour


def test_a_memory_limit_below_what_a_child_begins_with_says_so(processes: Processes):
    with pytest.raises(ProcessFailed, match="begins with"):
        processes.spawn("a", "willing", limits=Limits(memory_bytes=MIB)).result(PATIENCE)


def test_the_other_limits_hold_too(processes: Processes):
    info = processes.spawn("a", "confesses", limits=Limits(nice=7, open_files=64)).result(PATIENCE)
    assert info.info["nice"] == 7
    limits = Path(f"/proc/{info.pid}/limits").read_text().splitlines()
    assert next(line.split()[3] for line in limits if line.startswith("Max open files")) == "64"
    assert not is_gone(info.pid)
