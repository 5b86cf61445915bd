"""Workers that die, freeze or are told to go: no run is lost, none runs twice under one fence, and none waits long."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random

import pytest
from redis.asyncio import Redis

from holdfast.config import RedisSettings
from holdfast.runs.run import Status, Submission
from tests.support.runs.system import System, WorkerChild
from tests.support.runs.worker_processes import AGENTS, fleet_of
from tests.support.schedules.manual_scheduler import redis_now
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.chaos


async def begun(ledger, run_id: str, times: int = 1, seconds: float = PATIENCE_SECONDS):
    """Wait until a run has begun so many times; return those lines."""
    return await until(
        lambda: ledger.lines("begin", run_id), lambda lines: len(lines) >= times, seconds=seconds
    )


async def last_renewal(system: System) -> float:
    """When the lease of the one run that is held was renewed last, in ms by the clock of Redis."""
    queue = system.queue
    before = await redis_now(queue.redis)
    found = [
        await queue.redis.xpending_range(lane, queue.settings.group, "-", "+", 10)
        for lane in queue.keys.lanes
    ]
    (pending,) = itertools.chain.from_iterable(found)
    return before * 1000 - pending["time_since_delivered"]


async def test_a_dead_workers_run_is_reclaimed_once_and_soon(redis, redis_settings, ledger):
    ttl = 8.0
    async with System(redis_settings, slots=4, ttl=ttl) as system, fleet_of(system, ledger) as fleet:
        first = await fleet.start("first")
        run_id = await system.submit("held", None)
        await begun(ledger, run_id)
        await fleet.start("second")
        first.kill()
        renewed = await last_renewal(system)
        run = await system.ended(run_id)
        feed = await redis.xrange(system.queue.keys.feed(run_id))
        (reclaimed,) = [int(at.split(b"-")[0]) for at, fields in feed if fields[b"type"] == b"reclaimed"]
        # By stored times, which are whole milliseconds: after its lease, and before another one would be over.
        assert ttl - 0.01 <= (reclaimed - renewed) / 1000 < 2 * ttl
        assert (run.status, run.attempt, run.result) == (Status.SUCCEEDED, 2, 2)
        assert run.fence > ledger.lines("begin", run_id)[0].fence
        assert len(ledger.lines("begin", run_id)) == 2
        await system.nothing_left()


async def test_a_run_that_kills_its_workers_is_given_up_as_poison(redis, redis_settings, ledger, tmp_path):
    """Counted before execution: counted after it, the run would kill one worker after another for ever."""
    async with (
        # Not shorter: an attempt whose trust has ended before its first step is counted, and writes nothing down.
        System(redis_settings, slots=1, ttl=2.0) as system,
        fleet_of(system, ledger, MAX_ATTEMPTS="3") as fleet,
    ):
        run_id = await system.submit("killer")
        for number in range(4):
            # Not until it has joined: it may be dead before anybody has seen that.
            victim = fleet.launch(f"victim-{number}").process
            await until(
                functools.partial(system.queue.get, run_id),
                lambda run, victim=victim: run.status.ended or victim.poll() is not None,
            )
        run = await system.ended(run_id)
        assert (run.status, run.error.kind) == (Status.FAILED, "poison")
        assert len(ledger.lines("begin", run_id)) == 3
        assert (await system.queue.depth()).dead == 1


@pytest.mark.usefixtures("short_leases")
async def test_a_frozen_worker_that_wakes_up_changes_nothing(system, fleet, ledger):
    """SIGSTOP past the ttl, then SIGCONT: its lease is gone, its body ends, its result is refused."""
    first = await fleet.start("first")
    run_id = await system.submit("work", 8.0)
    await begun(ledger, run_id)
    first.freeze()
    await fleet.start("second")
    second_line = (await begun(ledger, run_id, times=2))[1]
    first.thaw()
    run = await system.ended(run_id)
    assert (run.status, run.result, run.fence) == (Status.SUCCEEDED, 2, second_line.fence)
    assert [line.fence for line in ledger.lines("end", run_id)] == [second_line.fence]
    assert (await system.events(run_id)).count("succeeded") == 1
    ledger.check_nothing_ran_twice_under_one_fence()


@pytest.mark.usefixtures("short_leases")
async def test_an_agent_that_blocks_its_worker_keeps_its_lease(system, fleet, ledger):
    await fleet.start("first")
    await fleet.start("second")
    run_id = await system.submit("blocking", 2 * system.settings.lease.ttl_seconds)
    run = await system.ended(run_id)
    assert (run.status, run.attempt) == (Status.SUCCEEDED, 1)
    assert len(ledger.lines("begin", run_id)) == 1


async def draining(system: System, worker: str) -> None:
    """Wait until a worker has said that it leaves."""
    state = functools.partial(system.queue.redis.hget, f"member:worker:{worker}", "state")
    await until(state, lambda found: found == b"draining", what=f"worker {worker} to drain")


async def test_sigterm_lets_runs_finish_and_exits_0(system, fleet, ledger, tmp_path):
    worker, gate = await fleet.start("first"), tmp_path / "gate"
    run_id = await system.submit("gated", str(gate))
    await begun(ledger, run_id)
    worker.terminate()
    await draining(system, "first")
    gate.touch()
    assert await worker.exited() == 0
    run = await system.queue.get(run_id)
    assert (run.status, run.attempt) == (Status.SUCCEEDED, 1)
    assert not await system.queue.redis.exists("member:worker:first")
    for lane in system.queue.keys.lanes:
        assert await system.queue.redis.xinfo_consumers(lane, system.queue.settings.group) == []


def waiting_for(worker, running: int = 0) -> list[dict]:
    """The lines in which a worker that leaves has said for how many runs it waits; for so many, if given."""
    lines = [json.loads(line) for line in worker.logged().splitlines(keepends=True) if line.endswith("\n")]
    said = [line for line in lines if line["event"] == "waiting for runs"]
    return [line for line in said if running in (0, line["running"])]


async def test_a_draining_worker_says_what_it_still_waits_for(redis, redis_settings, ledger, tmp_path):
    async with (
        System(redis_settings, slots=4, ttl=30.0, drain=600.0) as system,
        fleet_of(system, ledger, HOLDFAST_WORKER_PROGRESS_SECONDS="0.3") as fleet,
    ):
        worker = await fleet.start("first")
        gates = [tmp_path / "shorter", tmp_path / "longer"]
        shorter, longer = [await system.submit("gated", str(gate)) for gate in gates]
        await begun(ledger, shorter)
        await begun(ledger, longer)
        worker.terminate()
        for running, gate in zip((2, 1), gates, strict=True):
            await until(lambda running=running: waiting_for(worker, running))
            gate.touch()
        assert await worker.exited() == 0
        said = waiting_for(worker)
        assert [said[0]["running"], said[-1]["running"]] == [2, 1]
        left = [line["seconds_left"] for line in said]
        assert left == sorted(left, reverse=True)
        assert 500 < left[-1] < left[0] <= 600
        assert {line["name"] for line in said} == {"first"}
        progress = [(line["active_count"], line["completed"]) for line in (said[0], said[-1])]
        assert progress == [(2, 0), (1, 1)]
        elapsed = [line["elapsed_seconds"] for line in said]
        assert 0 < elapsed[0] <= elapsed[-1], "they count from the phase's beginning"
        for run_id in (shorter, longer):
            assert (await system.queue.get(run_id)).status is Status.SUCCEEDED


async def test_what_cannot_finish_is_handed_back_and_starts_elsewhere_at_once(redis, redis_settings, ledger):
    async with (
        System(redis_settings, slots=4, ttl=30.0, drain=0.5) as system,
        fleet_of(system, ledger) as fleet,
    ):
        first = await fleet.start("first")
        run_id = await system.submit("held", None)
        await begun(ledger, run_id)
        await fleet.start("second", HOLDFAST_DRAIN_SECONDS="10", HOLDFAST_QUEUE_BLOCK_MS="20000")
        first.terminate()
        again = (await begun(ledger, run_id, times=2))[1]
        feed = await redis.xrange(system.queue.keys.feed(run_id))
        handed_back = next(int(at.split(b"-")[0]) for at, f in feed if f[b"type"] == b"handed_back")
        # Some 8 ms (the bench tells); a machine under load gets more, but no blocking read or lease would fit in it.
        assert again.at * 1000 - handed_back < 10_000
        assert await first.exited() == 0
        run = await system.ended(run_id)
        assert (run.status, run.attempt) == (Status.SUCCEEDED, 1), "a hand-back is no failed attempt"


async def test_a_second_sigterm_hands_back_now(redis, redis_settings, ledger):
    async with (
        System(redis_settings, slots=4, ttl=30.0, drain=60.0) as system,
        fleet_of(system, ledger) as fleet,
    ):
        worker = await fleet.start("first")
        run_id = await system.submit("work", 120.0)
        await begun(ledger, run_id)
        worker.terminate()
        await draining(system, "first")
        assert worker.process.poll() is None
        for _ in range(3):  # also a third one, while it leaves
            worker.terminate()
        assert await worker.exited() == 0  # of the 60 s that it would wait
        run = await system.queue.get(run_id)
        assert (run.status, run.attempt) == (Status.QUEUED, 0)


@pytest.mark.parametrize("agent", ["stubborn", "threaded"])
async def test_agents_that_ignore_their_stop_do_not_keep_the_worker(redis, redis_settings, ledger, agent):
    async with (
        System(redis_settings, slots=4, ttl=30.0, drain=0.2) as system,
        fleet_of(system, ledger) as fleet,
    ):
        worker = await fleet.start("first")
        run_id = await system.submit(agent, 120.0)
        await begun(ledger, run_id)
        worker.terminate()
        assert await worker.exited() == 0
        run = await system.queue.get(run_id)
        assert (run.status, run.attempt) == (Status.QUEUED, 0)


async def test_an_idle_worker_leaves_at_once(redis, redis_settings, ledger):
    async with System(redis_settings, drain=60.0) as system, fleet_of(system, ledger) as fleet:
        worker = await fleet.start("idle")
        worker.terminate()
        assert await worker.exited(30) == 0  # of the 60 s that runs would have


async def test_a_second_worker_of_the_same_name_waits_until_the_first_is_gone(system, fleet, ledger):
    """Two of one name would return each other's runs when they leave."""
    first = await fleet.start("twin")
    second = WorkerChild(system.settings, AGENTS, "twin", CHAOS_LEDGER=str(ledger.path))
    try:
        await until(lambda: "worker name in use" in second.logged())
        assert (await system.ended(await system.submit("work", 0))).attempt == 1
        assert second.process.poll() is None
        first.terminate()
        assert await first.exited() == 0
        run_id = await system.submit("work", 0)
        assert (await system.ended(run_id)).status is Status.SUCCEEDED
    finally:
        second.close()


async def test_one_that_is_stopped_while_it_waits_for_its_name_takes_nothing_from_who_has_it(
    system, fleet, ledger, redis, tmp_path
):
    """Fails if it leaves as if it had joined: it handed back the other's runs, and struck it off the members."""
    await fleet.start("twin")
    gate = tmp_path / "gate"
    run_id = await system.submit("gated", str(gate))
    await begun(ledger, run_id)
    second = WorkerChild(system.settings, AGENTS, "twin", CHAOS_LEDGER=str(ledger.path))
    try:
        await until(lambda: "worker name in use" in second.logged())
        second.terminate()
        assert await second.exited() == 0
        assert "stopped before it joined" in second.logged()
        assert "worker ready" not in second.logged()
        assert await redis.exists("member:worker:twin")
        gate.touch()
        run = await system.ended(run_id)
        assert (run.status, run.attempt, run.fence) == (Status.SUCCEEDED, 1, 1)
    finally:
        second.close()


async def test_a_worker_that_wakes_up_without_its_name_takes_nothing_from_who_has_it(
    redis, redis_settings, ledger, tmp_path
):
    """Fails if it goes on under that name: it handed back, on leaving, what its namesake was doing."""
    async with (
        System(redis_settings, slots=4, ttl=10.0) as system,
        fleet_of(system, ledger, HEARTBEAT_INTERVAL="1s") as fleet,
    ):
        first, gate = await fleet.start("twin"), tmp_path / "gate"
        first.freeze()
        second = WorkerChild(system.settings, AGENTS, "twin", CHAOS_LEDGER=str(ledger.path), **fleet.environ)
        try:
            await until(lambda: "worker ready" in second.logged())
            run_id = await system.submit("gated", str(gate))
            await begun(ledger, run_id)
            first.thaw()
            assert await first.exited() == 1
            assert "worker name taken by another worker" in first.logged()
            assert await redis.exists("member:worker:twin")
            gate.touch()
            run = await system.ended(run_id)
            assert (run.status, run.attempt, run.fence) == (Status.SUCCEEDED, 1, 1)
            assert {line.pid for line in ledger.lines("begin")} == {second.process.pid}
        finally:
            second.close()


async def test_a_worker_leaves_without_the_threads_that_its_agents_left(system, fleet, ledger):
    """Fails if the interpreter waits for them: the worker was there until it was killed."""
    worker = await fleet.start("first")
    assert (await system.ended(await system.submit("littering", 60.0))).status is Status.SUCCEEDED
    worker.terminate()
    assert await worker.exited() == 0  # within half of the time that they sleep
    assert '"litter"' in worker.logged()


async def test_a_worker_outlives_a_password_that_is_changed(start_valkey, ledger, tmp_path):
    """Fails if it is taken for a wrong setting: every worker died at once, and lost what it did."""
    server, gate = start_valkey(append_only=False), tmp_path / "gate"
    async with (
        Redis.from_url(server.tcp_url) as root,
        System(RedisSettings(url=server.tcp_url), slots=4, ttl=20.0) as system,
        fleet_of(system, ledger) as fleet,
    ):
        worker = await fleet.start("first")
        run_id = await system.submit("gated", str(gate))
        await begun(ledger, run_id)
        await root.config_set("requirepass", "another")
        await root.execute_command("AUTH", "another")
        await root.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await until(lambda: "refuses our password" in worker.logged())
        await root.config_set("requirepass", "")
        gate.touch()
        run = await system.ended(run_id)
        assert (run.status, run.attempt) == (Status.SUCCEEDED, 1)
        assert worker.process.poll() is None


async def test_a_worker_takes_over_the_name_of_its_dead_predecessor(system, fleet, ledger):
    """Its record would stay for three minutes."""
    (await fleet.start("pod-0", HEARTBEAT_INTERVAL="60s")).kill()
    await fleet.start("pod-0")
    assert (await system.ended(await system.submit("work", 0))).status is Status.SUCCEEDED


async def test_many_runs_survive_workers_that_are_killed_at_random(redis, redis_settings, ledger):
    """The short form of ``holdfast chaos``: kill -9 in a loop while 200 runs go through."""
    async with (
        System(redis_settings, slots=8, ttl=1.0, max_attempts=50) as system,
        fleet_of(system, ledger, MAX_ATTEMPTS="50", WORKER_POD_MESSAGES_BATCH_SIZE="8") as fleet,
    ):
        tickets = await system.queue.submit_many([Submission(agent="work", input=0.1) for _ in range(200)])
        await fleet.start("w0")
        await fleet.start("w1")
        chance = random.Random(7)
        for number in range(2, 6):
            await asyncio.sleep(chance.uniform(0.2, 0.6))
            fleet.children[f"w{number - 2}"].kill()
            await fleet.start(f"w{number}")
        for ticket in tickets:
            assert (await system.ended(ticket.run_id, 40)).status is Status.SUCCEEDED
        ledger.check_nothing_ran_twice_under_one_fence()
        await system.nothing_left()
        for ticket in tickets:
            assert (await system.events(ticket.run_id)).count("succeeded") == 1
