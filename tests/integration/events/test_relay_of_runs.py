"""Real runs, from submit to their last event at the receivers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from holdfast import App
from holdfast.config import EventApiSettings, RedisSettings, RelaySettings
from holdfast.events.hub import Hub
from holdfast.runs.deadletter import DeadLetters
from tests.support.events.event_receiver import Receiver, in_order
from tests.support.events.relays import QUICK, Running
from tests.support.processes import forked
from tests.support.redis.valkey_process import free_port
from tests.support.runs.manual_worker import expiry_without_retention
from tests.support.runs.system import System
from tests.support.waiting import PATIENCE_SECONDS, until

RELAY = RelaySettings(**QUICK)


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def system(redis, redis_settings, receiver):
    event_api = EventApiSettings(url=receiver.url, secret="the secret")
    async with System(redis_settings, slots=8, ttl=30.0, event_api=event_api) as system:
        yield system


@pytest.fixture
async def relay(system):
    running = Running(msgspec.structs.replace(system.settings, relay=RELAY), "relay")
    yield running
    await running.stop()


def talkative() -> App:
    app = App("test")

    @app.agent
    async def talk(ctx, count):
        for number in range(count):
            await ctx.emit("said", number)
        return count

    return app


def types(receiver, run_id, path="/events"):
    """The types of what was taken, each event once."""
    events = {got.event["id"]: got.event for got in receiver.taken if got.path == path}
    return [event["data"]["type"] for event in events.values() if event["subject"] == run_id]


async def test_all_events_of_runs_reach_the_event_api(system, relay, receiver):
    await system.worker(talkative())
    runs = [
        await system.submit("talk", 5, client_id="acme", logger_context={"user": "ada"}) for _ in range(20)
    ]
    for run_id in runs:
        await system.ended(run_id)
    whole = ["submitted", "started", *["said"] * 5, "succeeded"]
    await until(lambda: all(types(receiver, run_id) == whole for run_id in runs))
    assert in_order(receiver.ids())
    for run_id in runs:
        feed = await system.queue.redis.xrange(system.queue.keys.feed(run_id))
        told = [got.event["data"]["event_id"] for got in receiver.taken if got.event["subject"] == run_id]
        assert told == [entry.decode() for entry, _ in feed]
    assert {got.headers["x-client-id"] for got in receiver.taken} == {"acme"}
    assert all(got.event["data"]["logger_context"] == {"user": "ada"} for got in receiver.taken)


async def test_a_run_with_webhook_and_push_tells_all_three(system, relay, receiver):
    await system.worker(talkative())
    base = f"http://127.0.0.1:{receiver.port}"
    run_id = await system.submit(
        "talk", 2, webhook=f"{base}/hook", push={"url": f"{base}/push", "token": "t"}
    )
    await system.ended(run_id)
    whole = ["submitted", "started", "said", "said", "succeeded"]
    await until(lambda: types(receiver, run_id) == whole and types(receiver, run_id, "/hook") == whole)
    await until(lambda: sum(got.path == "/push" for got in receiver.taken) == 5)


async def test_a_replayed_run_goes_on_with_the_next_number(system, relay, receiver):
    run_id = await system.submit("talk", 1)
    await system.queue.cancel(run_id)
    await until(lambda: types(receiver, run_id) == ["submitted", "cancelled"])
    await system.queue.replay(run_id)
    await system.worker(talkative())
    await until(lambda: types(receiver, run_id)[-1:] == ["succeeded"])
    assert receiver.ids(run_id) == [f"{run_id}/{number}" for number in range(1, 7)]


async def test_a_run_revived_after_it_left_goes_on_with_the_next_number(system, relay, receiver):
    """Fails if the numbers begin again: whoever deduplicates by them takes the second life for the first."""
    queue = system.queue
    await system.worker(talkative())
    run_id = await system.submit("talk", "not a number")
    await system.ended(run_id)
    await until(lambda: types(receiver, run_id)[-1:] == ["failed"])
    before = len(types(receiver, run_id))
    await queue.redis.delete(queue.keys.unarchived)

    async def expired() -> bool:
        await queue.redis.zadd(queue.keys.ended, {run_id: 0})
        return bool(await expiry_without_retention(queue).run_once())

    await until(expired, what="the relay to let go of the run")
    await DeadLetters(queue).replay(run_id)
    await until(lambda: types(receiver, run_id)[before:][-1:] == ["failed"])
    told = list(dict.fromkeys(receiver.ids(run_id)))  # one may come twice
    assert told == [f"{run_id}/{number}" for number in range(1, len(told) + 1)]


async def test_a_run_without_anybody_outside_leaves_no_trace_in_the_outbox(redis, redis_settings):
    async with System(redis_settings) as system:
        await system.submit("talk", 1)
        assert await redis.zcard(system.queue.keys.outbox) == 0


async def test_the_command_relays_until_it_is_told_to_stop(system, receiver):
    run_id = await system.submit("talk", 1)
    environ = {**os.environ, "REDIS_URL": system.settings.redis.url, "EVENT_API_URL": receiver.url}
    process = forked.Popen(
        [sys.executable, "-m", "holdfast", "relay", "--json"], env=environ, stderr=subprocess.PIPE
    )
    try:
        await until(lambda: types(receiver, run_id) == ["submitted"])
        process.send_signal(signal.SIGTERM)
        _, logged = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, logged.decode()
        assert b"relay ready" in logged
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def test_relay_and_hub_work_on_a_cluster(start_valkey, receiver):
    server = start_valkey("--cluster-enabled", "yes", "--cluster-port", str(free_port()), append_only=False)
    server.ask("CLUSTER ADDSLOTSRANGE 0 16383")
    server.wait_for("CLUSTER INFO", "cluster_state:ok")
    redis = RedisSettings(url=f"redis+cluster://127.0.0.1:{server.port}")
    event_api = EventApiSettings(url=receiver.url)
    async with (
        System(redis, slots=3, ttl=30.0, event_api=event_api) as system,
        Hub(system.queue.redis, redis) as hub,
    ):
        running = Running(msgspec.structs.replace(system.settings, relay=RELAY), "relay")
        run_id = await system.submit("talk", 3)
        events = hub.follow(system.queue.keys, run_id)
        assert (await anext(events)).type == "submitted"
        await system.worker(talkative())
        whole = ["started", "said", "said", "said", "succeeded"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [event.type async for event in events] == whole
        await until(lambda: types(receiver, run_id) == ["submitted", *whole])
        await running.stop()
