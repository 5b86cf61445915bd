"""The hub: any number of followers on one connection, none of which misses or repeats an event."""

from __future__ import annotations

import asyncio
import contextlib
import random

import msgspec
import pytest

from holdfast.config import RedisSettings
from holdfast.errors import NotFound, RedisUnavailable
from holdfast.events import hub as hub_module
from holdfast.events.event import Event, order
from holdfast.events.feed import NOW, PAGE, PAGE_BYTES, Feed
from holdfast.events.hub import Hub
from holdfast.redis.client import connect, connect_blocking
from holdfast.redis.keys import QueueKeys
from tests.support.outages import outage_lines
from tests.support.waiting import PATIENCE_SECONDS, until

KEYS = QueueKeys.of("agent-queue")
NEVER_SECONDS = 600.0


@pytest.fixture
async def hub(redis, redis_settings):
    async with Hub(redis, redis_settings) as hub:
        yield hub


async def begin(redis, run_id):
    await redis.hset(KEYS.run(run_id), mapping={"status": "running"})
    await say(redis, run_id, "started")
    return run_id


async def say(redis, run_id, kind, data=b"{}"):
    return (await redis.xadd(KEYS.feed(run_id), {"type": kind, "data": data})).decode()


async def end(redis, run_id):
    await redis.hset(KEYS.run(run_id), mapping={"status": "succeeded"})
    await say(redis, run_id, "succeeded")


class Follower:
    """Follows in a task."""

    def __init__(self, events):
        self.seen: list[Event] = []
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._follow(events))

    async def _follow(self, events):
        async for event in events:
            self.seen.append(event)
            async with self._more:
                self._more.notify_all()

    async def saw(self, count):
        async with asyncio.timeout(PATIENCE_SECONDS), self._more:
            await self._more.wait_for(lambda: len(self.seen) >= count)

    async def ended(self):
        await asyncio.wait_for(self.task, PATIENCE_SECONDS)
        return [event.type for event in self.seen]


async def blocked(redis, count=1):
    await until(lambda: redis.info("clients"), lambda found: found["blocked_clients"] == count)


async def following(hub, run_id, count):
    """Wait until so many followers have caught up and are handed what comes."""
    await until(lambda: len(hub._reader(KEYS)._streams[KEYS.feed(run_id)].followers) >= count)


async def test_a_follower_sees_what_was_and_what_comes_and_ends_with_the_run(redis, hub):
    await begin(redis, "a")
    follower = Follower(hub.follow(KEYS, "a"))
    await follower.saw(1)
    await say(redis, "a", "thinking")
    await follower.saw(2)
    await end(redis, "a")
    assert await follower.ended() == ["started", "thinking", "succeeded"]


async def test_many_followers_share_one_connection(redis, hub):
    runs = [await begin(redis, f"r{number}") for number in range(100)]
    followers = [Follower(hub.follow(KEYS, run)) for run in runs]
    for follower in followers:
        await follower.saw(1)
    await blocked(redis, 1)
    for run in runs:
        await say(redis, run, "thinking")
        await end(redis, run)
    for follower in followers:
        assert await follower.ended() == ["started", "thinking", "succeeded"]


async def test_a_new_follower_wakes_the_blocked_reader(redis, hub, monkeypatch):
    """Without the waking, it would wait until the block of the others ends."""
    monkeypatch.setattr(hub_module, "_BLOCK_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(hub_module, "_POLL_SECONDS", NEVER_SECONDS)
    await begin(redis, "a")
    first = Follower(hub.follow(KEYS, "a"))
    await first.saw(1)
    await blocked(redis)
    await begin(redis, "b")
    second = Follower(hub.follow(KEYS, "b"))
    await second.saw(1)
    await say(redis, "b", "thinking")
    await second.saw(2)
    await end(redis, "a")
    await end(redis, "b")
    await first.ended()
    await second.ended()


async def test_followers_of_one_run_may_start_anywhere(redis, hub):
    await begin(redis, "a")
    middle = await say(redis, "a", "one")
    await say(redis, "a", "two")
    everything, later = Follower(hub.follow(KEYS, "a")), Follower(hub.follow(KEYS, "a", middle))
    await everything.saw(3)
    now = Follower(hub.follow(KEYS, "a", NOW))
    await following(hub, "a", 3)
    await end(redis, "a")
    assert await everything.ended() == ["started", "one", "two", "succeeded"]
    assert await later.ended() == ["two", "succeeded"]
    assert await now.ended() == ["succeeded"]


async def test_a_slow_follower_loses_nothing_and_keeps_little(redis, hub, monkeypatch):
    monkeypatch.setattr(hub_module, "_BUFFERED_MOST", 50)
    await begin(redis, "a")
    events = hub.follow(KEYS, "a")
    seen = [await anext(events)]
    waiting = asyncio.ensure_future(anext(events))
    await blocked(redis)
    for number in range(300):
        await say(redis, "a", "chunk", str(number).encode())
    await end(redis, "a")
    seen.append(await waiting)
    seen += [event async for event in events]
    assert [event.data for event in seen[1:-1]] == list(range(300))


async def test_little_is_kept_of_large_events_for_a_follower_that_does_not_come(redis, hub):
    await begin(redis, "a")
    events = hub.follow(KEYS, "a")
    seen = [await anext(events)]
    waiting = asyncio.ensure_future(anext(events))
    await blocked(redis)
    (follower,) = hub._reader(KEYS)._streams[KEYS.feed("a")].followers
    for number in range(40):
        last = await say(redis, "a", "chunk", msgspec.json.encode([number, "x" * 100_000]))
    await end(redis, "a")
    seen.append(await waiting)
    await until(lambda: order(hub._reader(KEYS)._streams[KEYS.feed("a")].read) >= order(last))
    kept = sum(len(event.data[1]) for event in follower.events if event.type == "chunk")
    assert kept <= hub_module._BUFFERED_BYTES
    seen += [event async for event in events]
    assert [event.data[0] for event in seen[1:-1]] == list(range(40))
    assert seen[-1].type == "succeeded"


@pytest.fixture
def replies(monkeypatch):
    """Every answer that the hub's reader is given: the command, how many events, how many bytes."""
    seen: list[tuple[str, int, int]] = []

    def counting(settings, seconds):
        client = connect_blocking(settings, seconds)
        execute = client.execute_command

        async def counted(name, *arguments, **options):
            reply = await execute(name, *arguments, **options)
            if name in ("XREAD", "EVALSHA") and reply:
                seen.append((name, sum(len(entries) for _, entries in reply), weight(reply)))
            return reply

        client.execute_command = counted
        return client

    monkeypatch.setattr(hub_module, "connect_blocking", counting)
    return seen


def weight(part):
    if isinstance(part, bytes):
        return len(part)
    if isinstance(part, dict):
        return weight([*part, *part.values()])
    return sum(map(weight, part)) if isinstance(part, list | tuple) else 0


async def say_together(redis, events):
    """Say many things at one moment, so that whoever looks finds all of them."""
    async with redis.pipeline(transaction=True) as pipeline:
        for run_id, data in events:
            pipeline.xadd(KEYS.feed(run_id), {"type": "chunk", "data": msgspec.json.encode(data)})
        await pipeline.execute()


async def test_large_events_are_read_a_few_at_a_time(redis, replies, hub):
    """A feed that was silent may have any number of large ones next."""
    await begin(redis, "a")
    follower = Follower(hub.follow(KEYS, "a"))
    await follower.saw(1)
    await blocked(redis)
    await say_together(redis, [("a", [number, "x" * (1 << 20)]) for number in range(40)])
    await end(redis, "a")
    await follower.ended()
    assert [event.data[0] for event in follower.seen[1:-1]] == list(range(40))
    assert max(size for _, _, size in replies) < 2 << 20


async def test_large_events_after_many_small_ones_are_read_a_few_at_a_time(redis, replies, hub):
    """The size of the last events tells nothing of the next ones."""
    await begin(redis, "a")
    follower = Follower(hub.follow(KEYS, "a"))
    await follower.saw(1)
    await blocked(redis)
    large = 100_000
    events = [[number, "x" * (large if number >= 500 else 1)] for number in range(540)]
    await say_together(redis, [("a", event) for event in events])
    await end(redis, "a")
    await follower.ended()
    assert [event.data[0] for event in follower.seen[1:-1]] == list(range(540))
    assert max(size for _, _, size in replies) < PAGE_BYTES + 2 * large


async def test_large_events_of_many_feeds_are_read_a_few_at_a_time(redis, replies, hub):
    """One of them with many small events must not have the others read by their number."""
    runs = [await begin(redis, f"r{number}") for number in range(40)]
    followers = [Follower(hub.follow(KEYS, run)) for run in runs]
    for follower in followers:
        await follower.saw(1)
    await blocked(redis)
    await say_together(redis, [(runs[0], number) for number in range(400)])
    await followers[0].saw(401)
    large = 64 << 10
    await say_together(redis, [(run, [number, "x" * large]) for number in range(8) for run in runs])
    for run in runs:
        await end(redis, run)
    for follower in followers:
        await follower.ended()
        said = [event.data[0] for event in follower.seen if isinstance(event.data, list)]
        assert said == list(range(8))
    # The waiting brings one of each feed, and the rest of all of them comes by the page.
    assert sum(size for name, _, size in replies if name == "XREAD") < len(runs) * (large + 1000)
    assert max(size for name, _, size in replies if name == "EVALSHA") < PAGE_BYTES + 2 * large


async def test_many_small_events_are_read_many_at_a_time(redis, replies, hub):
    await begin(redis, "a")
    follower = Follower(hub.follow(KEYS, "a"))
    await follower.saw(1)
    await blocked(redis)
    await say_together(redis, [("a", number) for number in range(500)])
    await follower.saw(501)
    await end(redis, "a")
    await follower.ended()
    assert [event.data for event in follower.seen[1:-1]] == list(range(500))
    assert max(count for _, count, _ in replies) == PAGE
    assert sum(count < PAGE for _, count, _ in replies) < 10


async def test_one_reading_brings_an_event_to_its_followers(redis, replies, hub):
    """Nothing more is asked where one answer had it all: that would be a round trip for each event."""
    runs = [await begin(redis, f"r{number}") for number in range(20)]
    followers = [Follower(hub.follow(KEYS, run)) for run in runs]
    for follower in followers:
        await follower.saw(1)
    await blocked(redis)
    for run, follower in zip(runs, followers, strict=True):
        await say(redis, run, "thinking")
        await follower.saw(2)
    assert [(name, count) for name, count, _ in replies] == [("XREAD", 1)] * 20


async def test_a_page_ends_where_its_bytes_do(redis, hub, redis_settings):
    await begin(redis, "a")
    for number in range(30):
        await say(redis, "a", "chunk", msgspec.json.encode([number, "x" * 100_000]))
    feed, after, pages = Feed(KEYS, redis, redis_settings), "0", list[int]()
    while True:
        page = await feed.page("a", after)
        pages.append(len(page.events))
        if not page.more:
            break
        after = page.events[-1].id
    # The one that passes the bytes is the last of its page: one is always read, however large.
    assert sum(pages) == 31
    assert max(pages) <= 4
    assert (await feed.page("a", "0", 2)).more
    assert await feed.page("a", after=page.events[-1].id if page.events else after) == ([], False)


async def test_a_follower_that_comes_while_another_leaves_misses_nothing(redis, hub, monkeypatch):
    """The reader may still be asking for what the one that left had not seen."""
    monkeypatch.setattr(hub_module, "_POLL_SECONDS", NEVER_SECONDS)  # else it would find later what it missed
    await begin(redis, "a")
    total = 1
    for number in range(30):
        first = Follower(hub.follow(KEYS, "a"))
        await first.saw(total)
        events = hub.follow(KEYS, "a")
        seen = [(await anext(events)).id for _ in range(total)]
        if number % 2:
            await blocked(redis)
        await say(redis, "a", "more")  # read by the hub for the first, while the second has not come to it
        await first.saw(total + 1)
        first.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await first.task
        async with asyncio.timeout(PATIENCE_SECONDS):
            seen.append((await anext(events)).id)
        await events.aclose()
        total += 1
        assert len(set(seen)) == total


async def test_a_long_feed_is_followed_page_by_page(redis, hub):
    await begin(redis, "a")
    for number in range(450):
        await say(redis, "a", "chunk", str(number).encode())
    await end(redis, "a")
    events = [event async for event in hub.follow(KEYS, "a")]
    assert [event.data for event in events[1:-1]] == list(range(450))


async def test_followers_survive_a_redis_that_restarts(restartable_valkey):
    settings = RedisSettings(url=restartable_valkey.url)
    redis = connect(settings)
    async with Hub(redis, settings) as hub:
        runs = [await begin(redis, f"r{number}") for number in range(10)]
        followers = [Follower(hub.follow(KEYS, run)) for run in runs]
        for follower in followers:
            await follower.saw(1)
        await asyncio.to_thread(restartable_valkey.restart)
        for run in runs:
            await say(redis, run, "thinking")
            await end(redis, run)
        for follower in followers:
            assert await follower.ended() == ["started", "thinking", "succeeded"]
    await redis.aclose()


async def test_followers_survive_connections_that_break_at_random(redis, patient_settings, fault_proxy):
    client = connect(patient_settings)
    async with Hub(client, patient_settings) as hub:
        runs = [await begin(redis, f"r{number}") for number in range(10)]
        followers = [Follower(hub.follow(KEYS, run)) for run in runs]
        for follower in followers:
            await follower.saw(1)
        chance = random.Random(7)
        for number in range(200):
            await say(redis, chance.choice(runs), "chunk", str(number).encode())
            if number % 40 == 20:
                fault_proxy.reset()
        for run in runs:
            await end(redis, run)
        for follower in followers:
            types = await follower.ended()
            assert types[-1] == "succeeded"
        numbers = sorted(event.data for each in followers for event in each.seen if event.type == "chunk")
        assert numbers == list(range(200))
        for follower in followers:
            chunks = [event.data for event in follower.seen if event.type == "chunk"]
            assert chunks == sorted(chunks)
    await client.aclose()


async def test_followers_survive_a_connection_that_hangs(
    redis, patient_settings, proxied_settings, fault_proxy, log_lines
):
    """Only the connection that they share has short timeouts: that one is given up, and another one is opened."""
    client = connect(patient_settings)
    async with Hub(client, proxied_settings) as hub:
        followers = [Follower(hub.follow(KEYS, await begin(redis, f"r{number}"))) for number in range(3)]
        for number, follower in enumerate(followers):
            await follower.saw(1)
            await following(hub, f"r{number}", 1)
        fault_proxy.stall("replies")
        for number in range(3):
            await say(redis, f"r{number}", "thinking")
        await until(lambda: outage_lines(log_lines()))
        assert {len(follower.seen) for follower in followers} == {1}
        fault_proxy.heal()
        for number, follower in enumerate(followers):
            await end(redis, f"r{number}")
            assert await follower.ended() == ["started", "thinking", "succeeded"]
    await client.aclose()


async def test_a_server_that_forbids_the_waking_is_read_all_the_same(redis, redis_settings):
    await redis.execute_command(
        "ACL", "SETUSER", "plain", "on", ">pw", "~*", "&*", "+@all", "-client|unblock"
    )
    settings = msgspec.structs.replace(
        redis_settings, url=redis_settings.url.replace("unix://", "unix://plain:pw@")
    )
    client = connect(settings)
    async with Hub(client, settings) as hub:
        await begin(redis, "a")
        first = Follower(hub.follow(KEYS, "a"))
        await first.saw(1)
        await blocked(redis)
        await begin(redis, "b")
        second = Follower(hub.follow(KEYS, "b"))
        await second.saw(1)
        await end(redis, "b")
        assert await second.ended() == ["started", "succeeded"]
        await end(redis, "a")
        await first.ended()
    await client.aclose()
    await redis.execute_command("ACL", "DELUSER", "plain")


async def test_a_run_that_nobody_knows_has_no_feed(hub):
    with pytest.raises(NotFound, match="nobody"):
        await anext(hub.follow(KEYS, "nobody"))


async def test_a_feed_that_vanishes_ends_its_followers(redis, hub, monkeypatch):
    monkeypatch.setattr(hub_module, "_POLL_SECONDS", 0.05)
    await begin(redis, "a")
    follower = Follower(hub.follow(KEYS, "a"))
    await follower.saw(1)
    await redis.delete(KEYS.run("a"), KEYS.feed("a"))
    with pytest.raises(NotFound):
        await follower.ended()


async def test_a_redis_that_is_away_at_the_start_is_said_at_once():
    settings = RedisSettings(url="unix:///tmp/holdfast-nobody.sock")
    client = connect(settings)
    async with Hub(client, settings) as hub:
        with pytest.raises(RedisUnavailable):
            await anext(hub.follow(KEYS, "any"))
    await client.aclose()
