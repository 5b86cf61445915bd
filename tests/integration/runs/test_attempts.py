"""Attempts: each is counted when it begins. The first is not written into the record, and yet everybody sees it."""

from __future__ import annotations

import pytest

from holdfast.runs.archive import archived_run
from holdfast.runs.record import Record
from holdfast.runs.run import Status
from tests.support.runs.manual_worker import Hand, next_ms, open_queue, retention_of, submit
from tests.support.waiting import until


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


@pytest.fixture
async def hand(queue):
    return await Hand(queue, "w").join()


@pytest.mark.parametrize(
    ("fields", "attempt"),
    [
        ({}, 0),
        ({b"fence": b"0"}, 0),
        ({b"fence": b"1"}, 1),
        ({b"fence": b"3"}, 1),
        ({b"fence": b"2", b"attempt": b"0"}, 0),
        ({b"fence": b"2", b"attempt": b"2"}, 2),
        ({b"fence": b"2", b"attempt": b"many"}, 1),
        ({b"fence": b"nan"}, 0),
    ],
)
def test_what_has_begun_has_had_an_attempt(fields, attempt):
    assert Record(fields).attempt == attempt


async def seen(queue, run_id: str) -> set[int]:
    """The attempt as one who asks for the run sees it, one who lists runs, and the archive."""
    record = await queue.redis.hgetall(queue.keys.run(run_id))
    (listed,) = [run for run in (await queue.list()).runs if run.id == run_id]
    return {
        (await queue.get(run_id)).attempt,
        listed.attempt,
        archived_run(run_id, queue.name, record).attempt,
    }


async def test_an_attempt_that_died_counts(queue, hand):
    await submit(queue, "r")
    assert await seen(queue, "r") == {0}
    (first,) = await hand.claim()
    assert await seen(queue, "r") == {first.attempt} == {1}
    assert not await queue.redis.hexists(queue.keys.run("r"), "attempt")
    assert await hand.reclaim_all() == ["r"]
    assert await seen(queue, "r") == {1}
    (second,) = await hand.claim()
    assert (second.attempt, second.fence) == (2, 3)
    assert await seen(queue, "r") == {2}


async def test_an_attempt_that_was_handed_back_does_not(queue, hand):
    await submit(queue, "r")
    await hand.hand_back(await hand.claim_one())
    assert await seen(queue, "r") == {0}
    (again,) = await hand.claim()
    assert (again.attempt, again.fence) == (1, 3)


async def test_what_comes_back_after_its_first_attempt_is_served_first(queue, hand):
    await submit(queue, "r")
    await hand.settle(await hand.claim_one(), Status.DELAYED, 0)
    await until(hand.promote)
    assert (await queue.get("r")).lane == queue.keys.returned
    (again,) = await hand.claim()
    assert again.attempt == 2


async def test_what_was_lost_before_it_began_has_had_none(queue, hand):
    await submit(queue, "r")
    await queue.redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    assert (await retention_of(queue).run_once()).restored == ["r"]
    assert await seen(queue, "r") == {0}
    (first,) = await hand.claim()
    assert first.attempt == 1


async def test_a_run_that_was_cancelled_before_it_began_has_its_first_attempt_after_a_retry(queue, hand):
    """Fails if the retry writes an attempt of 0, which stays: the run would begin once too often."""
    await submit(queue, "r", delay_seconds=3600)
    assert await queue.cancel("r") == "cancelled"
    await queue.replay("r")
    assert await seen(queue, "r") == {0}
    (first,) = await hand.claim()
    assert await seen(queue, "r") == {first.attempt} == {1}
    assert await hand.reclaim_all() == ["r"]
    (second,) = await hand.claim()
    assert await seen(queue, "r") == {second.attempt} == {2}
