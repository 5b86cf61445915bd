"""Trimming: acked entries leave the lanes when their time is over, and no work ever does."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Status
from tests.support.runs.manual_worker import (
    Hand,
    lane_of,
    next_ms,
    open_queue,
    retention_of,
    settle_next,
    submit,
)


@pytest.fixture
async def keeping(redis) -> RunQueue:
    """A queue that keeps acked entries, but whose retention is over at once."""
    return await open_queue(redis, delete_after_ack=False, retention_seconds=0)


async def test_acked_entries_are_trimmed_when_their_time_is_over(keeping, redis):
    hand = await Hand(keeping, "w").join()
    for n in range(5):
        await submit(keeping, f"r{n}")
    await settle_next(hand, 5)
    await next_ms(keeping)
    assert await redis.xlen(keeping.keys.stream) == 5
    assert (await retention_of(keeping).run_once()).trimmed == 5
    assert await redis.xlen(keeping.keys.stream) == 0
    assert (await keeping.depth()).depth == 0


async def test_acked_entries_stay_until_their_time_is_over(redis):
    queue = await open_queue(redis, delete_after_ack=False, retention_seconds=3600)
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    await settle_next(hand)
    assert (await retention_of(queue).run_once()).trimmed == 0
    assert await redis.xlen(queue.keys.stream) == 1


async def test_nothing_is_trimmed_from_the_oldest_pending_entry_on(keeping):
    """Fails if trim.lua does not ask for the oldest pending entry: the run that r1's worker is doing loses its entry."""
    hand = await Hand(keeping, "w").join()
    for n in range(4):
        await submit(keeping, f"r{n}")
    runs = await hand.claim(4)
    for n in (0, 2, 3):
        await hand.settle(hand.lease(runs[n]))
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 1
    assert await lane_of(keeping, keeping.keys.stream) == ["r1", "r2", "r3"]
    assert await hand.hand_back(hand.lease(runs[1]))
    assert await lane_of(keeping, keeping.keys.returned) == ["r1"]


async def test_nothing_is_trimmed_that_no_worker_has_been_given(keeping):
    """Fails if trim.lua does not ask for the group's last delivered id: runs vanish that nobody ever saw."""
    hand = await Hand(keeping, "w").join()
    for n in range(4):
        await submit(keeping, f"r{n}")
    await settle_next(hand, 2)
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 2
    assert await lane_of(keeping, keeping.keys.stream) == ["r2", "r3"]
    assert [run.run_id for run in await hand.claim(5)] == ["r2", "r3"]


async def test_another_group_on_the_stream_keeps_what_it_has_not_read(keeping, redis):
    """Fails if only our own group is asked."""
    hand = await Hand(keeping, "w").join()
    await redis.xgroup_create(keeping.keys.stream, "audit", id="0")
    await submit(keeping, "r1")
    await settle_next(hand)
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 0


async def test_a_lane_whose_group_is_gone_is_left_alone(keeping, redis):
    await submit(keeping, "r1")
    await redis.xgroup_destroy(keeping.keys.stream, keeping.settings.group)
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 0
    assert await redis.xlen(keeping.keys.stream) == 1


async def test_what_was_kept_before_the_setting_changed_leaves_too(redis):
    """Else it would be counted against max_depth for ever, which is XLEN where acked entries are deleted."""
    keeping = await open_queue(redis, delete_after_ack=False, retention_seconds=0)
    hand = await Hand(keeping, "w").join()
    await submit(keeping, "r1")
    await settle_next(hand)
    deleting = await open_queue(redis, delete_after_ack=True, retention_seconds=0)
    assert (await deleting.depth()).depth == 0, "nobody has to do it"
    await next_ms(deleting)
    assert (await retention_of(deleting).run_once()).trimmed == 1
    assert await redis.xlen(deleting.keys.stream) == 0


async def test_a_long_lane_is_trimmed_in_bounded_calls(keeping, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.retention._TRIM_PAGE", 200)
    hand = await Hand(keeping, "w").join()
    for _ in range(1234):
        await redis.xadd(keeping.keys.stream, {"a": "b"})
    await redis.xreadgroup(keeping.settings.group, hand.name, streams={keeping.keys.stream: ">"}, count=2000)
    pending = await redis.xpending_range(keeping.keys.stream, keeping.settings.group, "-", "+", 2000)
    await redis.xack(keeping.keys.stream, keeping.settings.group, *(row["message_id"] for row in pending))
    await next_ms(keeping)
    retention = retention_of(keeping, pages=3)
    first = await retention.run_once()
    assert not first.whole
    assert 0 < first.trimmed <= 600  # whole nodes only, so a page may be a little less
    passes = 1
    while not (await retention.run_once()).whole:
        passes += 1
    assert passes >= 2
    assert await redis.xlen(keeping.keys.stream) == 0


async def test_depth_counts_what_waits_though_redis_lost_count(redis):
    """Deleting the entry that was delivered last makes `lag` nil. Fails if depth.lua takes nil for none."""
    queue = await open_queue(redis, delete_after_ack=False)
    hand = await Hand(queue, "w").join()
    for n in range(5):
        await submit(queue, f"r{n}")
    await settle_next(hand)
    await hand.settle(await hand.claim_one(), Status.DELAYED, 60_000)
    group = (await redis.xinfo_groups(queue.keys.stream))[0]
    assert group["lag"] is None
    assert (await queue.depth()).undelivered == 3


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ends=st.lists(st.booleans(), min_size=1, max_size=12), unread=st.integers(0, 5))
async def test_whatever_was_acked_in_whatever_order_no_work_is_trimmed(redis, ends, unread):
    await redis.flushall()
    queue = await open_queue(redis, delete_after_ack=False, retention_seconds=0)
    hand = await Hand(queue, "w").join()
    ids = [await submit(queue, f"r{n}") for n in range(len(ends) + unread)]
    runs = await hand.claim(len(ends))
    for run, done in zip(runs, ends, strict=True):
        if done:
            await hand.settle(hand.lease(run))
    await next_ms(queue)
    await retention_of(queue).run_once()
    left = await lane_of(queue, queue.keys.stream)
    held = [run.run_id for run, done in zip(runs, ends, strict=True) if not done]
    assert set(held) | set(ids[len(ends) :]) <= set(left)
    assert (await queue.depth()).depth == len(held) + unread
