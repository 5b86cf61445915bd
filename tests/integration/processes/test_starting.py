"""How an agent's process begins, or why it does not."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import Conflict, InputError, NotAllowed, PayloadTooLarge, ProcessesFull, ProcessFailed
from holdfast.processes.agent import AgentLife
from holdfast.processes.info import EventKind, ProcessStatus
from holdfast.processes.processes import Processes
from holdfast.processes.supervisor import Supervisor
from tests.support.processes.child_processes import PATIENCE, Heard, is_gone
from tests.support.waiting import wait_until


def test_an_agent_runs_in_a_process_of_its_own_once_it_is_ready(processes: Processes, heard: Heard):
    info = processes.spawn(
        "a", "willing", {"text": "ä"}, fence=7, labels={"guild_id": "g", "tier": "gold"}
    ).result(PATIENCE)
    assert info.status is ProcessStatus.RUNNING
    assert info.is_alive
    assert info.guild_id == "g"
    assert info.pid not in {0, os.getpid(), processes.zygote_pid}
    assert info.info == {
        "payload": {"text": "ä"},
        "fence": 7,
        "labels": {"guild_id": "g", "tier": "gold"},
        "pid": info.pid,
    }
    assert processes.get("a") == info
    assert heard.next("a", EventKind.READY).process == info


def test_an_agent_that_is_ready_before_the_zygote_tells_its_number_has_one(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
):
    answered = Supervisor._on_spawn_reply

    def late(supervisor: Supervisor, agent: AgentLife, *more: Any) -> None:
        supervisor._loop.later(0.3, lambda: answered(supervisor, agent, *more))

    monkeypatch.setattr(Supervisor, "_on_spawn_reply", late)
    info = processes.spawn("a", "willing").result(PATIENCE)
    assert info.pid == info.info["pid"]


def test_asking_again_under_the_same_fence_gives_the_same_process(processes: Processes):
    both = [processes.spawn("a", "willing", fence=3), processes.spawn("a", "willing", fence=3)]
    first, second = (created.result(PATIENCE) for created in both)
    third = processes.spawn("a", "willing", fence=3).result(PATIENCE)
    assert first.pid == second.pid == third.pid


def test_a_stale_fence_is_refused(processes: Processes):
    processes.spawn("a", "willing", fence=3).result(PATIENCE)
    with pytest.raises(Conflict, match="fence 3"):
        processes.spawn("a", "willing", fence=2).result(PATIENCE)
    processes.stop("a").result(PATIENCE)
    with pytest.raises(Conflict, match="stale"):
        processes.spawn("a", "willing", fence=2).result(PATIENCE)


def test_a_higher_fence_replaces_the_copy_after_its_end(processes: Processes, heard: Heard):
    old = processes.spawn("a", "willing", fence=3).result(PATIENCE)
    new = processes.spawn("a", "willing", fence=4).result(PATIENCE)
    assert heard.next("a", EventKind.EXITED).process.fence == 3
    assert heard.next("a", EventKind.READY).process.fence == 4
    assert is_gone(old.pid)
    assert processes.get("a") == new


def test_a_stop_also_ends_the_wish_for_a_successor(processes: Processes):
    processes.spawn("a", "stubborn", fence=3).result(PATIENCE)
    successor = processes.spawn("a", "willing", fence=4)
    stopped = processes.stop("a")
    assert processes.kill("a").result(PATIENCE)
    assert stopped.result(PATIENCE)
    with pytest.raises(RuntimeError, match="stopped before it was ready"):
        successor.result(PATIENCE)
    assert processes.get("a").status is ProcessStatus.STOPPED


def test_a_full_host_refuses_until_there_is_room(make: Callable[..., Processes]):
    processes = make(max_processes=2)
    for name in "ab":
        processes.spawn(name, "willing").result(PATIENCE)
    with pytest.raises(ProcessesFull, match="max_processes allows 2"):
        processes.spawn("c", "willing").result(PATIENCE)
    assert processes.get("c") is None
    assert processes.spawn("a", "willing").result(PATIENCE).pid == processes.get("a").pid
    processes.stop("a").result(PATIENCE)
    assert processes.spawn("c", "willing").result(PATIENCE).is_alive


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("raise", r"(?s)exited with code 1.*ValueError: the constructor has failed"),
        ("exit", r"(?s)exited with code 0.*SystemExit: 0"),
        ("abort", r"(?s)killed by SIGABRT.*about to abort"),
    ],
)
def test_an_agent_that_ends_before_it_is_ready_is_not_created(processes: Processes, do: str, words: str):
    with pytest.raises(ProcessFailed, match=words) as failed:
        processes.spawn("a", "early", {"do": do}).result(PATIENCE)
    assert failed.value.traceback
    assert processes.get("a") is None
    assert processes.spawn("a", "willing").result(PATIENCE).restarts == 0


def test_an_agent_that_is_never_ready_is_killed(make: Callable[..., Processes]):
    processes = make(ready_timeout_seconds=1.0)
    with pytest.raises(ProcessFailed, match="not ready within 1 s, was killed by SIGKILL"):
        processes.spawn("a", "early", {"do": "hang"}).result(PATIENCE)
    assert processes.get("a") is None


def test_an_agent_is_killed_whose_zygote_took_longer_than_it_had_to_get_ready(
    make: Callable[..., Processes], monkeypatch: pytest.MonkeyPatch
):
    """Fails if the kill is lost because there is no number yet: nobody would ever be told."""
    given_up, answered = threading.Event(), Supervisor._on_spawn_reply

    def too_slow(supervisor: Supervisor, agent: AgentLife) -> None:
        really(supervisor, agent)
        given_up.set()

    def late(supervisor: Supervisor, *more: Any) -> None:
        if given_up.is_set():
            answered(supervisor, *more)
        else:
            supervisor._loop.later(0.01, lambda: late(supervisor, *more))

    really = Supervisor._on_ready_timeout
    monkeypatch.setattr(Supervisor, "_on_ready_timeout", too_slow)
    monkeypatch.setattr(Supervisor, "_on_spawn_reply", late)
    processes = make(ready_timeout_seconds=0.1)
    with pytest.raises(ProcessFailed, match=r"not ready within 0\.1 s, was killed by SIGKILL"):
        processes.spawn("a", "early", {"do": "hang"}).result(PATIENCE)
    assert processes.get("a") is None


def test_an_agent_is_stopped_before_it_is_ready(processes: Processes):
    created = processes.spawn("a", "early", {"do": "hang"})
    pid = wait_until(lambda: (info := processes.get("a")) and info.pid)
    assert processes.stop("a", timeout=0.1).result(PATIENCE)
    with pytest.raises(RuntimeError, match="stopped before it was ready"):
        created.result(PATIENCE)
    assert is_gone(pid)


@pytest.mark.parametrize("entry", ["wiling", "os:system", "tests.support.processes.entries:willing", ""])
def test_only_entries_of_the_hosts_table_are_run(processes: Processes, entry: str):
    with pytest.raises(NotAllowed, match="this host has no entry"):
        processes.spawn("a", entry, "true").result(PATIENCE)
    assert processes.get("a") is None


@pytest.mark.parametrize(
    "entry", ["nowhere:run", "tests.support.processes.entries:nothing", "tests.support.processes.entries"]
)
def test_an_entry_that_is_not_there_says_so(make: Callable[..., Processes], entry: str):
    processes = make(entries={"lost": entry})
    with pytest.raises(ProcessFailed, match="AppError: "):
        processes.spawn("a", "lost").result(PATIENCE)


def test_a_host_without_descriptors_says_so_and_goes_on(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
):
    processes.spawn("before", "willing").result(PATIENCE)
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.processes.handle.os.pipe2", _no_more_descriptors)
        with pytest.raises(ProcessFailed, match="Too many open files"):
            processes.spawn("a", "willing").result(PATIENCE)
    assert processes.get("a") is None
    assert processes.spawn("a", "willing").result(PATIENCE).is_alive


def _no_more_descriptors(_: int) -> tuple[int, int]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("payload", [object(), {1, 2}, float("nan"), b"bytes", {"deep": [object()]}])
def test_a_payload_that_is_not_json_is_refused_at_once(processes: Processes, payload: object):
    with pytest.raises(InputError, match="must be JSON"):
        processes.spawn("a", "willing", payload)
    assert processes.get("a") is None


def test_a_large_payload_arrives_whole_and_a_larger_one_is_refused(processes: Processes):
    created = processes.spawn("a", "talks", {"filler": "ü" * 1_000_000, "reports": []})
    assert created.result(PATIENCE).is_alive
    with pytest.raises(PayloadTooLarge):
        processes.spawn("b", "willing", "x" * 10_000_000)


async def test_event_loops_wait_for_processes(processes: Processes):
    infos = await asyncio.gather(*(processes.create(str(number), "willing") for number in range(5)))
    assert len({info.pid for info in infos}) == 5
    assert all(await asyncio.gather(*(processes.end(str(number)) for number in range(5))))


def test_a_subscriber_that_waits_is_told_not_to(processes: Processes):
    told: list[BaseException] = []

    def wait(_: object) -> None:
        for trial in (lambda: processes.wait(processes.stop("a")), processes.shutdown):
            try:
                trial()
            except RuntimeError as error:
                told.append(error)

    leave = processes.subscribe(wait)
    processes.spawn("a", "willing").result(PATIENCE)
    wait_until(lambda: len(told) >= 2)
    leave()


def test_a_hundred_agents_live_together_and_end_together(make: Callable[..., Processes]):
    processes = make()
    created = [processes.spawn(str(number), "willing") for number in range(100)]
    pids = {future.result(PATIENCE).pid for future in created}
    assert len(pids) == 100
    usage = processes.usage()
    assert len(usage) == 100
    assert all(used.memory_bytes > 0 and used.cpu_seconds >= 0 for used in usage.values())
    processes.shutdown()
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="shut down"):
        processes.spawn("late", "willing").result(PATIENCE)
