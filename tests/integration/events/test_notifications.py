"""A relay hears of all its outboxes over one connection, notices when that is dead, and says so once."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from holdfast import outages
from holdfast.config import QueueSettings
from holdfast.events.relay import notifications
from holdfast.events.relay.loop import LoopWakeup
from holdfast.events.relay.notifications import Notifications
from holdfast.events.relay.outbox import Outbox
from holdfast.redis.client import connect_blocking
from holdfast.runs.partition import Partition
from tests.support.events.event_receiver import Receiver
from tests.support.events.relays import Outside
from tests.support.outages import outage_lines
from tests.support.waiting import PATIENCE_SECONDS, until

CHANNEL = "channel"
PARTITIONS = 6


@contextlib.asynccontextmanager
async def listening(settings, *others):
    """Listen on one channel; yields the loop that is woken, and a list of the tries to connect."""
    loop, tries = LoopWakeup(), []

    def connect():
        tries.append(1)
        return connect_blocking(settings, 0.0)

    relay = Notifications(connect)
    for other in others:
        relay.add(other, lambda: None, ())
    relay.add(CHANNEL, loop.set, (loop,))
    task = asyncio.create_task(relay.run())
    try:
        yield loop, tries
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_more_partitions_than_connections_need_one_for_all_channels(redis, redis_settings):
    """Fails if each channel keeps a connection of the pool: no other command would find one."""
    few = msgspec.structs.replace(redis_settings, max_connections=3)
    queue = QueueSettings(name="agent-queue", partitions=PARTITIONS)
    channels = [
        Partition(queue.of_partition(number), redis).keys.outbox_notify for number in range(PARTITIONS)
    ]
    async with Receiver() as receiver, Outside(few, receiver.url) as outside:
        outside.settings = msgspec.structs.replace(outside.settings, queue=queue)
        outside.relay()

        async def subscribers():
            return [count for _, count in await redis.pubsub_numsub(*channels)]

        await until(subscribers, lambda counts: counts == [1] * PARTITIONS)
        assert len(await redis.client_list(_type="pubsub")) == 1
        await outside.run("a")
        for number in range(1, 4):
            await outside.say("a", "chunk")
            await until(lambda number=number: receiver.ids("a")[-1:] == [f"a/{number}"])


async def test_a_connection_that_hangs_is_given_up_and_another_one_listens(
    redis, proxied_settings, fault_proxy, monkeypatch
):
    """Fails if it waits for ever: a connection whose other end is lost without a word stays open."""
    monkeypatch.setattr(notifications, "_PING_SECONDS", 0.5)
    async with listening(proxied_settings) as (loop, _):
        await until(lambda: loop.listening)
        fault_proxy.stall()
        await until(lambda: not loop.listening)
        fault_proxy.heal()
        await until(lambda: loop.listening)
        loop.clear()
        await redis.publish(CHANNEL, "events")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await loop.wait(10 * PATIENCE_SECONDS)


async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    redis, proxied_settings, fault_proxy, monkeypatch, log_lines
):
    """Fails if each try is logged: there is one a second for as long as Redis is away."""
    monkeypatch.setattr(outages, "_SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(notifications, "_RETRY_SECONDS", 0.05)
    async with listening(proxied_settings) as (loop, tries):
        fault_proxy.refuse()
        await until(lambda: len(tries) > 5)
        fault_proxy.heal()
        await until(lambda: loop.listening)
    began, ended = outage_lines(log_lines())
    assert (began["held_up"], began["meanwhile"]) == ("notifications of events", "the relay polls")
    assert ended["failures"] >= 5


async def test_a_channel_that_may_not_be_used_leaves_the_others_heard(redis, redis_settings):
    await redis.execute_command(
        "ACL SETUSER", "partly", "on", "nopass", "~*", "+@all", "resetchannels", f"&{CHANNEL}"
    )
    try:
        url = redis_settings.url.replace("://", "://partly:x@", 1)
        async with listening(msgspec.structs.replace(redis_settings, url=url), "other") as (loop, tries):
            await until(lambda: loop.listening)
            await redis.publish(CHANNEL, "events")
            assert len(tries) == 1
    finally:
        await redis.execute_command("ACL DELUSER", "partly")


async def test_relays_are_told_of_lines_that_are_due_again(redis, redis_settings):
    """Fails if a relay that stops, or has just learned where a run's events go, tells nobody."""
    async with Outside(redis_settings, "http://127.0.0.1:9/") as outside, redis.pubsub() as pubsub:
        outbox = Outbox(outside.keys, redis, owner="one", ttl_seconds=60, event_api=True)
        await outside.run("a")
        await outside.say("a", "submitted", announced=False)
        await outbox.fan_out()
        await pubsub.subscribe(outside.keys.outbox_notify)

        async def heard():
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1.0)
            return message and message["data"]

        await outbox.route([("a", "", "")])
        await until(heard, lambda word: word == b"routed")
        await outbox.fan_out()
        (entry,) = (await outbox.claim("eventapi", 1)).entries
        await outbox.release(entry)
        await until(heard, lambda word: word == b"returned")
        await outbox.aclose()
