"""What ignores its stop is killed, with all that it has started, before its run ends."""

from __future__ import annotations

import pytest

from holdfast.processes import procfs
from holdfast.runs.run import Status
from tests.support.processes.isolation import Isolation, gone

UNWILLING = ["stubborn", "spins", "thread_spins"]


def killed(worker, reason: str) -> float:
    found = 0.0
    for metric in worker.process.metrics.registry.collect():
        for sample in metric.samples:
            if sample.name == "holdfast_processes_killed_total" and sample.labels["reason"] == reason:
                found += sample.value
    return found


@pytest.mark.parametrize("agent", UNWILLING)
async def test_cancelled_it_is_gone_when_its_run_is_cancelled(system, isolated, end_at_last, agent):
    worker = await system.worker(isolated)
    run_id = await system.submit(agent)
    pid = await system.told(run_id)
    end_at_last(pid)
    await system.queue.cancel(run_id, "not wanted")
    run = await system.ended(run_id)
    assert procfs.start_time(pid) is None
    assert (run.status, run.error.message) == (Status.CANCELLED, "not wanted")
    assert killed(worker, "cancelled") == 1
    assert not worker.process.running()


@pytest.mark.parametrize("agent", UNWILLING)
async def test_past_its_deadline_it_is_gone_when_its_run_is_timed_out(system, isolated, end_at_last, agent):
    worker = await system.worker(isolated)
    run_id = await system.submit(agent, timeout_seconds=600)
    pid = await system.told(run_id)
    end_at_last(pid)
    worker.reach_deadline()
    run = await system.ended(run_id)
    assert procfs.start_time(pid) is None
    assert (run.status, run.error.kind) == (Status.TIMED_OUT, "timed_out")
    assert killed(worker, "timed_out") == 1


async def test_it_has_as_long_as_its_run(system, isolated):
    """By the clock; also if its process has not begun by then, as on a busy machine."""
    await system.worker(isolated)
    run = await system.ended(await system.submit("spins", timeout_seconds=6.0))
    assert (run.status, run.error.kind) == (Status.TIMED_OUT, "timed_out")
    assert run.finished_at - run.submitted_at >= 6


@pytest.mark.parametrize("agent", UNWILLING)
async def test_when_its_worker_leaves_it_is_gone_and_its_run_handed_back(
    system, isolated, end_at_last, agent
):
    worker = await system.worker(isolated, drain_seconds=0.0)
    run_id = await system.submit(agent)
    pid = await system.told(run_id)
    end_at_last(pid)
    await worker.stop()
    assert procfs.start_time(pid) is None
    run = await system.queue.get(run_id)
    assert (run.status, run.attempt) == (Status.QUEUED, 0)
    assert (await system.events(run_id))[-1] == "handed_back"
    assert killed(worker, "handed_back") == 1
    assert not worker.process.running()


async def test_a_lost_lease_ends_it_at_once(redis, redis_settings, isolated, end_at_last):
    """Whatever grace it would have: somebody else may have the run by now."""
    async with Isolation(redis_settings, stop_grace_seconds=600) as system:
        worker = await system.worker(isolated)
        run_id = await system.submit("spins")
        pid = await system.told(run_id)
        end_at_last(pid)
        await redis.hset(system.queue.keys.run(run_id), "fence", "7")
        await gone(pid)
    assert not worker.process.metrics.registry.get_sample_value(
        "holdfast_processes_crashed_total", {"queue": system.settings.queue.name, "agent": "spins"}
    )


@pytest.mark.parametrize("how", ["cancel", "escaped", "crash", "return"])
async def test_what_it_has_started_goes_with_it(system, isolated, end_at_last, how):
    await system.worker(isolated)
    run_id = await system.submit("parent", how)
    children = await system.told(run_id, "children")
    end_at_last(*children)
    if how in {"cancel", "escaped"}:
        await system.queue.cancel(run_id)
    await gone(*children)
    expected = {"crash": Status.FAILED, "return": Status.SUCCEEDED}.get(how, Status.CANCELLED)
    assert (await system.ended(run_id)).status is expected


async def test_one_that_has_answered_may_not_linger(system, isolated):
    """Its thread would keep the event loop from closing for an hour."""
    worker = await system.worker(isolated)
    assert (await system.ended(await system.submit("leaves_a_thread", 4))).result == 4
    assert killed(worker, "lingering") == 1


async def test_others_go_on_beside_one_that_spins(system, isolated, end_at_last):
    await system.worker(isolated)
    run_id = await system.submit("spins")
    end_at_last(await system.told(run_id))
    for number in range(3):
        assert (await system.ended(await system.submit("echo", number))).result == number
    assert (await system.queue.get(run_id)).status is Status.RUNNING
    await system.queue.cancel(run_id)
    await system.ended(run_id)
