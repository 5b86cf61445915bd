"""Expiry: an ended run leaves when its time is over, and not before everybody has what they need of it."""

from __future__ import annotations

import pytest

from holdfast.config import QueueSettings
from holdfast.redis.scripts import load
from holdfast.runs import expiry
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.expiry import Expiry
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Status
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import (
    Hand,
    next_ms,
    now_ms,
    open_queue,
    retention_of,
    settle_next,
    submit,
)


@pytest.fixture
async def queue(redis) -> RunQueue:
    return await open_queue(redis)


async def test_an_ended_run_leaves_when_its_time_is_over_and_nothing_of_it_stays(queue, redis):
    for n in range(3):
        await submit(queue, f"r{n}")
    await settle_next(await Hand(queue, "w").join(), 2)
    await time_is_over(queue, "r0")
    assert (await retention_of(queue).run_once(dry_run=True)).left == 1
    assert await redis.exists(queue.keys.run("r0"), queue.keys.feed("r0")) == 2
    assert (await retention_of(queue).run_once()).left == 1
    assert await redis.exists(queue.keys.run("r0"), queue.keys.feed("r0")) == 0
    assert await redis.zrange(queue.keys.runs, 0, -1) == [b"r1", b"r2"]
    assert await redis.zrange(queue.keys.ended, 0, -1) == [b"r1"]


async def test_a_live_run_under_the_id_of_an_ended_one_does_not_leave(queue, redis):
    """Somebody deleted the record by hand. Fails if the note alone decides."""
    await submit(queue, "r1")
    await settle_next(await Hand(queue, "w").join())
    await redis.delete(queue.keys.run("r1"))
    await submit(queue, "r1")
    await redis.zadd(queue.keys.ended, {"r1": 1})
    assert (await retention_of(queue).run_once()).left == 0
    assert (await queue.get("r1")).status is Status.QUEUED
    assert await redis.zcard(queue.keys.ended) == 0


async def test_more_than_a_page_leaves_in_one_pass(queue, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.expiry._PAGE", 3)
    for n in range(10):
        await submit(queue, f"r{n}")
    await settle_next(await Hand(queue, "w").join(), 10)
    await time_is_over(queue)
    assert (await retention_of(queue).run_once()).left == 10
    assert [key for key in await redis.keys("*") if b":run:" in key] == []


async def succeed_together(hand: Hand, count: int) -> None:
    """Let runs end in one call, as a busy worker does, and be archived."""
    runs = await hand.claim(count)
    batch = [Settlement(hand.lease(run), Status.SUCCEEDED, "result", b"1") for run in runs]
    assert await hand._settler._settle(batch) == [SettleReply.SETTLED] * count
    await hand.queue.redis.delete(hand.queue.keys.unarchived)


async def time_is_over(queue: RunQueue, *run_ids: str) -> None:
    """Make everything leave that is noted, or these runs: they ended as long ago as runs are kept."""
    redis, keys = queue.redis, queue.keys
    notes = run_ids or [note.decode() for note in await redis.zrange(keys.ended, 0, -1)]
    ended = int(await now_ms(redis)) - int(queue.settings.retention_seconds * 1000)
    for note in notes:
        if " " not in note:
            await redis.hset(keys.run(note), "finished_at", ended)
    await redis.zadd(keys.ended, dict.fromkeys(notes, 1))


async def test_those_that_succeeded_together_leave_together(queue, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.expiry._PAGE", 3)
    for n in range(12):
        await submit(queue, f"r{n}")
    hand = await Hand(queue, "w").join()
    await succeed_together(hand, 5)
    await succeed_together(hand, 5)
    await settle_next(hand)
    assert await redis.zcard(queue.keys.ended) == 3
    leaves = await redis.zscore(queue.keys.ended, (await redis.zrange(queue.keys.ended, 0, 0))[0])
    assert 0 < leaves - await now_ms(redis) <= 86_400_000
    swept = await retention_of(queue).run_once()
    assert (swept.left, swept.expiring, swept.forgotten) == (0, 0, 0), "they have their time to leave"
    await time_is_over(queue)
    assert (await retention_of(queue).run_once(dry_run=True)).left == 11
    assert (await retention_of(queue).run_once()).left == 11
    assert await redis.zrange(queue.keys.runs, 0, -1) == [b"r11"]
    assert [key for key in await redis.keys("*") if b":run:" in key and b":run:r11" not in key] == []
    assert await redis.zcard(queue.keys.ended) == 0


@pytest.mark.parametrize("count", [0, 2, 3, 7])
async def test_what_would_leave_is_counted_page_by_page(queue, redis, monkeypatch, count):
    """Fails if a page is counted twice, or if what has its time still is counted."""
    monkeypatch.setattr("holdfast.runs.expiry._NOTES", 3)
    later = await now_ms(redis) + 60_000
    notes = {"1700 a b c": 5, **{f"r{n}": 1 + n for n in range(count)}, "kept": later, "1701 d e": later}
    await redis.zadd(queue.keys.ended, notes)
    assert await Expiry(queue, Metrics()).run_once(dry_run=True) == count + 3
    assert await redis.zcard(queue.keys.ended) == len(notes)


async def test_a_count_never_reads_more_than_its_page_at_once(queue, redis):
    """Fails if one script counts all: Redis stands still for as long as a backlog is large."""
    await redis.zadd(queue.keys.ended, {f"r{n:04}": 1 for n in range(1000)})
    count = load("holdfast.runs", "expirable")
    assert await count(redis, [queue.keys.ended], [0, 10]) == [10, 10]
    assert await count(redis, [queue.keys.ended], [995, 10]) == [5, 5]
    await redis.config_resetstat()
    assert await Expiry(queue, Metrics()).run_once(dry_run=True) == 1000
    calls = (await redis.info("commandstats"))["cmdstat_zrange"]["calls"]
    assert calls == 1000 // expiry._NOTES + 1


async def test_of_those_that_succeeded_together_one_that_came_again_stays(queue, redis):
    """Somebody deleted records by hand. Fails if the first end's note is taken for the second's, or for a live run."""
    for name in "abc":
        await submit(queue, name)
    hand = await Hand(queue, "w").join()
    await succeed_together(hand, 3)
    await time_is_over(queue)
    await redis.delete(queue.keys.run("a"), queue.keys.run("b"))
    await next_ms(queue)
    await submit(queue, "a")
    await settle_next(hand)
    await submit(queue, "b")
    assert (await retention_of(queue).run_once()).left == 1
    assert (await queue.get("a")).status is Status.SUCCEEDED
    assert (await queue.get("b")).status is Status.QUEUED
    assert await redis.exists(queue.keys.run("c")) == 0
    assert await redis.zrange(queue.keys.ended, 0, -1) == [b"a"]


async def test_a_run_that_came_again_does_not_leave_by_the_note_of_its_first_end(queue, redis):
    """Somebody deleted its record by hand. Fails if a note that names one run counts for any end of it."""
    await submit(queue, "x")
    hand = await Hand(queue, "w").join()
    await settle_next(hand)
    await redis.delete(queue.keys.run("x"))
    for name in "xyz":
        await submit(queue, name)
    await succeed_together(hand, 3)
    await redis.zadd(queue.keys.ended, {"x": 1})
    assert (await retention_of(queue).run_once()).left == 0
    assert (await queue.get("x")).status is Status.SUCCEEDED
    together, alone = sorted(await redis.zrange(queue.keys.ended, 0, -1))
    assert alone == b"x"
    leaves = [await redis.zscore(queue.keys.ended, note) for note in (alone, together)]
    finished_ms = int(await redis.hget(queue.keys.run("x"), "finished_at"))
    assert leaves == [finished_ms + queue.settings.retention_seconds * 1000] * 2
    await redis.zadd(queue.keys.ended, {together: 1})
    await time_is_over(queue, "x")
    await retention_of(queue).run_once()
    assert await redis.exists(*map(queue.keys.run, "xyz")) == await redis.zcard(queue.keys.ended) == 0


async def test_of_those_that_succeeded_together_one_that_still_goes_outside_stays_alone(redis):
    queue = RunQueue(QueueSettings(), redis, outside=True)
    await queue.ensure()
    for name in "abc":
        await submit(queue, name)
    await succeed_together(await Hand(queue, "w").join(), 3)
    await redis.zrem(queue.keys.outbox, "a", "c")
    await time_is_over(queue)
    assert (await retention_of(queue).run_once()).left == 2
    assert (await queue.get("b")).status is Status.SUCCEEDED
    assert await redis.zrange(queue.keys.ended, 0, -1) == [b"b"]
    await redis.zrem(queue.keys.outbox, "b")
    await time_is_over(queue)
    assert (await retention_of(queue).run_once()).left == 1


async def test_a_succeeded_run_whose_note_is_gone_leaves_in_the_end(queue, redis):
    await submit(queue, "r1")
    await settle_next(await Hand(queue, "w").join())
    await redis.delete(queue.keys.ended)
    assert (await retention_of(queue).run_once()).expiring == 0, "it may be noted with others"
    await redis.hset(queue.keys.run("r1"), "finished_at", int(await now_ms(redis)) - 2 * 86_400_000 - 1)
    assert (await retention_of(queue).run_once()).expiring == 1
    assert await redis.zscore(queue.keys.ended, "r1") > 0


@pytest.mark.parametrize("place", ["outbox", "outbox:eventapi", "outbox:webhook", "outbox:push"])
async def test_an_ended_run_stays_until_its_events_have_reached_the_outside(redis, place):
    """Fails if the expiry does not look into the outbox."""
    queue = RunQueue(QueueSettings(), redis, outside=True)
    await queue.ensure()
    await submit(queue, "r1")
    await settle_next(await Hand(queue, "w").join())
    await redis.delete(queue.keys.outbox)
    await redis.zadd(queue.keys.outbox.removesuffix("outbox") + place, {"r1": 1})
    await time_is_over(queue)
    assert (await retention_of(queue).run_once()).left == 0
    assert await redis.exists(queue.keys.run("r1"), queue.keys.feed("r1")) == 2
    await redis.delete(queue.keys.outbox.removesuffix("outbox") + place)
    await time_is_over(queue)
    assert (await retention_of(queue).run_once()).left == 1
