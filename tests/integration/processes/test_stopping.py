"""How an agent's process ends when it is asked to, and what ends with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

import pytest

from holdfast.errors import Conflict
from holdfast.processes.info import EventKind, ProcessStatus
from holdfast.processes.processes import Processes
from tests.support.processes.child_processes import PATIENCE, Heard, children_of, is_gone
from tests.support.waiting import wait_until

EndAtLast = Callable[[Iterable[int]], None]


@pytest.mark.parametrize("entry", ["willing", "by_event_loop", "by_select", "own_handler", "own_loop"])
def test_a_willing_agent_ends_by_itself(processes: Processes, entry: str):
    pid = processes.spawn("a", entry).result(PATIENCE).pid
    assert processes.stop("a").result(PATIENCE)
    info = processes.get("a")
    assert (info.status, info.exit_code, info.is_alive, info.pid) == (ProcessStatus.STOPPED, 0, False, 0)
    assert is_gone(pid)


def test_a_sigterm_from_anybody_is_a_wish_to_stop(processes: Processes, heard: Heard):
    info = processes.spawn("a", "by_event_loop").result(PATIENCE)
    os.kill(info.pid, signal.SIGTERM)
    assert heard.next("a", EventKind.EXITED).process.exit_code == 0


def test_a_signal_that_the_agent_handles_is_no_wish_to_stop(processes: Processes, heard: Heard):
    info = processes.spawn("a", "own_handler").result(PATIENCE)
    os.kill(info.pid, signal.SIGUSR1)
    assert heard.report("a", "heard").data == {"stopping": False}


def test_an_agent_that_ignores_its_stop_is_killed(processes: Processes):
    pid = processes.spawn("a", "stubborn").result(PATIENCE).pid
    assert processes.stop("a", timeout=0.2).result(PATIENCE)
    assert processes.get("a").exit_code == -signal.SIGKILL
    assert is_gone(pid)


def test_a_frozen_agent_is_killed(processes: Processes):
    pid = processes.spawn("a", "willing").result(PATIENCE).pid
    os.kill(pid, signal.SIGSTOP)
    assert processes.stop("a", timeout=0.2).result(PATIENCE)
    assert is_gone(pid)


def test_asking_twice_is_one_stop_and_kill_makes_it_short(processes: Processes):
    processes.spawn("a", "stubborn").result(PATIENCE)
    both = [processes.stop("a"), processes.stop("a")]
    with pytest.raises(Conflict, match="being stopped"):
        processes.spawn("a", "willing").result(PATIENCE)
    assert processes.kill("a").result(PATIENCE)
    assert all(ended.result(PATIENCE) for ended in both)


def test_who_is_not_known_is_not_stopped(processes: Processes):
    assert not processes.stop("nobody").result(PATIENCE)
    assert not processes.kill("nobody").result(PATIENCE)
    assert not processes.forget("nobody").result(PATIENCE)


def test_only_what_has_ended_is_forgotten(processes: Processes):
    processes.spawn("a", "willing").result(PATIENCE)
    assert not processes.forget("a").result(PATIENCE)
    processes.stop("a").result(PATIENCE)
    assert processes.forget("a").result(PATIENCE)
    assert processes.get("a") is None


@pytest.mark.parametrize("entry", ["family", "forked"])
@pytest.mark.parametrize("how", ["stop", "kill", "crash"])
def test_what_an_agent_has_started_ends_with_it(
    processes: Processes, heard: Heard, end_at_last: EndAtLast, entry: str, how: str
):
    info = processes.spawn("a", entry, {"how": how}).result(PATIENCE)
    family = info.info["family"]
    end_at_last(family)
    assert not any(is_gone(pid) for pid in family)
    if how == "crash":
        os.kill(info.pid, signal.SIGKILL)
        heard.next("a", EventKind.EXITED)
    elif how == "kill":
        processes.kill("a").result(PATIENCE)
    else:
        processes.stop("a").result(PATIENCE)
    wait_until(lambda: all(is_gone(pid) for pid in family))


def test_the_daemon_of_a_live_agent_lives_on_when_another_agent_ends(processes: Processes):
    family = processes.spawn("a", "family", {}).result(PATIENCE).info["family"]
    for _ in range(2):
        processes.spawn("b", "willing").result(PATIENCE)
        processes.stop("b").result(PATIENCE)
    assert not any(is_gone(pid) for pid in family)


def test_nobody_is_left_unreaped(processes: Processes):
    for number in range(5):
        processes.spawn(str(number), "family", {}).result(PATIENCE)
    for ended in [processes.kill(str(number)) for number in range(5)]:
        ended.result(PATIENCE)
    wait_until(lambda: not children_of(processes.zygote_pid))
