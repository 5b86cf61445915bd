"""Workers that leave, die, freeze or are blocked: no body of theirs goes on where it must not."""

from __future__ import annotations

import signal

import pytest

from holdfast.processes import procfs
from holdfast.runs.run import Status
from tests.support.processes.child_processes import children_of
from tests.support.processes.isolation import AGENTS, Isolation, gone
from tests.support.runs.system import WorkerChild
from tests.support.waiting import until


@pytest.fixture
def short_leases() -> None:
    """For tests that wait until a lease is over, or longer; in the others a busy machine must lose none."""


@pytest.fixture
async def quick(redis, redis_settings, request):
    # The short one is long enough for a worker that gets no CPU for two seconds.
    ttl = 6.0 if "short_leases" in request.fixturenames else 15.0
    async with Isolation(redis_settings, slots=4, max_attempts=3, drain=0.2, ttl=ttl) as system:
        yield system


@pytest.fixture
def start(quick):
    """Workers in processes of their own."""
    workers: list[WorkerChild] = []

    async def begin(name: str, **environ: str) -> WorkerChild:
        worker = WorkerChild(quick.settings, f"{AGENTS}:isolated", name, **environ)
        workers.append(worker)

        async def is_member() -> int:
            assert worker.process.poll() is None, worker.logged()
            return await quick.queue.redis.exists(f"member:worker:{name}")

        await until(is_member, what=f"worker {name} to announce itself", seconds=60)
        return worker

    yield begin
    for worker in workers:
        print(worker.close())


async def test_sigterm_lets_a_willing_agent_end_and_takes_the_zygote_along(quick, start):
    worker = await start("willing", HOLDFAST_DRAIN_SECONDS="20")
    zygotes = [int(pid) for pid in children_of(worker.process.pid)]
    run_id = await quick.submit("leaves_early")
    await quick.told(run_id)
    worker.terminate()
    assert await worker.exited() == 0
    run = await quick.ended(run_id)
    assert (run.status, run.result, run.attempt) == (Status.SUCCEEDED, "left early", 1)
    await gone(*zygotes)


async def test_sigterm_ends_an_unwilling_agent_and_hands_its_run_back(quick, start, end_at_last):
    worker = await start("unwilling")
    run_id = await quick.submit("spins")
    pid = await quick.told(run_id)
    end_at_last(pid)
    worker.terminate()
    assert await worker.exited() == 0
    await gone(pid)  # at the latest with its zygote, if the worker had no time left to see it end
    # The worker has killed it. An agent whose grace is longer is left behind, and dies with the zygote.
    assert '"reason":"handed_back"' in worker.logged()
    run = await quick.queue.get(run_id)
    assert (run.status, run.attempt) == (Status.QUEUED, 0)


@pytest.mark.usefixtures("short_leases")
async def test_a_killed_worker_takes_its_attempts_along_and_another_finishes_them_once(
    quick, start, isolated, end_at_last
):
    worker = await start("victim")
    run_id = await quick.submit("once_elsewhere")
    pid = await quick.told(run_id)
    zygotes = [int(each) for each in children_of(worker.process.pid)]
    end_at_last(pid, *zygotes)
    await quick.worker(isolated, "other")
    worker.kill()
    await gone(pid, *zygotes)
    run = await quick.ended(run_id, 30)
    assert (run.status, run.result) == (Status.SUCCEEDED, 2)
    events = await quick.events(run_id)
    assert (events.count("begun"), events.count("succeeded"), events.count("reclaimed")) == (2, 1, 1)


@pytest.mark.usefixtures("short_leases")
async def test_a_frozen_workers_attempt_is_gone_before_it_begins_elsewhere(
    quick, start, isolated, end_at_last, tmp_path
):
    """Nobody is there to stop it; and it would go on, since it is not the process that was frozen."""
    ledger = tmp_path / "ledger"
    worker = await start("frozen")
    run_id = await quick.submit("marks", str(ledger))
    pid = await quick.told(run_id)
    end_at_last(pid)
    await quick.worker(isolated, "other")
    worker.freeze()
    again = await quick.told(run_id, times=2)
    end_at_last(again)
    assert procfs.start_time(pid) is None
    # It reports that it has begun before it writes: cancelled in between, it would have written nothing.
    await until(
        lambda: set(ledger.read_text().split()), lambda fences: len(fences) == 2, what="a second fence"
    )
    await quick.queue.cancel(run_id)
    worker.thaw()
    assert (await quick.ended(run_id, 30)).status is Status.CANCELLED
    fences = [int(line) for line in ledger.read_text().split()]
    assert fences == sorted(fences)
    assert len(set(fences)) == 2
    worker.process.send_signal(signal.SIGTERM)
    assert await worker.exited() == 0


@pytest.mark.usefixtures("short_leases")
async def test_an_agent_that_blocks_the_workers_loop_costs_no_process_its_life(quick, start):
    """The word that the lease is kept does not come from the event loop."""
    await start("blocked")
    run_id = await quick.submit("naps", 8.0)
    await quick.told(run_id)
    await quick.ended(await quick.submit("blocks", 7.0))
    run = await quick.ended(run_id)
    assert (run.status, run.result, run.fence) == (Status.SUCCEEDED, 1, 1)


@pytest.mark.usefixtures("short_leases")
async def test_an_agent_that_stays_in_c_for_longer_than_its_lease_keeps_it(quick, start):
    await start("patient")
    run = await quick.ended(await quick.submit("holds_the_lock", 7), 30)
    assert (run.status, run.result) == (Status.SUCCEEDED, 1)
