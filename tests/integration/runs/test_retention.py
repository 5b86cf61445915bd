"""Retention: the index is kept true, and a run that got lost between two places is put back once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.config import QueueSettings
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.queue import RunQueue
from holdfast.runs.retention import Retention
from holdfast.runs.run import Priority, Status
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import (
    TTL_SECONDS,
    Hand,
    events,
    lane_of,
    next_ms,
    now_ms,
    open_queue,
    retention_of,
    submit,
)
from tests.support.waiting import until


@pytest.fixture
async def queue(redis) -> RunQueue:
    return await open_queue(redis)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


# -- the index


async def test_a_run_without_a_record_leaves_the_index_and_a_live_one_stays(queue, redis):
    for n in range(5):
        await submit(queue, f"r{n}")
    await redis.delete(*(queue.keys.run(f"r{n}") for n in (0, 2, 3)))
    swept = await retention_of(queue).run_once()
    assert (swept.forgotten, swept.whole) == (3, True)
    assert await redis.zrange(queue.keys.runs, 0, -1) == [b"r1", b"r4"]


async def test_a_pass_is_bounded_says_so_and_the_next_one_goes_on(queue, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.retention._PAGE", 3)
    for n in range(10):
        await submit(queue, f"r{n}")
        if n % 2:
            await redis.delete(queue.keys.run(f"r{n}"))
    retention = retention_of(queue, pages=2)
    passes = [await retention.run_once() for _ in range(2)]
    assert [swept.whole for swept in passes] == [False, True]
    assert sum(swept.forgotten for swept in passes) == 5
    assert await redis.zcard(queue.keys.runs) == 5


async def test_a_dry_run_changes_nothing(queue, redis):
    await submit(queue, "r1")
    await submit(queue, "r2")
    await redis.delete(queue.keys.run("r1"))
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    before = {key: await redis.dump(key) for key in await redis.keys("*")}
    swept = await retention_of(queue).run_once(dry_run=True)
    assert (swept.forgotten, swept.restored) == (1, ["r2"])
    assert {key: await redis.dump(key) for key in await redis.keys("*")} == before


# -- runs that are nowhere


async def test_a_waiting_run_whose_entry_was_deleted_is_queued_again(queue, redis):
    await submit(queue, "r1", priority=Priority.HIGH)
    await redis.xdel(queue.keys.high, (await queue.get("r1")).entry)
    await next_ms(queue)
    metrics = Metrics()
    retention = Retention(queue, metrics, ttl_seconds=0.0)
    assert (await retention.run_once(dry_run=True)).restored == ["r1"]
    assert (await retention.run_once()).restored == ["r1"]
    written = metrics.registry.get_sample_value("holdfast_events_appended_total", {"queue": queue.name})
    assert written == 1, "what it restored, and not what it would have"
    run = await queue.get("r1")
    assert (run.status, run.fence, run.input) == (Status.QUEUED, 1, {"n": 1})
    (claimed,) = await (await Hand(queue, "w").join()).claim()
    assert (claimed.run_id, claimed.fence, claimed.agent) == ("r1", 2, "echo")
    assert await events(queue, "r1") == ["submitted", "restored", "started"]


async def test_a_run_is_restored_once(queue, redis):
    await submit(queue, "r1")
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    passes = await asyncio.gather(*(retention_of(queue).run_once() for _ in range(4)))
    assert [swept.restored for swept in passes if swept.restored] == [["r1"]]
    assert await lane_of(queue, queue.keys.returned) == ["r1"]


async def test_a_run_whose_consumer_was_deleted_by_hand_is_queued_again(queue, redis):
    """What XGROUP DELCONSUMER destroys: the entry is still in the lane, but nobody will ever be given it."""
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    await hand.wake()
    await redis.xgroup_delconsumer(queue.keys.stream, queue.settings.group, "w")
    await next_ms(queue)
    assert (await retention_of(queue).run_once()).restored == ["r1"]
    depth = await queue.depth()
    assert (depth.undelivered, depth.pending) == (1, 0)
    assert await lane_of(queue, queue.keys.returned) == ["r1"]


@pytest.mark.parametrize("harm", ["deleted", "acked", "consumer deleted"])
async def test_a_running_run_that_lost_its_entry_starts_again_only_when_its_worker_has_let_go(
    queue, redis, harm
):
    """Fails if restore.lua queues it at once: two workers do it at the same time."""
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    lease = await hand.claim_one()
    lane, group, entry = queue.keys.stream, queue.settings.group, (await queue.get("r1")).entry
    if harm == "deleted":
        await redis.xdel(lane, entry)
        assert (
            await hand.renew(lease) == "kept"
        )  # the renewal that finds out, and makes Redis forget the entry
    elif harm == "acked":
        await redis.xack(lane, group, entry)
    else:
        await redis.xgroup_delconsumer(lane, group, "w")
    await next_ms(queue)
    before = int(await now_ms(redis))
    retention = retention_of(queue, ttl=TTL_SECONDS)

    async def is_restored() -> bool:
        swept = await retention.run_once()
        assert swept.restored or swept.young == 1
        return bool(swept.restored)

    await until(is_restored)
    run = await queue.get("r1")
    assert (run.status, run.fence, run.owner) == (Status.DELAYED, lease.fence + 1, "")
    assert round(run.due_at * 1000) >= before + TTL_SECONDS * 1000
    assert await hand.renew(lease) == "lost"
    assert await hand.settle(lease) is SettleReply.STALE
    assert (await queue.depth()).pending == 0
    await until(hand.promote)
    (again,) = await hand.claim()
    assert (again.run_id, again.attempt) == ("r1", 2)
    assert again.fence > lease.fence


async def test_a_run_whose_deleted_entry_is_still_renewed_is_left_to_its_worker(queue, redis):
    """Fails if restore.lua judges by the stream alone, without the pending list."""
    hand = await Hand(queue, "w").join()
    # An entry of 1970: old enough to be judged by a ttl that no machine is too slow for.
    fields = {"correlation_id": "r1", "message_data": "1", "agent_id": "echo"}
    entry = await redis.xadd(queue.keys.stream, fields, id="1-1")
    lease = await hand.claim_one()
    assert await hand.renew(lease) == "kept"
    await redis.xdel(queue.keys.stream, entry)
    swept = await retention_of(queue, ttl=30.0).run_once()
    assert (swept.restored, swept.young) == ([], 0)
    assert await hand.settle(lease) is SettleReply.SETTLED
    assert (await queue.get("r1")).status is Status.SUCCEEDED


async def test_a_fresh_entry_is_not_judged(queue, redis):
    await submit(queue, "r1")
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    swept = await retention_of(queue, ttl=60).run_once()
    assert (swept.restored, swept.young) == ([], 1)


async def test_a_delayed_run_that_left_the_delayed_set_waits_again_until_it_is_due(queue, redis):
    await submit(queue, "r1", delay_seconds=60)
    due = await redis.zscore(queue.keys.delayed, "r1")
    await redis.delete(queue.keys.delayed)
    assert (await retention_of(queue).run_once()).restored == ["r1"]
    assert await redis.zscore(queue.keys.delayed, "r1") == due


async def test_a_cancelled_run_whose_entry_is_gone_gets_its_time_to_leave(queue, redis):
    await submit(queue, "r1")
    await queue.cancel("r1")
    assert (
        await retention_of(queue).run_once()
    ).expiring == 0  # a worker will drop the entry and note the end
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    assert (await retention_of(queue).run_once()).expiring == 1
    assert await redis.zscore(queue.keys.ended, "r1") > 0


async def test_a_state_we_do_not_know_is_left_alone(queue, redis):
    """A newer version's run, say one that waits for a person. Fails if everything not live counts as ended."""
    await submit(queue, "r1")
    await redis.hset(queue.keys.run("r1"), mapping={"status": "interrupted", "entry": ""})
    swept = await retention_of(queue).run_once()
    assert (swept.restored, swept.expiring) == ([], 0)
    assert await redis.zscore(queue.keys.ended, "r1") is None


MOVES = ("claim", "hand_back", "settle", "retry", "promote", "reclaim", "wake", "cancel")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.sampled_from(MOVES), max_size=10))
async def test_a_run_that_is_somewhere_is_never_restored_whatever_comes_between(redis, moves):
    """The pass between any two steps of a worker. Fails if restore.lua takes a claimed entry for a lost one."""
    await redis.flushall()
    queue = await open_queue(redis)
    hand, retention = await Hand(queue, "w").join(), retention_of(queue)
    await submit(queue, "r1")
    lease, woken = None, []
    for move in moves:
        match move:
            case "claim":
                for run in await hand.claim(1, woken):
                    lease = hand.lease(run)
                woken = []
            case "hand_back" if lease:
                await hand.hand_back(lease)
            case "settle" if lease:
                await hand.settle(lease)
            case "retry" if lease:
                await hand.settle(lease, Status.DELAYED)
            case "promote":
                await hand.promote()
            case "reclaim":
                await hand.reclaim_all()
            case "wake":
                woken += await hand.wake()
            case "cancel" if not (await queue.get("r1")).status.ended:
                await queue.cancel("r1")
        assert (await retention.run_once()).restored == []
    assert (await queue.depth()).depth <= 1


async def test_a_pass_while_a_worker_claims_does_not_double_a_run(queue, redis):
    """Many claims and many passes at once: every run is claimed once. Fails with the same mistake."""
    hands = [await Hand(queue, f"w{n}").join() for n in range(4)]
    for n in range(200):
        await submit(queue, f"r{n}")
    await next_ms(queue)
    claimed: list[str] = []

    async def claim_all(hand: Hand) -> None:
        while runs := await hand.claim(3):
            claimed.extend(run.run_id for run in runs)

    async def sweep() -> list[str]:
        return [run for _ in range(20) for run in (await retention_of(queue).run_once()).restored]

    found = await asyncio.gather(sweep(), sweep(), *(claim_all(hand) for hand in hands))
    assert found[:2] == [[], []]
    assert sorted(claimed) == sorted(f"r{n}" for n in range(200))


async def test_what_was_done_is_counted(queue, redis, metrics):
    await submit(queue, "r1")
    await redis.delete(queue.keys.run("r1"))
    await Retention(queue, metrics, ttl_seconds=1).run_once()
    labels = {"queue": queue.name, "kind": "index"}
    assert metrics.registry.get_sample_value("holdfast_retention_removed_total", labels) == 1


async def test_a_queue_that_does_not_exist_is_clean(redis):
    queue = RunQueue(QueueSettings(name="nowhere"), redis)
    swept = await retention_of(queue).run_once()
    assert (swept.forgotten, swept.trimmed, swept.restored, swept.whole) == (0, 0, [], True)
    assert await redis.keys("*") == []
