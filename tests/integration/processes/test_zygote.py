"""The zygote's own faults, and the host's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable

import pytest

from holdfast.errors import ProcessError, ProcessFailed
from holdfast.processes.handle import Handle
from holdfast.processes.info import EventKind, ProcessStatus
from holdfast.processes.processes import Processes
from holdfast.processes.zygote import Config, Zygote
from tests.support.paths import ROOT
from tests.support.processes.child_processes import PATIENCE, Heard, children_of, is_gone, threads_of
from tests.support.waiting import wait_until

EndAtLast = Callable[[Iterable[int]], None]
PRELOADED = "tests.support.processes.preloaded"
PREPARE = f"{PRELOADED}:prepare"

HOST = """
import json, os, signal, sys
from holdfast.processes.options import ProcessOptions
from holdfast.processes.processes import Processes
from holdfast.processes.zygote import Config, Zygote
names = ("willing", "stubborn", "family", "forked")
entries = {name: f"tests.support.processes.entries:{name}" for name in names}
processes = Processes(ProcessOptions(entries=entries, path=(sys.argv[1], *sys.path)))
created = [processes.spawn(name, name, {}).result(60) for name in names]
pids = [pid for info in created for pid in (info.pid, *info.info.get("family", ()))]
copy = 0
if sys.argv[2] == "forked":
    copy = os.fork()
    if copy == 0:
        signal.pause()
print(json.dumps({"zygote": processes.zygote_pid, "agents": pids, "copy": copy}), flush=True)
signal.pause()
"""


@pytest.mark.parametrize("host", ["plain", "forked"])
def test_a_host_that_is_killed_takes_everything_along(end_at_last: EndAtLast, host: str):
    """Also when a copy of the host goes on and keeps its end of the connection to the zygote open."""
    command = [sys.executable, "-c", HOST, str(ROOT), host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        started = json.loads(process.stdout.readline())
        try:
            pids = [started["zygote"], *started["agents"]]
            end_at_last(pids)
            assert len(pids) == 8
            assert not any(is_gone(pid) for pid in pids)
            process.kill()
            wait_until(lambda: all(is_gone(pid) for pid in pids))
        finally:
            process.kill()
            if started["copy"]:
                os.kill(started["copy"], signal.SIGKILL)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_zygote_that_ends_takes_its_children_along_and_all_come_back(
    make: Callable[..., Processes], end_at_last: EndAtLast, signum: int
):
    processes = make()
    heard = Heard(processes)
    zygote = processes.spawn("a", "willing", {"n": 1}, fence=4).result(PATIENCE) and processes.zygote_pid
    old = [
        processes.spawn(name, entry, {}).result(PATIENCE)
        for name, entry in (("b", "stubborn"), ("c", "forked"))
    ]
    pids = [processes.get("a").pid, *(info.pid for info in old), *old[1].info["family"]]
    end_at_last(pids)
    os.kill(zygote, signum)
    back = {name: heard.next(name, EventKind.READY, restarts=1).process for name in ("a",)}
    wait_until(lambda: all(processes.get(name).restarts == 1 for name in "abc"))
    wait_until(lambda: all(processes.get(name).status is ProcessStatus.RUNNING for name in "abc"))
    assert all(is_gone(pid) for pid in pids)
    assert processes.zygote_pid != zygote
    assert (back["a"].info["payload"], back["a"].fence) == ({"n": 1}, 4)
    # Nobody's crash: nothing was taken off the restarts that the policy allows.
    for _ in range(2):
        os.kill(processes.get("a").pid, signal.SIGKILL)
        heard.next("a", EventKind.READY)


def test_agents_die_with_a_killed_zygote_even_if_nobody_else_is_there_to_end_them(
    make: Callable[..., Processes], end_at_last: EndAtLast, monkeypatch: pytest.MonkeyPatch
):
    processes = make()
    monkeypatch.setattr("holdfast.processes.handle.Handle.end_group", lambda _: None)
    pid = processes.spawn("a", "stubborn").result(PATIENCE).pid
    end_at_last([pid])
    os.kill(processes.zygote_pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))


def test_an_agent_lost_twice_is_looked_for_once(
    make: Callable[..., Processes], monkeypatch: pytest.MonkeyPatch
):
    processes = make()
    heard = Heard(processes)
    processes.spawn("a", "willing").result(PATIENCE)
    really, answer = Handle.is_gone, [False]

    def is_gone_or_not(handle: Handle) -> bool:
        return answer[0] if answer and handle._agent_id == "a" else really(handle)

    monkeypatch.setattr(Handle, "is_gone", is_gone_or_not)
    for other in "xy":
        os.kill(processes.zygote_pid, signal.SIGKILL)
        processes.spawn(other, "willing").result(PATIENCE)  # from the next zygote
    answer.clear()
    back = heard.next("a", EventKind.READY, restarts=1).process
    answer.append(True)  # whoever still looks takes the new one for lost
    for _ in range(20):
        processes.spawn("b", "willing").result(PATIENCE)
        processes.stop("b").result(PATIENCE)
    assert processes.get("a") == back


def test_a_stop_while_the_zygote_dies_is_a_stop(make: Callable[..., Processes]):
    processes = make()
    pid = processes.spawn("a", "stubborn").result(PATIENCE).pid
    stopped = processes.stop("a")
    os.kill(processes.zygote_pid, signal.SIGKILL)
    assert stopped.result(PATIENCE)
    assert processes.get("a").status is ProcessStatus.STOPPED
    assert is_gone(pid)


def test_a_zygote_that_does_not_answer_is_replaced(make: Callable[..., Processes]):
    # So long is it waited for; a zygote that is merely without CPU for a moment must not be taken for this one.
    processes = make(zygote_timeout_seconds=4.0)
    processes.spawn("a", "willing").result(PATIENCE)
    frozen = processes.zygote_pid
    os.kill(frozen, signal.SIGSTOP)
    assert processes.spawn("b", "willing").result(PATIENCE).is_alive
    assert processes.zygote_pid != frozen
    wait_until(
        lambda: processes.get("a").status is ProcessStatus.RUNNING and processes.get("a").restarts == 1
    )


def test_an_agent_that_kills_its_zygote_is_not_created_for_ever(make: Callable[..., Processes]):
    processes = make()
    with pytest.raises(ProcessFailed, match="its zygote ended repeatedly"):
        processes.spawn("a", "early", {"do": "kill the zygote"}).result(PATIENCE)
    assert processes.spawn("b", "willing").result(PATIENCE).is_alive


def test_a_zygote_does_not_end_with_the_thread_that_started_it(make: Callable[..., Processes]):
    processes = make()
    processes.spawn("a", "willing").result(PATIENCE)
    zygote = processes.zygote_pid
    os.kill(zygote, signal.SIGHUP)  # what the kernel sends when that thread ends
    assert processes.spawn("b", "willing").result(PATIENCE).is_alive
    assert processes.zygote_pid == zygote


def test_a_zygote_has_one_thread_and_one_that_preloads_a_thread_is_refused(
    make: Callable[..., Processes], processes: Processes, preloading: Callable[[str], None]
):
    processes.spawn("a", "willing").result(PATIENCE)
    assert threads_of(processes.zygote_pid) == 1
    preloading("thread")
    with pytest.raises(ProcessError, match=f"preloading {PRELOADED} started a thread"):
        make().spawn("a", "willing").result(PATIENCE)


def test_a_zygote_that_gets_a_thread_later_forks_no_more(
    make: Callable[..., Processes], preloading: Callable[[str], None]
):
    preloading("thread on signal")
    processes = make()
    processes.spawn("a", "willing").result(PATIENCE)
    zygote = processes.zygote_pid
    os.kill(zygote, signal.SIGUSR1)
    wait_until(lambda: threads_of(zygote) == 2)
    with pytest.raises(ProcessFailed, match="can't be forked safely"):
        processes.spawn("b", "willing").result(PATIENCE)
    assert processes.get("a").is_alive


def test_a_preload_that_fails_says_why_and_is_tried_again_when_asked(
    make: Callable[..., Processes], preloading: Callable[[str], None]
):
    preloading("fail")
    processes = make()
    for _ in range(2):
        with pytest.raises(ProcessError, match="RuntimeError: this module can't be imported"):
            processes.spawn("a", "willing").result(PATIENCE)
    preloading("nothing")
    assert processes.spawn("a", "willing").result(PATIENCE).is_alive


def test_what_is_prepared_is_there_in_every_child_and_what_can_not_be_says_why(
    make: Callable[..., Processes],
):
    processes = make(prepare=((PREPARE, "one"), (PREPARE, "two")))
    for name in ("a", "b"):
        assert processes.spawn(name, "confesses").result(PATIENCE).info["prepared"] == ["one", "two"]
    with pytest.raises(ProcessError, match="RuntimeError: this can't be prepared"):
        make(prepare=((PREPARE, "fail"),)).spawn("a", "willing").result(PATIENCE)
    with pytest.raises(ProcessError, match=f"preparing {PREPARE} started a thread") as raised:
        make(prepare=((PREPARE, "thread"),)).spawn("a", "willing").result(PATIENCE)
    assert "preparing thread" not in str(raised.value), "what it is given may hold passwords"


def test_agents_whose_zygote_can_not_begin_again_are_crashed(
    make: Callable[..., Processes], preloading: Callable[[str], None]
):
    processes = make()
    heard = Heard(processes)
    processes.spawn("a", "willing").result(PATIENCE)
    preloading("fail")
    os.kill(processes.zygote_pid, signal.SIGKILL)
    ended = heard.next("a", EventKind.EXITED, status=ProcessStatus.CRASHED).process
    assert "this module can't be imported" in ended.last_error


def test_a_shutdown_leaves_nobody(make: Callable[..., Processes]):
    processes = make(stop_timeout_seconds=0.2)
    for name in ("willing", "stubborn", "family"):
        processes.spawn(name, name, {}).result(PATIENCE)
    zygote = processes.zygote_pid
    pids = [zygote, *map(int, children_of(zygote)), *processes.get("family").info["family"]]
    processes.shutdown()
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    processes.shutdown()


def test_a_child_is_killed_even_before_it_has_a_group_of_its_own():
    """Fails if only the group is asked: a kill that came right after the fork was lost, and the stop with it."""
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "600"]) as young:
        zygote = Zygote(theirs, Config({}, (), (), (), ()))
        zygote._agents.add(young.pid)  # as a fork that has not come to its first step
        zygote._signal({"pid": young.pid, "signal": signal.SIGKILL, "group": True})
        try:
            assert young.wait(PATIENCE) == -signal.SIGKILL
        finally:
            young.kill()
