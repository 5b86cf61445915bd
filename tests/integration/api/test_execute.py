"""Asking for runs over HTTP."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime

import msgspec
import pytest

from holdfast import App, Context
from holdfast.config import RelaySettings
from holdfast.runs.run import Status


def agents() -> App:
    app = App("api-tests")

    @app.agent
    async def echo(ctx: Context, value):
        return value

    return app


async def test_a_run_is_queued_performed_and_read(system, client):
    accepted = await client.post("/execute", json={"agent_id": "echo", "input": {"n": [1, 2]}})
    assert accepted.status_code == 202
    receipt = accepted.json()
    assert receipt["status"] == "queued"
    assert receipt["run_id"] == receipt["correlation_id"]
    assert receipt["message_id"]
    await system.worker(agents())
    done = await client.get(f"/runs/{receipt['run_id']}/result", params={"wait": 20})
    assert done.status_code == 200
    assert done.json() == {"run_id": receipt["run_id"], "status": "succeeded", "result": {"n": [1, 2]}}
    run = (await client.get(f"/runs/{receipt['run_id']}")).json()
    assert (run["status"], run["input"], run["result"]) == ("succeeded", {"n": [1, 2]}, {"n": [1, 2]})
    for name in ("submitted_at", "finished_at"):
        assert datetime.fromisoformat(run[f"{name}_iso"]).timestamp() == pytest.approx(run[name], abs=0.001)
    assert run["due_at_iso"] == ""


async def test_everything_a_caller_says_reaches_the_run(system, client):
    wanted = {
        "agent_id": "echo",
        "correlation_id": "r/1",
        "thread_id": "t",
        "client_id": "c",
        "project_id": "p",
        "tenant": "acme",
        "priority": "high",
        "delay_seconds": 60,
        "timeout_seconds": 5,
        "metadata": {"a": 1},
    }
    accepted = await client.post("/execute", json=wanted)
    assert accepted.json() == {
        "status": "delayed",
        "run_id": "r/1",
        "correlation_id": "r/1",
        "message_id": "",
        "thread_id": "t",
    }
    run = (await client.get("/runs/r%2F1")).json()
    assert (run["tenant"], run["thread_id"], run["metadata"]) == ("acme", "t", {"a": 1})
    assert (await client.get("/runs/r/1/result")).json() == {"run_id": "r/1", "status": "delayed"}


async def test_the_same_correlation_id_or_key_is_the_same_run(client):
    first = await client.post("/execute", json={"agent_id": "echo", "correlation_id": "a", "thread_id": "t"})
    again = await client.post("/execute", json={"agent_id": "echo", "correlation_id": "a"})
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()
    key = {"Idempotency-Key": "k-1"}
    first = await client.post("/execute", json={"agent_id": "echo"}, headers=key)
    again = await client.post("/execute", json={"agent_id": "echo", "input": 2}, headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()


async def test_a_hundred_at_once_are_a_hundred_runs(system, client):
    answers = await asyncio.gather(
        *(client.post("/execute", json={"agent_id": "echo", "input": n}) for n in range(100))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["run_id"] for answer in answers}) == 100
    assert (await system.queue.depth()).undelivered == 100


async def test_an_unknown_agent_is_refused_where_the_app_is_known(api):
    client = (await api(agents())).client()
    refused = await client.post("/execute", json={"agent_id": "ecko"})
    assert refused.status_code == 404
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["type"] == "urn:holdfast:problem:unknown-agent"
    assert "did you mean 'echo'?" in problem["detail"]
    assert problem["request_id"] == refused.headers["x-request-id"]
    assert (await client.post("/execute", json={"agent_id": "echo"})).status_code == 202


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:18999/h", "http://localhost/", "http://[::1]/", "http://10.1.2.3/"),
        *("http://receiver:8080/", "http://receiver.shop.svc/hook", "http://r.shop.svc.cluster.local/"),
    ],
)
async def test_a_webhook_into_our_own_network_is_refused_and_not_dropped_later(system, api, url):
    system.settings = msgspec.structs.replace(system.settings, relay=RelaySettings())
    client = (await api()).client()
    for told in ({"webhook": url}, {"push": {"url": url}}):
        refused = await client.post("/execute", json={"agent_id": "echo", **told})
        assert refused.status_code == 422, refused.text
        assert "relay.private_webhooks" in refused.json()["detail"]
    assert (await system.queue.depth()).depth == 0
    accepted = await client.post("/execute", json={"agent_id": "echo", "webhook": "https://example.com/hook"})
    assert accepted.status_code == 202


@pytest.mark.parametrize(
    "url", ["http://example.com:99999/", "http://example.com:0/", "http://[::1/", "http://:80/"]
)
async def test_a_webhook_that_nobody_can_connect_to_is_refused(system, api, url):
    client = (await api()).client()
    for told in ({"webhook": url}, {"push": {"url": url}}):
        refused = await client.post("/execute", json={"agent_id": "echo", **told})
        assert (refused.status_code, "http:// or https:// URL" in refused.text) == (422, True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:18999/h", "http://receiver.shop.svc/hook"])
async def test_private_webhooks_can_be_allowed(system, api, url):
    client = (await api()).client()
    accepted = await client.post("/execute", json={"agent_id": "echo", "webhook": url})
    assert accepted.status_code == 202


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"{}", "agent_id"),
        (b'{"agent_id": "a b"}', "agent_id"),
        (b'{"agent_id": "a\\n"}', "agent"),
        (b'{"agent_id": "a", "agent": 1}', "unknown field `agent`: did you mean `agent_id`?"),
        (b'{"agent_id": "a", "delay": 1}', "unknown field `delay`: did you mean `delay_seconds`?"),
        (b'{"agent_id": "a", "priority": "urgent"}', "priority: 'urgent' is not one of high, low, normal"),
        (b'{"agent_id": "a", "action": "STOP"}', "action: 'STOP' is not one of RESUME, START"),
        (b'{"agent_id": "a", "delay_seconds": -1}', "delay_seconds"),
        (b'{"agent_id": "a", "timeout_seconds": 0}', "timeout_seconds"),
        (b'{"agent_id": "a", "correlation_id": "x:events"}', "events"),
        (b'{"agent_id": "a", "correlation_id": "a\\n"}', "run_id"),
        (b'{"agent_id": "a", "client_id": "a\\n"}', "one line"),
        (b'{"agent_id": "a", "webhook": "ftp://x"}', "webhook must be an http:// or https:// URL"),
        (b'{"agent_id": "a", "input": 1e999}', "input"),
        (b'{"agent_id": "a", "input": "\xff"}', "body"),
        (b'{"agent_id": "a", "input": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "body"),
        (b'{"agent_id": "a", "action": "RESUME"}', "correlation_id"),
    ],
)
async def test_a_bad_body_is_told_what_is_wrong_with_it(system, client, body, told):
    refused = await client.post("/execute", content=body)
    assert refused.status_code == 422, refused.text
    assert told in refused.json()["detail"]
    assert (await system.queue.depth()).depth == 0


async def test_a_full_or_paused_queue_says_when_to_come_back(system, api):
    client = (await api()).client()
    await system.queue.pause("upgrade")
    refused = await client.post("/execute", json={"agent_id": "echo"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
    assert refused.json()["type"] == "urn:holdfast:problem:queue-paused"
    assert "is paused (upgrade)" in refused.json()["detail"]
    await system.queue.resume()
    assert (await client.post("/execute", json={"agent_id": "echo"})).status_code == 202


async def test_an_unknown_queue_is_named(client):
    refused = await client.post("/execute", json={"agent_id": "echo", "queue": "agent-que"})
    assert refused.status_code == 404
    assert "did you mean 'agent-queue'?" in refused.json()["detail"]


async def test_a_busy_thread_may_be_refused(client):
    assert (await client.post("/execute", json={"agent_id": "echo", "thread_id": "t"})).status_code == 202
    wanted = {"agent_id": "echo", "thread_id": "t", "multitask": "reject"}
    refused = await client.post("/execute", json=wanted)
    assert refused.status_code == 409
    assert "busy" in refused.json()["detail"]


async def test_a_body_is_refused_while_it_is_read(api):
    running = await api(max_body_bytes=1024)
    client = running.client()
    assert (await client.post("/execute", content=b"x" * 1025)).status_code == 413

    # Without a length, and never ending: it is refused at the limit, not at its end.
    reader, writer = await asyncio.open_connection("127.0.0.1", running.process.port)
    writer.write(b"POST /execute HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n" + b"1\r\nx\r\n")
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().lower()
    assert head.startswith("http/1.1 413")
    assert "connection: close" in head
    assert json.loads(await reader.read())["type"] == "urn:holdfast:problem:too-large"
    writer.close()


async def test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes(api):
    running = await api(max_body_bytes=1024)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.process.port)
    writer.write(b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1025\r\n\r\n")
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().lower()
    assert head.startswith("http/1.1 413")
    assert "connection: close" in head
    writer.close()


async def test_a_run_that_asks_is_answered_through_execute(system, client):
    app = App("asks")

    @app.agent
    async def asks(ctx: Context, value):
        return {"answer": await ctx.interrupt({"approve": value})}

    await system.worker(app)
    body = {"agent_id": "asks", "input": 7, "correlation_id": "q"}
    assert (await client.post("/execute", json=body)).status_code == 202
    await system.reaches("q", Status.INTERRUPTED)
    waits = await client.get("/runs/q/result")
    assert waits.status_code == 202
    assert waits.json() == {"run_id": "q", "status": "interrupted", "interrupt": {"approve": 7}}
    other = {"agent_id": "other", "action": "RESUME", "correlation_id": "q", "input": True}
    assert (await client.post("/execute", json=other)).status_code == 409
    answer = await client.post("/execute", json={**other, "agent_id": "asks"})
    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    assert (await system.ended("q")).status is Status.SUCCEEDED
    assert (await client.get("/runs/q/result")).json()["result"] == {"answer": True}
    assert (await client.post("/runs/q/resume", json={"value": 1})).status_code == 409
