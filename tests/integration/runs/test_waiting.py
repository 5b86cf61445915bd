"""Waiting for the ends of runs: shared connections, and no end is missed between a read and a blocked one."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from holdfast import Client, RunCancelled
from holdfast.errors import NotFound
from holdfast.events.hub import Hub
from holdfast.redis.command import command
from holdfast.runs import waiting
from holdfast.runs.run import Status
from holdfast.runs.waiting import EndWaiter
from tests.support.runs.manual_worker import Hand, open_queue, submit
from tests.support.waiting import until

WAITERS = 1000


async def test_a_thousand_waiters_share_three_connections(redis, redis_settings, monkeypatch):
    monkeypatch.setenv("REDIS_URL", redis_settings.url)
    before = await connections(redis)
    async with Client() as client:
        handles = await client.submit_many([{"agent": "echo", "input": n} for n in range(WAITERS)])
        sending = await connections(redis)
        results = [asyncio.create_task(handle.result()) for handle in handles]
        await until(lambda: blocked_feeds(redis), lambda feeds: feeds, what="the waiters to be blocked")
        blocked = await connections(redis)
        for handle in handles:
            await handle.cancel()
        ends = await asyncio.gather(*results, return_exceptions=True)
    assert {type(each) for each in ends} == {RunCancelled}
    assert sending - before <= 1
    assert blocked - sending <= 3


async def test_an_end_between_the_look_and_the_blocked_read_is_seen(redis, redis_settings, monkeypatch):
    """Fails if the newest event is read after the status, or in another call."""
    queue = await open_queue(redis)
    hand = await Hand(queue, "a").join()
    run_id = await submit(queue)
    look = waiting._read_states

    async def end_after_looking(*args):
        found = await look(*args)
        monkeypatch.setattr(waiting, "_read_states", look)
        assert await hand.settle(await hand.claim_one(), Status.SUCCEEDED)
        return found

    monkeypatch.setattr(waiting, "_read_states", end_after_looking)
    async with Hub(redis, redis_settings) as hub, asyncio.timeout(5):
        assert await EndWaiter(queue, hub).wait(run_id) is None
        ended = await EndWaiter(queue, hub).wait(run_id)
    assert ended is not None
    assert ended.status is Status.SUCCEEDED


async def test_a_replayed_run_is_waited_for_again(redis, redis_settings):
    """Its first end is in the feed, and is none: its status is read with the newest event."""
    queue = await open_queue(redis)
    hand = await Hand(queue, "a").join()
    run_id = await submit(queue)
    await hand.settle(await hand.claim_one(), Status.FAILED, "server")
    await queue.replay(run_id)
    async with Hub(redis, redis_settings) as hub:
        ending = asyncio.create_task(until(partial(EndWaiter(queue, hub).wait, run_id)))
        await hand.settle(await hand.claim_one(), Status.SUCCEEDED)
        assert (await ending).status is Status.SUCCEEDED


async def test_a_run_that_redis_does_not_have_is_not_found(redis, redis_settings):
    async with Hub(redis, redis_settings) as hub:
        with pytest.raises(NotFound):
            await EndWaiter(await open_queue(redis), hub).wait("nobody")


async def connections(redis) -> int:
    return len(await redis.client_list())


async def blocked_feeds(redis) -> bool:
    """Whether a reader waits and nothing else goes on."""
    found = await redis.client_list()
    blocked = [each for each in found if "b" in each["flags"]]
    waiting = int((await command(redis, "INFO", "clients"))["total_blocking_keys"]) if blocked else 0
    return waiting >= WAITERS
