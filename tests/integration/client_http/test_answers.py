"""What the API, or somebody else at its address, answers becomes an error of ours that says what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import web
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

from holdfast import (
    AccessDenied,
    ApiUnavailable,
    App,
    Client,
    ConfigError,
    Conflict,
    Context,
    EventsExpired,
    HoldfastError,
    InputError,
    NotFound,
    PayloadTooLarge,
    QueueFull,
    QueuePaused,
    RedisUnavailable,
    Refused,
    RunCancelled,
    SyncClient,
    UnknownAgent,
)
from holdfast.client.transports.http import transport
from holdfast.runs.run import Status
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store
from tests.support.api.server import key_line

app = App("tests")


@app.agent
async def echo(value):
    return value


@pytest.fixture
async def client(api, settings) -> AsyncIterator[Client]:
    async with Client(api_url=(await api()).url, settings=settings) as client:
        yield client


# -- refusals


async def test_a_paused_queue_says_when_to_come_back(client, system):
    await system.queue.pause("maintenance")
    with pytest.raises(QueuePaused, match="agent-queue") as caught:
        await client.submit("echo")
    assert caught.value.retry_after == 30


async def test_a_full_queue_says_when_to_come_back(api, settings, system):
    small = msgspec.structs.replace(system.settings.queue, max_depth=1)
    async with Client(api_url=(await api(changes={"queue": small})).url, settings=settings) as client:
        await client.submit("echo")
        with pytest.raises(QueueFull, match="max_depth") as caught:
            await client.submit("echo")
        assert caught.value.retry_after == 5


async def test_a_redis_that_is_away_is_named_as_that(api, settings, fault_proxy, proxied_settings):
    url = (await api(changes={"redis": proxied_settings})).url
    async with Client(api_url=url, settings=settings) as client:
        known = await client.submit("echo", run_id="a")
        fault_proxy.refuse()
        fault_proxy.reset()
        for work in (
            known.status(),
            known.result(),
            known.cancel(),
            client.submit("echo"),
            anext(known.events()),
        ):
            with pytest.raises(RedisUnavailable, match="Redis") as caught:
                await work
            assert caught.value.retry_after >= 1
        fault_proxy.heal()


async def test_a_message_may_be_too_large_for_the_queue_or_for_the_api(client):
    with pytest.raises(PayloadTooLarge, match="max_payload_bytes"):
        await client.submit("echo", "x" * 1_500_000)
    for size in (3_000_000, 30_000_000):
        with pytest.raises(PayloadTooLarge, match="max_body_bytes"):
            await client.submit("echo", "x" * size)
    large = await client.submit("echo", "x" * 1_000_000)
    assert len((await large.run()).input) == 1_000_000


async def test_what_is_wrong_with_a_request_is_said(client):
    with pytest.raises(InputError, match="thread_id"):
        await client.submit("echo", thread_id="two words")
    with pytest.raises(InputError, match="idempotency_key"):
        await client.submit("echo", idempotency_key="a\r\nX-Header: b")
    with pytest.raises(NotFound, match="no queue 'other'"):
        await client.submit("echo", queue="other")
    first = await client.submit("echo", thread_id="t")
    with pytest.raises(Conflict, match=first.run_id):
        await client.submit("echo", thread_id="t", multitask="reject")


async def test_an_api_with_an_app_knows_its_agents(api, settings):
    async with Client(api_url=(await api(app)).url, settings=settings) as client:
        assert (await client.submit("echo")).fresh
        with pytest.raises(UnknownAgent, match="other"):
            await client.submit("other")


async def test_a_run_is_found_in_whichever_queue_it_is(api, settings, system):
    queues = {"media": system.settings.queue.renamed("media")}
    async with Client(api_url=(await api(changes={"queues": queues})).url, settings=settings) as client:
        run_id = (await client.submit("echo", queue="media")).run_id
        assert (await client.handle(run_id).run()).queue == "media"
        assert client.handle(run_id).queue == ""


async def test_the_same_id_in_two_queues_is_two_runs(api, settings, system):
    queues = {"media": system.settings.queue.renamed("media")}
    async with Client(api_url=(await api(changes={"queues": queues})).url, settings=settings) as client:
        handles = {
            queue: await client.submit("echo", queue, run_id="same/result", queue=queue)
            for queue in ("agent-queue", "media")
        }
        for queue, handle in handles.items():
            run = await handle.run()
            assert (run.queue, run.input) == (queue, queue)
            assert (await anext(handle.events())).type == "submitted"
        assert await client.cancel("same/result", queue="media") == "cancelled"
        with pytest.raises(RunCancelled):
            await handles["media"].result(timeout=20)
        assert [event.type async for event in handles["media"].events()] == ["submitted", "cancelled"]
        assert await handles["agent-queue"].status() == "queued"
        await client.retry("same/result", queue="media")
        with pytest.raises(NotFound, match="in queue 'media'"):
            await client.handle("other", queue="media").run()


async def test_a_result_is_waited_for_while_the_run_waits_for_an_answer(api, settings, system, monkeypatch):
    asking = App("tests")

    @asking.agent
    async def asks(ctx: Context, value):
        return await ctx.interrupt(value)

    # One look would have to be enough: the API tells the end when it comes.
    monkeypatch.setattr(transport, "_LOOK_SECONDS", (60.0, 60.0))
    await system.worker(asking)
    async with Client(api_url=(await api()).url, settings=settings) as client:
        handle = await client.submit("asks", 7)
        await system.reaches(handle.run_id, Status.INTERRUPTED)
        result = asyncio.create_task(handle.result(timeout=30))
        done, _ = await asyncio.wait((result,), timeout=0.3)
        assert not done
        await handle.resume("yes")
        assert await result == "yes"


async def test_a_run_is_a_part_of_its_submitters_trace(client, system):
    span = NonRecordingSpan(
        SpanContext(0xAF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_remote=False)
    )
    with use_span(span):
        handles = [await client.submit("echo"), *await client.submit_many([{"agent": "echo"}])]
    for handle in handles:
        message = await system.queue.redis.hget(system.queue.keys.run(handle.run_id), "message")
        parent = msgspec.json.decode(message)["trace"]["traceparent"]
        assert parent.split("-")[1:3] == ["0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"]


async def test_events_that_are_not_kept_any_more_are_told_as_that(api, settings, system):
    running = await api()
    async with await open_store(running.process._settings.database) as store:
        await store.archive([ArchivedRun(id="old", queue="agent-queue", status="failed", finished_at=1.0)])
    async with Client(api_url=running.url, settings=settings) as client:
        with pytest.raises(EventsExpired, match="old"):
            await anext(client.handle("old").events())


# -- keys


async def test_a_key_opens_what_its_roles_allow(api, settings):
    keys = (key_line("all"), key_line("reader", roles="read"), key_line("sender", roles="submit"))
    url = (await api(keys=keys)).url
    async with Client(api_url=url, api_key="all-secret", settings=settings) as client:
        run_id = (await client.submit("echo")).run_id
    async with Client(api_url=url, api_key="reader-secret", settings=settings) as client:
        assert (await client.handle(run_id).run()).id == run_id
        for work in (
            client.submit("echo"),
            client.cancel(run_id),
            client.retry(run_id),
            client.resume(run_id),
        ):
            with pytest.raises(AccessDenied, match="role"):
                await work
    async with Client(api_url=url, api_key="sender-secret", settings=settings) as client:
        assert await client.cancel(run_id) == "cancelled"
        handle = client.handle(run_id)
        for work in (handle.status(), handle.result(), anext(handle.events())):
            with pytest.raises(AccessDenied, match="role"):
                await work


@pytest.mark.parametrize("key", ["", "wrong"])
async def test_without_a_key_that_is_known_nothing_is_open(api, settings, key):
    url = (await api(keys=(key_line("all"),))).url
    async with Client(api_url=url, api_key=key, settings=settings) as client:
        for work in (
            client.submit("echo"),
            client.submit_many([{"agent": "echo"}] * 3),
            client.handle("a").result(),
            client.cancel("a"),
            anext(client.handle("a").events()),
        ):
            with pytest.raises(AccessDenied, match="HOLDFAST_API_KEY") as caught:
                await work
            assert "wrong" not in str(caught.value)


async def test_a_tenants_runs_are_its_own(api, settings):
    url = (await api(keys=(key_line("acme", tenant="acme"), key_line("other", tenant="other")))).url
    async with (
        Client(api_url=url, api_key="acme-secret", settings=settings) as acme,
        Client(api_url=url, api_key="other-secret", settings=settings) as other,
    ):
        handle = await acme.submit("echo", thread_id="t")
        run = await handle.run()
        assert (run.tenant, run.thread_id) == ("acme", "t")
        for work in (other.handle(handle.run_id).status(), other.cancel(handle.run_id)):
            with pytest.raises(NotFound, match=handle.run_id):
                await work
        with pytest.raises(InputError, match="tenant"):
            await other.submit("echo", tenant="acme")


async def test_the_environment_names_the_api_and_the_key(api, monkeypatch, tmp_path):
    url = (await api(keys=(key_line("all"),))).url
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    monkeypatch.setenv("HOLDFAST_API_URL", url)
    monkeypatch.setenv("HOLDFAST_API_KEY", "all-secret")
    async with Client() as client:
        assert (await client.submit("echo", run_id="a")).fresh

    def script() -> str:
        with SyncClient() as client:
            return client.handle("a").status()

    assert await asyncio.to_thread(script) == "queued"
    async with Client(api_url=url, api_key="all-secret") as client:
        assert not (await client.submit("echo", run_id="a")).fresh
    # The key is for the API that it stands beside, not for any.
    async with Client(api_url=f"{url}/") as client:
        assert not (await client.submit("echo", run_id="a")).fresh
    async with Client(api_url=url.replace("127.0.0.1", "localhost")) as client:
        with pytest.raises(AccessDenied):
            await client.submit("echo")


# -- addresses


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8080",
        "ftp://localhost",
        "http://",
        "http://:8080",
        "http://localhost:port",
        "http://localhost:0",
        "http://localhost:99999",
        "http://[::1",
        "http://local host",
        "http://localhost/\r\nX-Header: 1",
        "http://user:password@localhost",
        "http://localhost?a=1",
        "http://localhost/#a",
    ],
)
async def test_a_url_that_can_not_be_one_is_named(settings, url):
    with pytest.raises(ConfigError, match="HOLDFAST_API_URL") as caught:
        async with Client(api_url=url, settings=settings):
            pass
    assert "password@" not in str(caught.value)


async def test_a_key_that_can_not_be_one_is_refused_and_not_shown(settings):
    for key in ("se cret", "secret\r\nX-Header: 1", "secrét"):
        with pytest.raises(ConfigError, match="HOLDFAST_API_KEY") as caught:
            async with Client(api_url="http://localhost", api_key=key, settings=settings):
                pass
        assert "cr" not in str(caught.value)


async def test_a_name_that_nobody_has_can_not_be_reached(settings):
    hasty = msgspec.structs.replace(settings, client=msgspec.structs.replace(settings.client, max_retries=0))
    async with Client(api_url="http://nobody.invalid", settings=hasty) as client:
        with pytest.raises(ApiUnavailable, match=r"nobody\.invalid"):
            await client.submit("echo")


# -- somebody else


@pytest.fixture
async def somebody(settings):
    """Somebody else at the address: ``somebody(handler)`` gives a client of it."""
    runners, clients = [], []

    async def start(handler, **changes) -> Client:
        other = web.Application()
        other.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(other)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        slice_ = msgspec.structs.replace(settings.client, **changes)
        client = Client(
            api_url=f"http://127.0.0.1:{port}", settings=msgspec.structs.replace(settings, client=slice_)
        )
        clients.append(await client.__aenter__())
        return client

    yield start
    for client in clients:
        await client.__aexit__(None, None, None)
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "headers", "error", "said"),
    [
        (200, {}, ConfigError, "no API of Holdfast"),
        (301, {"Location": "https://elsewhere.example/"}, ConfigError, "elsewhere.example"),
        (400, {}, HoldfastError, "400"),
        (401, {}, AccessDenied, "HOLDFAST_API_KEY"),
        (403, {}, AccessDenied, "HOLDFAST_API_KEY"),
        (404, {}, ConfigError, "HOLDFAST_API_URL"),
        (413, {}, PayloadTooLarge, "413"),
        (429, {"Retry-After": "7"}, Refused, "429"),
        (500, {}, ApiUnavailable, "500"),
        (502, {}, ApiUnavailable, "502"),
        (503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, ApiUnavailable, "503"),
        (504, {}, ApiUnavailable, "504"),
    ],
)
async def test_what_a_stranger_answers_is_told(somebody, status, headers, error, said):
    async def stranger(request):
        return web.Response(
            status=status, headers=headers, text="<html>hello</html>", content_type="text/html"
        )

    client = await somebody(stranger, max_retries=1)
    handle = client.handle("a")
    for work in (
        client.submit("echo"),
        handle.status(),
        handle.result(),
        handle.cancel(),
        anext(handle.events()),
    ):
        with pytest.raises(error, match=said) as caught:
            await work
        assert type(caught.value) is error
        if status == 429:
            assert caught.value.retry_after == 7


async def test_a_proxys_trouble_is_waited_out(somebody, api):
    real, asked = (await api()).client(), []

    async def proxy(request):
        asked.append(request.path)
        if len(asked) % 3:
            return web.Response(status=502, text="bad gateway")
        answer = await real.request(request.method, request.path_qs, content=await request.read())
        return web.Response(status=answer.status_code, body=answer.content, content_type="application/json")

    client = await somebody(proxy, max_retries=2)
    handle = await client.submit("echo")
    assert handle.fresh
    assert (await handle.run()).agent == "echo"
    assert len(asked) == 6


async def test_a_stream_that_repeats_itself_gives_each_event_once(somebody):
    pages = iter(
        [
            b"id: 1-0\nevent: submitted\ndata: {}\n\nid: 2-0\nevent: a\nda",  # broken off within an event
            b": alive\n\nid: 1-0\nevent: submitted\ndata: {}\n\nid: 2-0\nevent: a\ndata: 1\n\n",
            b"id: 2-0\r\nevent: a\r\ndata: 1\r\n\r\nid: 10-0\r\nevent: succeeded\r\ndata: {}\r\n\r\n",
        ]
    )
    asked = []

    async def repeats(request):
        asked.append(request.headers["Last-Event-ID"])
        page = next(pages, None)
        if page is None:
            return web.Response(status=204)
        return web.Response(body=page, content_type="text/event-stream")

    client = await somebody(repeats)
    seen = [(event.id, event.type, event.data, event.at) async for event in client.handle("a").events()]
    assert seen == [("1-0", "submitted", {}, 0.001), ("2-0", "a", 1, 0.002), ("10-0", "succeeded", {}, 0.01)]
    assert asked == ["0", "1-0", "2-0", "10-0"]


async def test_a_stream_that_is_no_feed_is_told(somebody):
    async def other(request):
        return web.Response(body=b"data: hello\n\n", content_type="text/event-stream")

    with pytest.raises(ConfigError, match="no API of Holdfast"):
        await anext((await somebody(other)).handle("a").events())


async def test_many_are_not_sent_one_by_one_to_an_api_that_is_away(somebody):
    asked = []

    async def broken(request):
        asked.append(request.path)
        return web.Response(status=500)

    client = await somebody(broken, max_retries=0)
    answers = await client.submit_many([{"agent": "echo"}] * 1000, return_errors=True)
    assert {type(answer) for answer in answers} == {ApiUnavailable}
    assert len(answers) == 1000
    assert asked == ["/execute/batch"]


async def test_many_travel_together_and_an_api_that_allows_less_gets_them_in_parts(api, settings, system):
    running = await api(max_body_bytes=20_000)
    async with Client(api_url=running.url, settings=settings) as client:
        wanted = [{"agent": "echo", "input": [number, "x" * 1000], "thread_id": "t"} for number in range(100)]
        wanted[50] = {"agent": "echo", "input": "x" * 30_000}
        answers = await client.submit_many(wanted, return_errors=True)
    assert isinstance(answers.pop(50), PayloadTooLarge)
    assert all(answer.fresh for answer in answers)
    runs = [await system.queue.get(answer.run_id) for answer in answers]
    assert [run.input[0] for run in runs] == [number for number in range(100) if number != 50]
    times = [run.submitted_at for run in runs]
    assert times == sorted(times)
    asked = {"kind": "/execute/batch", "status": "200"}
    assert running.process.metrics.registry.get_sample_value("holdfast_http_requests_total", asked) < 50


async def test_many_are_told_apart_one_by_one(client, system):
    old = await client.submit("echo", run_id="old")
    answers = await client.submit_many(
        [
            {"agent": "echo", "run_id": "old"},
            {"agent": "echo", "idempotency_key": "k"},
            {"agent": "echo", "idempotency_key": "k"},
            {"agent": "echo", "idempotency_key": "two words"},
            {"agent": "echo", "thread_id": "two words"},
            {"agent": "echo", "input": float("nan")},
            {"agent": "echo"},
        ],
        return_errors=True,
    )
    assert (answers[0].run_id, answers[0].fresh) == (old.run_id, False)
    assert (answers[1].fresh, answers[2].fresh, answers[6].fresh) == (True, False, True)
    assert answers[1].run_id == answers[2].run_id
    assert [type(answer) for answer in answers[3:6]] == [InputError] * 3
    await system.queue.pause("upgrade")
    (refused,) = await client.submit_many([{"agent": "echo"}], return_errors=True)
    assert isinstance(refused, QueuePaused)
    assert refused.retry_after == 30


# -- what is loaded


def test_only_a_client_over_http_loads_its_library():
    code = """
import asyncio, sys, holdfast
from holdfast import Client, ConfigError, SyncClient
from holdfast.config import Settings
async def main():
    async with Client("redis://127.0.0.1:1", settings=Settings()):
        assert "aiohttp" not in sys.modules, "loaded"
    sys.modules["aiohttp"] = None
    try:
        async with Client(api_url="http://127.0.0.1:1", settings=Settings()):
            pass
    except ConfigError as exc:
        assert "holdfast[http]" in str(exc), exc
    else:
        raise AssertionError("no error")
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
