from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from holdfast.errors import InputError, NotFound, RedisUnavailable
from holdfast.events import feed as feed_module
from holdfast.events.event import FINAL, Event
from holdfast.events.feed import NOW, Feed
from holdfast.redis.client import connect
from holdfast.runs.run import ENDED
from tests.support.outages import outage_lines
from tests.support.runs.system import System
from tests.support.waiting import PATIENCE_SECONDS, until


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings) as system:
        yield system


@pytest.fixture
def feed(system):
    return feed_of(system)


def feed_of(system):
    return Feed(system.queue.keys, system.queue.redis, system.settings.redis)


async def say(system, run_id, kind, data=b"{}"):
    await system.queue.redis.xadd(system.queue.keys.feed(run_id), {"type": kind, "data": data})


async def blocked(system, count):
    """Wait until so many followers wait for what comes."""
    await until(lambda: system.queue.redis.info("clients"), lambda found: found["blocked_clients"] >= count)


async def types(events):
    return [event.type async for event in events]


class Follower:
    """Follows in a task; ``saw(type)`` waits for an event, ``ended()`` for the end."""

    def __init__(self, events):
        self.seen: list[Event] = []
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._follow(events))

    async def _follow(self, events):
        async for event in events:
            self.seen.append(event)
            async with self._more:
                self._more.notify_all()

    async def saw(self, kind):
        async with asyncio.timeout(PATIENCE_SECONDS), self._more:
            await self._more.wait_for(lambda: kind in self.types)

    async def ended(self):
        await asyncio.wait_for(self.task, PATIENCE_SECONDS)
        return self.types

    @property
    def types(self):
        return [event.type for event in self.seen]


def test_the_final_events_are_the_statuses_that_end_a_run():
    assert {status.value for status in ENDED} == FINAL


async def test_events_are_read_in_order_with_their_data_and_time(system, feed):
    run_id = await system.submit("echo")
    await say(system, run_id, "thinking", b'{"depth":3}')
    events = await feed.read(run_id)
    assert [(event.type, event.data) for event in events] == [("submitted", {}), ("thinking", {"depth": 3})]
    assert events[0].at == int(events[0].id.partition("-")[0]) / 1000
    assert await feed.read(run_id, after=events[0].id) == events[1:]
    assert await feed.read(run_id, limit=1) == events[:1]


async def test_data_that_is_not_json_is_shown_as_text(system, feed):
    run_id = await system.submit("echo")
    await say(system, run_id, "odd", b"\xffno json")
    assert (await feed.read(run_id))[-1].data == "\ufffdno json"


async def test_a_follower_sees_what_was_and_what_comes_and_ends_with_the_run(system, feed):
    run_id = await system.submit("echo")
    follower = Follower(feed.follow(run_id))
    await follower.saw("submitted")
    await say(system, run_id, "thinking")
    await follower.saw("thinking")
    await system.queue.cancel(run_id)
    assert await follower.ended() == ["submitted", "thinking", "cancelled"]


async def test_a_follower_can_begin_after_an_event_or_now(system, feed):
    run_id = await system.submit("echo")
    await say(system, run_id, "thinking")
    first = (await feed.read(run_id))[0]
    later, now = Follower(feed.follow(run_id, first.id)), Follower(feed.follow(run_id, NOW))
    await later.saw("thinking")
    await blocked(system, 2)
    await system.queue.cancel(run_id)
    assert await later.ended() == ["thinking", "cancelled"]
    assert await now.ended() == ["cancelled"]


async def test_following_an_ended_run_ends_at_once(system, feed):
    run_id = await system.submit("echo")
    await system.queue.cancel(run_id)
    last = (await feed.read(run_id))[-1].id
    assert await types(feed.follow(run_id)) == ["submitted", "cancelled"]
    assert await types(feed.follow(run_id, last)) == []
    assert await types(feed.follow(run_id, NOW)) == []


async def test_a_follower_that_starts_after_a_replay_goes_past_the_old_end(system, feed):
    run_id = await system.submit("echo")
    await system.queue.cancel(run_id)
    await system.queue.replay(run_id)
    follower = Follower(feed.follow(run_id))
    await follower.saw("replayed")
    await system.queue.cancel(run_id)
    assert await follower.ended() == ["submitted", "cancelled", "replayed", "cancelled"]


async def test_a_follower_at_the_old_end_of_a_replayed_run_goes_on(system, feed):
    run_id = await system.submit("echo")
    await system.queue.cancel(run_id)
    last = (await feed.read(run_id))[-1].id
    await system.queue.replay(run_id)
    follower = Follower(feed.follow(run_id, last))
    await follower.saw("replayed")
    await system.queue.cancel(run_id)
    assert await follower.ended() == ["replayed", "cancelled"]


async def test_a_replay_that_ends_while_a_follower_reads_the_old_end_is_not_missed(system, feed):
    run_id = await system.submit("echo")
    await system.queue.cancel(run_id)
    events = feed.follow(run_id)
    assert [(await anext(events)).type, (await anext(events)).type] == ["submitted", "cancelled"]
    await system.queue.replay(run_id)
    await system.queue.cancel(run_id)
    assert await types(events) == ["replayed", "cancelled"]


async def test_a_word_of_the_agents_own_is_not_taken_for_the_end(system, feed):
    run_id = await system.submit("echo")
    follower = Follower(feed.follow(run_id))
    await say(system, run_id, "failed", b'"my first idea"')
    await follower.saw("failed")
    await say(system, run_id, "thinking")
    await follower.saw("thinking")
    await system.queue.cancel(run_id)
    assert await follower.ended() == ["submitted", "failed", "thinking", "cancelled"]


async def test_a_long_feed_is_followed_page_by_page(system, feed):
    run_id = await system.submit("echo")
    for number in range(450):
        await say(system, run_id, "chunk", str(number).encode())
    await system.queue.cancel(run_id)
    events = [event async for event in feed.follow(run_id)]
    assert [event.data for event in events[1:-1]] == list(range(450))


async def test_large_events_are_followed_a_few_at_a_time(system, feed, monkeypatch):
    brought: list[int] = []
    following = feed._next

    async def spied(reader, run_id, after):
        events = await following(reader, run_id, after)
        brought.append(len(events))
        return events

    monkeypatch.setattr(feed, "_next", spied)
    run_id = await system.submit("nobody")
    follower = Follower(feed.follow(run_id))
    await follower.saw("submitted")
    await blocked(system, 1)
    async with system.queue.redis.pipeline(transaction=True) as pipeline:
        for number in range(20):
            data = msgspec.json.encode([number, "x" * (1 << 20)])
            pipeline.xadd(system.queue.keys.feed(run_id), {"type": "chunk", "data": data})
        await pipeline.execute()
    await system.queue.cancel(run_id, "that is enough")
    await follower.ended()
    assert [event.data[0] for event in follower.seen[1:-1]] == list(range(20))
    assert max(brought) <= 2


async def test_a_follower_survives_a_redis_that_restarts(restartable_valkey, redis_settings):
    settings = msgspec.structs.replace(redis_settings, url=restartable_valkey.url)
    async with System(settings) as system:
        run_id = await system.submit("echo")
        follower = Follower(feed_of(system).follow(run_id))
        await follower.saw("submitted")
        await asyncio.to_thread(restartable_valkey.restart)
        await say(system, run_id, "thinking")
        await follower.saw("thinking")
        await system.queue.cancel(run_id)
        assert await follower.ended() == ["submitted", "thinking", "cancelled"]


async def test_a_follower_survives_a_connection_that_breaks(system, redis, patient_settings, fault_proxy):
    client = connect(patient_settings)
    run_id = await system.submit("echo")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.aclose)
        follower = Follower(Feed(system.queue.keys, client, patient_settings).follow(run_id))
        await follower.saw("submitted")
        fault_proxy.reset()
        await say(system, run_id, "thinking")
        await follower.saw("thinking")
        await system.queue.cancel(run_id)
        assert await follower.ended() == ["submitted", "thinking", "cancelled"]


async def test_a_follower_survives_a_connection_that_hangs(
    system, patient_settings, proxied_settings, fault_proxy, monkeypatch, log_lines
):
    """Only the connection that it waits on has short timeouts: that one is given up, and another one is opened."""
    monkeypatch.setattr(feed_module, "_BLOCK_SECONDS", 1.0)
    client = connect(patient_settings)
    run_id = await system.submit("echo")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.aclose)
        follower = Follower(Feed(system.queue.keys, client, proxied_settings).follow(run_id))
        await follower.saw("submitted")
        await blocked(system, 1)
        fault_proxy.stall("replies")
        await say(system, run_id, "thinking")
        await until(lambda: outage_lines(log_lines()))
        assert follower.types == ["submitted"]
        fault_proxy.heal()
        await follower.saw("thinking")
        await system.queue.cancel(run_id)
        assert await follower.ended() == ["submitted", "thinking", "cancelled"]


async def test_a_redis_that_is_away_at_the_start_is_said_at_once(system, redis_settings):
    nowhere = msgspec.structs.replace(redis_settings, url="unix:///tmp/holdfast-nobody.sock")
    client = connect(nowhere)
    with pytest.raises(RedisUnavailable, match="holdfast-nobody"):
        await types(Feed(system.queue.keys, client, nowhere).follow("any"))
    await client.aclose()


async def test_a_run_that_nobody_knows_has_no_feed(feed):
    assert await feed.read("nobody") == []
    with pytest.raises(NotFound, match="nobody"):
        await types(feed.follow("nobody"))
    with pytest.raises(NotFound, match="nobody"):
        await types(feed.follow("nobody", NOW))


async def test_a_feed_that_vanishes_ends_its_followers(system, feed, monkeypatch):
    monkeypatch.setattr(feed_module, "_BLOCK_SECONDS", 0.05)
    run_id = await system.submit("echo")
    follower = Follower(feed.follow(run_id))
    await follower.saw("submitted")
    await system.queue.redis.delete(system.queue.keys.run(run_id), system.queue.keys.feed(run_id))
    with pytest.raises(NotFound, match=run_id):
        await follower.ended()


async def test_more_followers_than_connections_take_turns(system, redis_settings):
    few = msgspec.structs.replace(redis_settings, max_connections=2)
    feed = Feed(system.queue.keys, system.queue.redis, few)
    run_ids = [await system.submit("echo") for _ in range(5)]
    followers = [Follower(feed.follow(run_id)) for run_id in run_ids]
    for run_id, follower in zip(run_ids, followers, strict=True):
        await follower.saw("submitted")
        await system.queue.cancel(run_id)
    for follower in followers:
        assert await follower.ended() == ["submitted", "cancelled"]


async def test_a_follower_that_stops_early_frees_its_connection(system, feed):
    run_id = await system.submit("echo")
    follower = Follower(feed.follow(run_id))
    await follower.saw("submitted")
    follower.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower.task
    assert await feed.read(run_id)


@pytest.mark.parametrize("after", ["", "x", "-1", "1-", "1-2-3", "+", "1" * 40, "1\n", "(1"])
async def test_what_is_not_the_id_of_an_event_is_refused(feed, after):
    with pytest.raises(InputError, match="after"):
        await feed.read("any", after)
