from __future__ import annotations

import asyncio
import math
from datetime import timedelta

import msgspec
import pytest
from system import System, until

import holdfast
from holdfast import (
    App,
    Client,
    Conflict,
    Context,
    GiveUp,
    HoldfastError,
    InputError,
    NotFound,
    PayloadTooLarge,
    QueuePaused,
    RedisUnavailable,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    RunTimedOut,
    SyncClient,
)
from holdfast.runs.run import Status

app = App("tests")


@app.agent
async def echo(value):
    return value


@app.agent
async def talk(ctx: Context, words):
    for word in words:
        await ctx.emit("word", word)
    return len(words)


@app.agent
async def give_up(value):
    raise GiveUp(f"not with {value}")


@app.agent
async def sleep(value):
    await asyncio.sleep(60)


@app.agent
async def show(ctx: Context, value):
    return {"thread": ctx.thread_id, "metadata": dict(ctx.metadata), "run": ctx.run_id}


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings) as system:
        yield system


@pytest.fixture
async def worker(system):
    return await system.worker(app)


@pytest.fixture
async def client(system):
    async with Client(settings=system.settings) as client:
        yield client


# -- a run and its result


async def test_a_result_is_waited_for(client, worker):
    handle = await client.submit("echo", {"a": [1, 2]})
    assert handle.fresh
    assert await handle.result(timeout=10) == {"a": [1, 2]}
    assert await handle.status() is Status.SUCCEEDED
    assert await handle.result() == {"a": [1, 2]}


async def test_a_result_that_comes_later_is_waited_for(client, system):
    handle = await client.submit("echo", 1)
    waiting = asyncio.create_task(handle.result(timeout=20))
    await system.worker(app)
    assert await waiting == 1


async def test_a_run_that_gave_up_raises_with_its_reason(client, worker):
    handle = await client.submit("give_up", "you")
    with pytest.raises(RunFailed, match="not with you") as caught:
        await handle.result(timeout=10)
    assert caught.value.run_id == handle.run_id


async def test_a_run_past_its_deadline_raises(client, worker):
    handle = await client.submit("sleep", timeout="50ms")
    with pytest.raises(RunTimedOut, match=handle.run_id):
        await handle.result(timeout=10)


async def test_a_cancelled_run_raises_with_its_reason(client, worker, system):
    waiting, running = await client.submit("sleep", delay="1h"), await client.submit("sleep")
    await system.reaches(running.run_id, Status.RUNNING)
    assert await waiting.cancel("no longer wanted") == "cancelled"
    assert await client.cancel(running.run_id, reason="too late") == "requested"
    with pytest.raises(RunCancelled, match="no longer wanted"):
        await waiting.result(timeout=10)
    with pytest.raises(RunCancelled, match="too late"):
        await running.result(timeout=10)


async def test_waiting_may_end_before_the_run_does(client):
    handle = await client.submit("echo", 1)
    for patience in (0, 0.05, "50ms", timedelta(milliseconds=50)):
        with pytest.raises(ResultTimeout, match=handle.run_id):
            await handle.result(timeout=patience)
    assert await handle.status() is Status.QUEUED


async def test_cancelling_the_waiting_does_not_cancel_the_run(client):
    handle = await client.submit("echo", 1)
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await handle.status() is Status.QUEUED


async def test_many_results_are_waited_for_on_few_connections(system, redis_settings, worker):
    few = msgspec.structs.replace(redis_settings, max_connections=3)
    async with Client(settings=msgspec.structs.replace(system.settings, redis=few)) as client:
        handles = await client.submit_many([{"agent": "echo", "input": n} for n in range(300)])
        results = await asyncio.wait_for(asyncio.gather(*(handle.result() for handle in handles)), 30)
    assert results == list(range(300))


async def test_a_retried_run_has_a_result_again(client, system):
    handle = await client.submit("echo", 5)
    await handle.cancel()
    again = await client.retry(handle.run_id)
    waiting = asyncio.create_task(again.result(timeout=20))
    await system.worker(app)
    assert await waiting == 5
    with pytest.raises(Conflict, match="succeeded"):
        await client.retry(handle.run_id)


async def test_events_are_followed_to_the_end(client, worker):
    handle = await client.submit("talk", ["a", "b"])
    events = [event async for event in handle.events()]
    assert [event.type for event in events] == ["submitted", "started", "word", "word", "succeeded"]
    assert [event.data for event in events if event.type == "word"] == ["a", "b"]
    rest = [event.type async for event in handle.events(after=events[2].id)]
    assert rest == ["word", "succeeded"]


async def test_what_is_said_about_a_run_reaches_its_agent(client, worker):
    handle = await client.submit("show", run_id="order-7", thread_id="t1", metadata={"user": "ada"})
    assert await handle.result(timeout=10) == {"thread": "t1", "metadata": {"user": "ada"}, "run": "order-7"}


# -- submitting


async def test_the_same_key_or_id_gives_the_same_run(client):
    first = await client.submit("echo", 1, idempotency_key="k")
    again = await client.submit("echo", 2, idempotency_key="k")
    assert (again.run_id, again.fresh) == (first.run_id, False)
    named = await client.submit("echo", 1, correlation_id="c")
    assert named.run_id == "c"
    assert not (await client.submit("echo", 1, run_id="c")).fresh
    assert (await named.run()).input == 1


async def test_a_handle_can_be_made_from_an_id(client, worker):
    handle = await client.submit("echo", 1)
    assert await client.handle(handle.run_id).result(timeout=10) == 1
    with pytest.raises(NotFound, match="nobody"):
        await client.handle("nobody").result()
    with pytest.raises(NotFound, match="nobody"):
        await client.handle("nobody").cancel()
    with pytest.raises(NotFound, match="nobody"):
        await client.retry("nobody")


async def test_a_run_is_in_the_queue_that_was_named(client):
    handle = await client.submit("echo", 1, queue="media", priority="high")
    assert handle.queue == "media"
    assert (await handle.run()).lane == "{media}:high"
    with pytest.raises(NotFound, match=handle.run_id):
        await client.handle(handle.run_id).status()
    assert await client.handle(handle.run_id, queue="media").status() is Status.QUEUED


async def test_many_are_submitted_in_order_to_their_queues(client):
    handles = await client.submit_many(
        {"agent": "echo", "input": n, "queue": "even" if n % 2 == 0 else None} for n in range(6)
    )
    assert [(await handle.run()).input for handle in handles] == list(range(6))
    assert {handle.queue for handle in handles} == {"even", "agent-queue"}
    assert await client.submit_many([]) == []


async def test_a_refusal_among_many_is_raised_or_returned(client):
    requests = [
        {"agent": "echo", "input": 1, "run_id": "fine"},
        {"agent": "echo", "input": "x" * 2_000_000},
    ]
    with pytest.raises(PayloadTooLarge) as caught:
        await client.submit_many(requests)
    assert caught.value.__notes__ == ["1 of 2 runs were accepted"]
    accepted, refused = await client.submit_many(requests, return_errors=True)
    assert (accepted.run_id, accepted.fresh) == ("fine", False)
    assert isinstance(refused, PayloadTooLarge)


async def test_a_paused_queue_refuses(client, system):
    await system.queue.pause()
    with pytest.raises(QueuePaused, match="agent-queue"):
        await client.submit("echo", 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"agent": ""}, "agent"),
        ({"agent": 7}, "agent"),
        ({"input": object()}, "echo"),
        ({"input": {1j: 2}}, "echo"),
        ({"run_id": "two words"}, "run_id"),
        ({"run_id": "x" * 300}, "run_id"),
        ({"run_id": 5}, "run_id"),
        ({"run_id": "a", "correlation_id": "b"}, "correlation_id"),
        ({"idempotency_key": "ключ"}, "idempotency_key"),
        ({"priority": "urgent"}, "urgent"),
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "soon"),
        ({"delay": math.inf}, "delay"),
        ({"delay": None}, "delay"),
        ({"delay": "100000d"}, "delay"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "never"}, "never"),
        ({"thread_id": None}, "thread_id"),
        ({"metadata": {1: 2}}, "metadata"),
        ({"queue": "two words"}, "queue"),
        ({"queue": "{a}{b}"}, "queue"),
    ],
)
async def test_what_can_not_be_accepted_is_named(client, options, named):
    request = {"agent": "echo", **options}
    with pytest.raises(InputError, match=named):
        await client.submit(**request)


async def test_a_word_that_does_not_exist_is_a_type_error(client):
    with pytest.raises(TypeError, match="prority"):
        await client.submit("echo", prority="high")


@pytest.mark.parametrize("run_id", ["", "two words", "é"])
async def test_what_can_not_be_a_run_id_is_refused(client, run_id):
    with pytest.raises(InputError, match="run_id"):
        client.handle(run_id)


# -- connections


async def test_a_closed_client_says_how_to_open_it(system):
    client = Client(settings=system.settings)
    with pytest.raises(HoldfastError, match="async with"):
        await client.submit("echo")
    with pytest.raises(HoldfastError, match="with SyncClient"):
        SyncClient(settings=system.settings).submit("echo")


async def test_a_url_beats_the_settings(system, redis_url):
    elsewhere = msgspec.structs.replace(
        system.settings, redis=msgspec.structs.replace(system.settings.redis, url="redis://127.0.0.1:1")
    )
    async with Client(redis_url, settings=elsewhere) as client:
        assert (await client.submit("echo")).fresh


async def test_settings_come_from_the_environment(redis, redis_url, monkeypatch):
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("MESSAGING_QUEUE_NAME", "from-environment")
    async with Client() as client:
        assert (await client.submit("echo")).queue == "from-environment"


async def test_a_redis_that_is_away_is_our_error(redis_settings):
    nowhere = msgspec.structs.replace(redis_settings, url="redis://:secret@127.0.0.1:1")
    sender = holdfast.config.SenderSettings(max_retries=0)
    async with Client(settings=holdfast.config.Settings(redis=nowhere, sender=sender)) as client:
        for work in (
            client.submit("echo"),
            client.submit_many([{"agent": "echo"}]),
            client.handle("a").status(),
            client.handle("a").result(),
            client.handle("a").cancel(),
            client.retry("a"),
            anext(client.handle("a").events()),
        ):
            with pytest.raises(RedisUnavailable) as caught:
                await work
            assert "secret" not in str(caught.value)


async def test_waiting_for_a_result_survives_a_redis_that_restarts(restartable_valkey, redis_settings):
    settings = msgspec.structs.replace(redis_settings, url=restartable_valkey.url)
    async with System(settings) as system, Client(settings=system.settings) as client:
        handle = await client.submit("echo", 1)
        waiting = asyncio.create_task(handle.result(timeout=20))
        connected = system.queue.redis
        async with asyncio.timeout(10):
            while not await connected.info("clients") or not await _somebody_blocks(connected):
                await asyncio.sleep(0.005)
        await asyncio.to_thread(restartable_valkey.restart)
        await system.worker(app)
        assert await waiting == 1


async def _somebody_blocks(redis):
    return (await redis.info("clients"))["blocked_clients"] > 0


async def test_with_no_redis_at_all_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    with pytest.raises(RedisUnavailable, match="holdfast dev"):
        async with Client():
            pass
    assert list(tmp_path.iterdir()) == []


async def test_the_embedded_server_of_a_directory_is_found(valkey_server, redis, monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_EMBEDDED_DIR", str(valkey_server.directory))
    async with Client() as client:
        assert (await client.submit("echo")).fresh


# -- the sync face


async def test_a_script_submits_waits_and_follows(system, worker):
    def script():
        with SyncClient(settings=system.settings) as client:
            handle = client.submit("talk", ["a"], priority="high")
            assert handle.result(timeout="10s") == 1
            assert handle.status() is Status.SUCCEEDED
            assert handle.run().agent == "talk"
            events = list(handle.events())
            many = client.submit_many([{"agent": "echo", "input": n} for n in range(3)])
            return [event.type for event in events], [each.result(timeout=10) for each in many]

    events, results = await asyncio.to_thread(script)
    assert events == ["submitted", "started", "word", "succeeded"]
    assert results == [0, 1, 2]


async def test_a_script_sees_the_same_errors(system, worker):
    def script():
        with SyncClient(settings=system.settings) as client:
            with pytest.raises(RunFailed, match="not with you"):
                client.submit("give_up", "you").result(timeout=10)
            with pytest.raises(InputError, match="urgent"):
                client.submit("echo", priority="urgent")
            with pytest.raises(NotFound):
                client.handle("nobody").status()
            slow = client.submit("sleep", delay=60)
            with pytest.raises(ResultTimeout):
                slow.result(timeout=0.05)
            assert slow.cancel() == "cancelled"
            assert client.retry(slow.run_id).run_id == slow.run_id
            assert client.cancel(slow.run_id) in {"cancelled", "requested"}

    await asyncio.to_thread(script)


async def test_a_script_may_stop_following_early(system, worker):
    def script():
        with SyncClient(settings=system.settings) as client:
            handle = client.submit("talk", ["a", "b"])
            for event in handle.events():
                if event.type == "word":
                    return event.data
        return None

    assert await asyncio.to_thread(script) == "a"


async def test_the_thread_of_a_sync_client_ends_with_it(system):
    import threading

    def script():
        with SyncClient(settings=system.settings) as client:
            client.submit("echo")

    await asyncio.to_thread(script)
    await until(lambda: not any(t.name == "holdfast-client" for t in threading.enumerate()))


def test_importing_holdfast_does_not_load_the_client():
    import subprocess
    import sys

    code = "import holdfast, sys; assert 'redis' not in sys.modules; assert holdfast.Client; import holdfast as h; h.SyncClient"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    with pytest.raises(AttributeError, match="Clint"):
        holdfast.Clint  # noqa: B018
