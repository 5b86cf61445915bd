"""Ghost consumers: found by their missing heartbeat, removed with nothing lost; who lives is left alone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App
from holdfast.config import JanitorSettings, QueueSettings
from holdfast.leases.streams import Eviction
from holdfast.redis.client import connect
from holdfast.redis.members import Member, Members
from holdfast.runs.cleanup import Cleanup
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Priority, Status
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import TTL_SECONDS, Hand, events, leases_end, open_queue, submit
from tests.support.runs.system import System
from tests.support.waiting import stays, until

MEMBERS = Members(prefix="", heartbeat_seconds=10)


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def cleanup_of(queue, metrics, *, idle: float = 0.0, ttl: float = TTL_SECONDS) -> Cleanup:
    return Cleanup(queue, MEMBERS, JanitorSettings(idle_threshold_seconds=idle), metrics, ttl_seconds=ttl)


async def names(queue) -> set[str]:
    return {consumer.name for consumer in await cleanup_of(queue, Metrics()).consumers()}


async def test_a_ghost_is_removed_and_its_runs_go_back_to_the_queue(queue, metrics):
    ghost = await Hand(queue, "ghost").join()
    for n, priority in enumerate(Priority):
        await submit(queue, f"r{n}", priority=priority)
    assert len(await ghost.claim(3)) == 3
    await leases_end(queue)
    cleaned = await cleanup_of(queue, metrics).run_once()
    assert (cleaned.found, cleaned.removed, cleaned.busy, cleaned.released) == (["ghost"], ["ghost"], [], 3)
    assert await names(queue) == set()
    depth = await queue.depth()
    assert (depth.undelivered, depth.pending) == (3, 0)
    next_one = await Hand(queue, "next").join()
    assert [run.fence for run in await next_one.claim(5)] == [3, 3, 3]
    assert await events(queue, "r0") == ["submitted", "started", "reclaimed", "started"]


async def test_deleting_the_consumer_first_would_destroy_what_it_holds(queue, redis):
    """Shows the mistake itself: after a bare XGROUP DELCONSUMER no read and no claim returns the entry.

    The test above fails if stream_evict.lua deletes before it moves.
    """
    ghost = await Hand(queue, "ghost").join()
    await submit(queue, "r1")
    await ghost.claim()
    await redis.xgroup_delconsumer(queue.keys.stream, queue.settings.group, "ghost")
    next_one = await Hand(queue, "next").join()
    assert await next_one.reclaim_all() == []
    assert await next_one.claim(5) == []


async def test_a_ghost_that_read_an_entry_but_never_claimed_it_gives_it_back(queue, metrics):
    ghost = await Hand(queue, "ghost").join()
    await submit(queue, "r1")
    assert await ghost.wake()
    await leases_end(queue)
    assert (await cleanup_of(queue, metrics).run_once()).released == 1
    (run,) = await (await Hand(queue, "next").join()).claim()
    assert (run.run_id, run.attempt) == ("r1", 1)
    assert await events(queue, "r1") == ["submitted", "started"]
    labels = {"queue": queue.name}
    assert metrics.registry.get_sample_value("holdfast_events_appended_total", labels) == 0


async def test_a_consumer_with_a_heartbeat_is_left_alone_however_idle(queue, metrics, redis):
    """Fails if the heartbeat is not asked for: on Redis 7.0 a reader that waits looks idle."""
    await Hand(queue, "alive").join()
    await MEMBERS.announce(redis, Member("worker", "alive", {}))
    cleaned = await cleanup_of(queue, metrics).run_once()
    assert cleaned.ghosts == []
    assert await names(queue) == {"alive"}


async def test_a_process_of_another_kind_does_not_keep_a_consumer_alive(queue, metrics, redis):
    await Hand(queue, "x").join()
    await MEMBERS.announce(redis, Member("janitor", "x", {}))
    assert (await cleanup_of(queue, metrics).run_once()).removed == ["x"]


async def test_a_consumer_whose_leases_are_renewed_is_not_removed(queue, metrics, redis):
    """Its heartbeat is late, but its keeper renews. Fails if stream_evict.lua does not look at the entries' idle time."""
    busy = await Hand(queue, "busy").join()
    await submit(queue, "r1")
    await submit(queue, "r2")
    first, second = (busy.lease(run) for run in await busy.claim(2))
    # The first was not renewed for longer than the ttl, which is long: a slow machine ends no lease here.
    entry = (await queue.get("r1")).entry
    await redis.xclaim(queue.keys.stream, queue.settings.group, "busy", 0, [entry], idle=60_000)
    assert await busy.renew(second) == "kept"
    cleaned = await cleanup_of(queue, metrics, ttl=30.0).run_once()
    assert (cleaned.found, cleaned.removed, cleaned.busy, cleaned.released) == (["busy"], [], ["busy"], 0)
    assert await names(queue) == {"busy"}
    assert await busy.settle(first) is SettleReply.SETTLED
    assert await busy.settle(second) is SettleReply.SETTLED


async def test_a_worker_whose_event_loop_hangs_keeps_its_consumer_and_its_run(redis, redis_settings):
    """No heartbeat is sent meanwhile, but the keeper has its own thread. Fails with a rule of heartbeats alone."""
    app, hangs, looked = App("test"), threading.Event(), threading.Event()

    @app.agent
    async def blocker(payload):
        hangs.set()
        looked.wait(60)
        return "done"

    def look_meanwhile() -> list[list[str]]:
        hangs.wait(60)
        try:
            return asyncio.run(look_for_longer_than_the_ttl(system.settings))
        finally:
            looked.set()

    # Renewed every second: the keeper may be without CPU for three, and nobody has to look for long.
    async with System(redis_settings, ttl=4.0, heartbeat=0.1) as system:
        await system.worker(app, "hangs")
        looking = asyncio.create_task(asyncio.to_thread(look_meanwhile))
        run_id = await system.submit("blocker")
        seen = await looking
        assert len(seen) > 1
        assert all(busy == ["hangs"] for busy in seen)
        run = await system.ended(run_id)
        assert (run.status, run.fence) == (Status.SUCCEEDED, 1)


async def look_for_longer_than_the_ttl(settings) -> list[list[str]]:
    """Clean again and again, from the moment the heartbeat is gone; return who was found busy each time."""
    client = connect(settings.redis)
    members = Members(prefix="", heartbeat_seconds=settings.worker.heartbeat_seconds)
    janitor, ttl = JanitorSettings(idle_threshold_seconds=0), settings.lease.ttl_seconds
    cleanup = Cleanup(RunQueue(settings.queue, client), members, janitor, Metrics(), ttl_seconds=ttl)
    await until(lambda: members.alive(client, "worker", "hangs"), lambda found: not found)
    seen: list[list[str]] = []

    async def cleaned() -> bool:
        seen.append((await cleanup.run_once()).busy)
        return True

    await stays(cleaned, seconds=1.25 * ttl)
    await client.aclose()
    return seen


async def test_a_consumer_that_was_not_idle_for_long_enough_waits(queue, metrics):
    await Hand(queue, "young").join()
    cleaned = await cleanup_of(queue, metrics, idle=60).run_once()
    assert (cleaned.found, cleaned.waiting) == ([], ["young"])
    assert await names(queue) == {"young"}


async def test_a_consumer_seen_lately_on_one_lane_is_not_idle(queue, metrics, redis):
    """Fails if each lane is judged for itself: three of four lanes have not seen it."""
    hand = await Hand(queue, "w").join()
    idle = 5.0  # so long may the machine take between the read and the sweep
    sweep = cleanup_of(queue, metrics, idle=idle, ttl=0.0)
    await until(sweep.consumers, lambda found: found[0].idle_seconds >= idle)
    await submit(queue, "r1", priority=Priority.LOW)
    group = queue.settings.group
    assert await redis.xreadgroup(group, "w", streams={queue.keys.low: ">"}, count=1)
    cleaned = await sweep.run_once()
    assert (cleaned.found, cleaned.waiting) == ([], ["w"])
    assert hand.name in await names(queue)


async def test_a_dry_run_says_what_it_would_do_and_changes_nothing(queue, metrics, redis):
    ghost = await Hand(queue, "ghost").join()
    await submit(queue, "r1")
    lease = await ghost.claim_one()
    await leases_end(queue)
    before = {key: await redis.dump(key) for key in await redis.keys("*")}
    cleaned = await cleanup_of(queue, metrics).run_once(dry_run=True)
    assert (cleaned.found, cleaned.removed, cleaned.would_remove) == (["ghost"], [], ["ghost"])
    assert cleaned.released == 1
    assert {key: await redis.dump(key) for key in await redis.keys("*")} == before
    assert metrics.registry.get_sample_value("holdfast_entries_released_total", {"queue": queue.name}) is None
    assert await ghost.settle(lease) is SettleReply.SETTLED


async def test_a_dry_run_on_a_queue_that_does_not_exist_creates_nothing(redis, metrics):
    queue = RunQueue(QueueSettings(name="nowhere"), redis)
    assert (await cleanup_of(queue, metrics).run_once(dry_run=True)).ghosts == []
    assert (await cleanup_of(queue, metrics).run_once()).ghosts == []
    assert await redis.keys("*") == []


async def test_a_ghost_is_removed_though_a_lane_was_lost(queue, metrics, redis):
    await Hand(queue, "ghost").join()
    await redis.delete(queue.keys.high)
    assert (await cleanup_of(queue, metrics).run_once(dry_run=True)).would_remove == ["ghost"]
    assert (await cleanup_of(queue, metrics).run_once()).removed == ["ghost"]


async def test_the_summary_of_a_dry_run_claims_nothing_that_was_not_done(queue, metrics, log_lines):
    await Hand(queue, "ghost").join()
    cleanup = cleanup_of(queue, metrics)
    for _ in range(3):
        await cleanup.run_once(dry_run=True)
    (summary, *_) = [line for line in log_lines() if line["event"] == "consumer cleanup complete (dry run)"]
    assert (summary["found"], summary["would_remove"], summary["would_release"]) == (1, 1, 0)
    assert "removed" not in summary
    found = metrics.registry.get_sample_value("holdfast_ghost_consumers_found_total", {"queue": queue.name})
    assert found == 1, "a ghost that stays is one ghost"


async def test_what_was_done_is_counted(queue, metrics):
    ghost = await Hand(queue, "ghost").join()
    await submit(queue, "r1")
    await ghost.claim()
    await leases_end(queue)
    await cleanup_of(queue, metrics).run_once()
    labels = {"queue": queue.name}
    for name in ("ghost_consumers_found", "ghost_consumers_removed", "entries_released", "events_appended"):
        assert metrics.registry.get_sample_value(f"holdfast_{name}_total", labels) == 1, name


async def test_a_removed_ghost_that_comes_back_to_life_can_settle_nothing_and_work_on(queue, metrics):
    """A process that was frozen for longer than its leases. What it held runs elsewhere, under a higher fence."""
    frozen = await Hand(queue, "frozen").join()
    await submit(queue, "r1")
    lease = await frozen.claim_one()
    await leases_end(queue)
    assert (await cleanup_of(queue, metrics).run_once()).removed == ["frozen"]
    assert await frozen.renew(lease) == "lost"
    assert await frozen.settle(lease) is SettleReply.STALE
    assert (await frozen.claim_one()).fence > lease.fence


async def test_many_entries_are_released_in_one_call(queue):
    ghost = await Hand(queue, "ghost").join()
    for n in range(1200):
        await queue.redis.xadd(queue.keys.stream, {"correlation_id": f"f{n}", "message_data": "1"})
    await ghost.claim(1200)
    evicted = await ghost.evict("ghost")
    assert (evicted.how, evicted.entries) == (Eviction.GONE, 1200)
    assert (await queue.depth()).undelivered == 1200
