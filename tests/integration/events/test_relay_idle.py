"""A relay without anything to do costs Redis next to nothing, and delivers at once what comes then."""

from __future__ import annotations

import time
from functools import partial

import msgspec
import pytest

from holdfast import App
from holdfast.config import ApiSettings, DatabaseSettings, EventApiSettings, Settings
from holdfast.events.relay import loop
from holdfast.events.relay.undelivered import Undelivered
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi
from tests.support.events.event_receiver import Receiver
from tests.support.events.relays import Outside
from tests.support.runs.system import System
from tests.support.waiting import stays, until

POLL_SECONDS = 0.05
"""The default, which the other tests don't have."""
COMMANDS_A_SECOND = 20


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
def rarely(monkeypatch):
    """Relays that are notified look for events less often than any test waits."""
    monkeypatch.setattr(loop, "_NOTIFIED_POLL_SECONDS", 600.0)


async def heard(outside: Outside) -> None:
    """Wait until a relay listens and nothing is left to do: what comes then is announced to it."""
    await until(
        lambda: outside.redis.pubsub_numsub(outside.keys.outbox_notify), lambda counts: counts[0][1] >= 1
    )
    await outside.emptied()


async def commands(redis) -> int:
    """How many commands the server has executed, those of scripts too."""
    stats = await redis.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if not name.startswith("cmdstat_info"))


async def commands_a_second(redis, seconds: float = 4.0) -> float:
    before, began = await commands(redis), time.monotonic()
    await stays(lambda: True, seconds=seconds)
    return (await commands(redis) - before) / (time.monotonic() - began)


async def test_an_idle_relay_makes_few_commands(redis, redis_settings, receiver):
    async with Outside(redis_settings, receiver.url, poll_seconds=POLL_SECONDS) as outside:
        outside.relay()
        await heard(outside)
        await outside.run("a")
        await outside.say("a", "submitted")
        await until(lambda: receiver.ids("a") == ["a/1"])
        await outside.emptied()
        assert await commands_a_second(redis) < COMMANDS_A_SECOND


async def test_an_idle_api_that_is_a_relay_and_a_janitor_makes_few_commands(redis, redis_settings, tmp_path):
    settings = Settings(
        redis=redis_settings,
        api=ApiSettings(port=0, linger_seconds=0.0),
        database=DatabaseSettings(path=str(tmp_path / "holdfast.sqlite")),
        event_api=EventApiSettings(url="http://127.0.0.1:9/"),
    )
    running = await RunningApi(ApiProcess(settings, None)).ready()
    try:
        # What it does once when it starts is not idle.
        await until(partial(commands_a_second, redis, 1.0), lambda rate: rate < COMMANDS_A_SECOND)
        # Two heartbeats: what comes in bursts is in it. A slow machine makes fewer commands, not more.
        assert await commands_a_second(redis, 20.0) < COMMANDS_A_SECOND
    finally:
        await running.close()


async def test_a_waiting_line_costs_no_polling(redis, redis_settings, receiver):
    """A receiver that is down is called when its pause is over, and nobody looks in between."""
    slow = {"retry_first_seconds": 60.0, "retry_most_seconds": 60.0}
    async with Outside(redis_settings, receiver.url, poll_seconds=POLL_SECONDS, **slow) as outside:
        receiver.status = 500
        outside.relay()
        await outside.run("a")
        await outside.say("a", "submitted")
        await until(lambda: len(receiver.got) == 1)
        assert await commands_a_second(redis) < COMMANDS_A_SECOND


async def test_what_comes_after_a_rest_is_delivered_by_notification(redis, redis_settings, receiver, rarely):
    """Fails if a run's scripts notify nobody: the relay would look after ten minutes."""
    app = App("test")

    @app.agent
    async def says(ctx, payload=None):
        await ctx.emit("hello", payload)

    async with System(redis_settings, event_api=EventApiSettings(url=receiver.url)) as system:
        await system.worker(app)
        async with Outside(redis_settings, receiver.url, poll_seconds=POLL_SECONDS) as outside:
            outside.relay("first")
            outside.relay("second")
            for number in range(3):
                run_id = await system.submit("says", number)
                await until(lambda run_id=run_id: len(set(receiver.ids(run_id))) == 4)


async def test_a_try_that_failed_is_repeated_when_its_pause_is_over(redis, redis_settings, receiver, rarely):
    async with Outside(redis_settings, receiver.url, poll_seconds=POLL_SECONDS) as outside:
        receiver.status = 500
        outside.relay()
        await outside.run("a")
        await outside.say("a", "submitted")
        await until(lambda: len(receiver.got) >= 3)
        receiver.status = 204
        await until(lambda: receiver.ids("a") == ["a/1"])


async def test_a_redelivery_is_done_by_notification(redis, redis_settings, receiver, rarely):
    async with Outside(redis_settings, receiver.url, poll_seconds=POLL_SECONDS) as outside:
        receiver.status = 422
        outside.relay()
        await outside.run("a")
        await outside.say("a", "submitted")
        await until(outside.undelivered)
        await outside.emptied()
        receiver.status = 204
        await Undelivered(outside.keys, redis).redeliver(run_id="a")
        await until(lambda: receiver.ids("a") == ["a/1"])


async def test_a_relay_polls_where_events_are_not_announced(redis, redis_settings, receiver, monkeypatch):
    """Workers of an older version, and users that may use no channel, publish nothing."""
    monkeypatch.setattr(loop, "_NOTIFIED_POLL_SECONDS", 2.0)
    async with Outside(redis_settings, receiver.url, poll_seconds=POLL_SECONDS) as outside:
        outside.relay()
        await heard(outside)
        await outside.run("a")
        await outside.say("a", "submitted", announced=False)
        await until(lambda: receiver.ids("a") == ["a/1"])
        await heard(outside)
        monkeypatch.setattr(loop, "_NOTIFIED_POLL_SECONDS", 600.0)
        for number in range(2, 5):
            await outside.say("a", "chunk", announced=False)
            await until(lambda number=number: receiver.ids("a")[-1] == f"a/{number}")


async def test_a_relay_that_may_not_listen_polls(redis, redis_settings, receiver, rarely):
    await redis.execute_command("ACL SETUSER", "deaf", "on", "nopass", "~*", "+@all", "resetchannels")
    try:
        url = redis_settings.url.replace("://", "://deaf:x@", 1)
        deaf = msgspec.structs.replace(redis_settings, url=url)
        async with Outside(deaf, receiver.url, poll_seconds=POLL_SECONDS) as outside:
            outside.relay()
            await outside.run("a")
            for number in range(1, 4):
                await outside.say("a", "chunk", announced=False)
                await until(lambda number=number: receiver.ids("a")[-1:] == [f"a/{number}"])
    finally:
        await redis.execute_command("ACL DELUSER", "deaf")
