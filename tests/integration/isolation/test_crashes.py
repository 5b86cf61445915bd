"""A process that dies costs its own attempt and nothing else, and says what happened to it."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

import pytest

from holdfast.processes.processes import Processes
from holdfast.runs.run import Status
from holdfast.services.isolation import isolation
from holdfast.telemetry.metrics import Metrics
from tests.support.processes.child_processes import children_of
from tests.support.waiting import until

DEATHS = [
    ("quits", 0, "exited with code 0 before its agent had ended"),
    ("quits", 3, "exited with code 3 before its agent had ended"),
    ("killed", signal.SIGKILL, "ended by signal 9 (SIGKILL)"),
    ("killed", signal.SIGABRT, "ended by signal 6 (SIGABRT)"),
    ("killed", signal.SIGTERM, "exited with code 143"),
    ("segfaults", None, "ended by signal 11 (SIGSEGV)"),
]


@pytest.mark.parametrize(("agent", "given", "words"), DEATHS)
async def test_it_is_a_failed_attempt_with_clear_words(system, isolated, agent, given, words):
    worker = await system.worker(isolated)
    beside = await system.submit("leaves_early")
    await system.told(beside)
    run = await system.ended(await system.submit(agent, None if given is None else int(given)))
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 2, "crashed")
    assert words in run.error.message
    assert (await system.queue.get(beside)).status is Status.RUNNING
    assert (
        worker.process.metrics.registry.get_sample_value(
            "holdfast_processes_crashed_total", {"queue": system.settings.queue.name, "agent": agent}
        )
        == 2
    )
    assert (await system.ended(await system.submit("echo", 1))).result == 1


async def test_the_next_attempt_can_succeed(system, isolated):
    await system.worker(isolated)
    run = await system.ended(await system.submit("quits_once"))
    assert (run.status, run.result) == (Status.SUCCEEDED, 2)


async def test_evidence_is_kept(system, isolated):
    await system.worker(isolated)
    crash = await system.ended(await system.submit("segfaults"))
    assert "Fatal Python error: Segmentation fault" in crash.error.traceback
    assert "in segfaults" in crash.error.traceback
    printed = await system.ended(await system.submit("prints"))
    assert "printed by an agent" in printed.error.traceback


async def test_one_that_eats_memory_meets_its_limit(system, isolated):
    await system.worker(isolated)
    run = await system.ended(await system.submit("eats"), 60)
    assert run.status is Status.FAILED
    assert "MemoryError" in run.error.message
    assert "memory_mb is 400" in run.error.message
    assert (await system.ended(await system.submit("echo", 1))).result == 1


async def test_a_limit_too_low_to_begin_says_how_much_it_takes(system, isolated):
    await system.worker(isolated)
    run = await system.ended(await system.submit("starved"))
    assert (run.status, run.error.kind) == (Status.FAILED, "crashed")
    assert "could not begin" in run.error.message
    assert "give at least" in run.error.message


async def test_a_modest_agent_steps_back(system, isolated):
    await system.worker(isolated)
    assert (await system.ended(await system.submit("modest"))).result == 7


async def test_a_dead_zygote_costs_the_attempts_it_had_and_no_more(system, isolated, end_at_last, tmp_path):
    ledger = tmp_path / "ledger"
    await system.worker(isolated)
    run_id = await system.submit("once_elsewhere", str(ledger))
    pid = await system.told(run_id)
    end_at_last(pid)
    os.kill(parent_of(pid), signal.SIGKILL)
    run = await system.ended(run_id)
    assert (run.status, run.result) == (Status.SUCCEEDED, 2)
    feed = await system.queue.redis.xrange(system.queue.keys.feed(run_id))
    words = next(fields[b"data"] for _, fields in feed if fields[b"type"] == b"retrying")
    assert b"its zygote ended" in words
    # Not begun again under its first fence by the next zygote.
    zygote = (await system.ended(await system.submit("parent_pid"))).result
    await until(lambda: not children_of(zygote))
    assert len(ledger.read_text().split()) == len(set(ledger.read_text().split())) == 2


async def test_many_attempts_leave_nothing_behind(system, isolated):
    others = all_processes()  # of other tests: their zygotes' numbers may be given again
    await system.worker(isolated)
    zygote = (await system.ended(await system.submit("parent_pid"))).result
    before = (open_files("self"), threading.active_count())
    ids = [await system.submit("facts", number) for number in range(50)]
    for run_id in ids:
        assert (await system.ended(run_id, 60)).status is Status.SUCCEEDED
    known = next(one for one in all_processes() if one.zygote_pid == zygote and one not in others)
    await until(lambda: (children_of(zygote), known.all()), lambda left: not any(left))
    # Pools of connections and threads may have grown, on a busy machine by several; a leak is one per attempt.
    assert open_files("self") < before[0] + 10
    assert threading.active_count() < before[1] + 10
    assert open_files(zygote) < 20


async def test_nothing_is_left_of_the_process_that_tried_the_zygote(system, isolated):
    """It may end before anybody listens: without a word it would be known for as long as the worker lives."""
    async with isolation(system.settings, isolated, Metrics(), slots=2) as attempts:
        assert attempts._processes.all() == {}


def all_processes() -> list[Processes]:
    # By their types: isinstance also asks the objects, and a proxy whose object is gone raises.
    return [one for one in gc.get_objects() if issubclass(type(one), Processes)]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def open_files(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
