"""Event streams over HTTP: in order, once each, from any replica, until the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass

from holdfast import App, Context
from holdfast.config.durations import iso
from tests.support.waiting import until


@dataclass(frozen=True)
class Heard:
    id: str
    event: str
    data: object


class Listener:
    """Reads a stream of Server-Sent Events, as a browser would."""

    def __init__(self, client, path: str, **options) -> None:
        self.events: list[Heard] = []
        self.comments: list[str] = []
        self.retries: list[str] = []
        self.status = 0
        self.task = asyncio.create_task(self._read(client, path, options))

    async def _read(self, client, path, options) -> None:
        async with client.stream("GET", path, **options) as answer:
            self.status = answer.status_code
            self.headers = answer.headers
            fields: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    self.comments.append(line)
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                else:
                    self._dispatch(fields)
                    fields = {}

    def _dispatch(self, fields) -> None:
        if "retry" in fields:
            self.retries.append(fields["retry"])
        if "data" in fields:
            self.events.append(Heard(fields["id"], fields["event"], json.loads(fields["data"])))

    async def ended(self) -> Listener:
        await asyncio.wait_for(self.task, 20)
        return self

    @property
    def kinds(self) -> list[str]:
        return [event.event for event in self.events]


def agents(gate: asyncio.Event) -> App:
    app = App("api-tests")

    @app.agent
    async def talks(ctx: Context, value):
        await ctx.emit("thinking", {"value": value})
        await gate.wait()
        await ctx.emit("line\nbreak", "two\nlines")
        return value

    return app


async def test_events_come_as_they_happen_and_end_with_the_run(system, client):
    gate = asyncio.Event()
    await system.worker(agents(gate))
    await client.post("/execute", json={"agent_id": "talks", "input": 7, "correlation_id": "a"})
    listener = Listener(client, "/runs/a/events")
    await until(lambda: "thinking" in listener.kinds)
    assert not listener.task.done()
    gate.set()
    await listener.ended()
    assert listener.headers["content-type"].startswith("text/event-stream")
    assert listener.headers["cache-control"] == "no-store"
    assert listener.retries[0].isdigit()
    assert listener.kinds == ["submitted", "started", "thinking", "line break", "succeeded"]
    assert listener.events[2].data == {"value": 7}
    assert listener.events[3].data == "two\nlines"
    assert [event.id for event in listener.events] == sorted({event.id for event in listener.events})


async def test_a_client_comes_back_to_another_replica_and_misses_nothing(system, api):
    one, two = (await api()).client(), (await api()).client()
    gate = asyncio.Event()
    await system.worker(agents(gate))
    await one.post("/execute", json={"agent_id": "talks", "correlation_id": "a"})
    first = Listener(one, "/runs/a/events")
    await until(lambda: "thinking" in first.kinds)
    first.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first.task
    seen = first.events[-1].id
    rest = Listener(two, "/runs/a/events?after=0", headers={"Last-Event-ID": seen})
    gate.set()
    await rest.ended()
    whole = await Listener(one, "/runs/a/events").ended()
    assert first.events + rest.events == whole.events
    parameter = await Listener(two, f"/runs/a/events?after={seen}").ended()
    assert parameter.events == rest.events
    over = await two.get("/runs/a/events", headers={"Last-Event-ID": whole.events[-1].id})
    assert (over.status_code, over.content) == (204, b"")


async def test_lines_of_json_for_those_who_ask(system, client):
    gate = asyncio.Event()
    gate.set()
    await system.worker(agents(gate))
    await client.post("/execute", json={"agent_id": "talks", "correlation_id": "a"})
    answer = await client.get("/runs/a/events", headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines() if line]
    assert [line["type"] for line in lines][-1] == "succeeded"
    assert set(lines[0]) == {"id", "type", "at", "at_iso", "data"}
    assert lines[0]["at_iso"] == iso(lines[0]["at"])


async def test_what_is_there_can_be_read_without_waiting(client):
    await client.post("/execute", json={"agent_id": "nobody", "correlation_id": "a"})
    listener = await Listener(client, "/runs/a/events?follow=false").ended()
    assert listener.kinds == ["submitted"]


async def test_a_silent_stream_says_that_it_lives(api):
    client = (await api(keep_alive_seconds=0.05)).client()
    await client.post("/execute", json={"agent_id": "nobody", "correlation_id": "a"})
    listener = Listener(client, "/runs/a/events")
    await until(lambda: len(listener.comments) >= 3)
    listener.task.cancel()


async def test_a_stream_of_nothing_is_refused(client):
    assert (await client.get("/runs/missing/events")).status_code == 404
    await client.post("/execute", json={"agent_id": "nobody", "correlation_id": "a"})
    for refused in (
        await client.get("/runs/a/events?after=yesterday"),
        await client.get("/runs/a/events", headers={"Last-Event-ID": "x"}),
    ):
        assert refused.status_code == 422
        assert refused.headers["content-type"] == "application/problem+json"


async def test_streams_are_counted_while_they_are_open(api):
    running = await api()
    client = running.client()
    await client.post("/execute", json={"agent_id": "nobody", "correlation_id": "a"})
    gauge = running.process.metrics.http_streams
    listener = Listener(client, "/runs/a/events")
    await until(lambda: "submitted" in listener.kinds)
    assert gauge._value.get() == 1
    listener.task.cancel()
    await until(lambda: gauge._value.get() == 0)


async def test_a_stream_outlives_a_redis_that_goes_away(system, api, fault_proxy, proxied_settings):
    client = (await api(redis=proxied_settings)).client()
    gate = asyncio.Event()
    await system.worker(agents(gate))
    await client.post("/execute", json={"agent_id": "talks", "correlation_id": "a"})
    listener = Listener(client, "/runs/a/events")
    await until(lambda: "thinking" in listener.kinds)
    fault_proxy.refuse()
    gate.set()
    await system.ended("a")
    fault_proxy.heal()
    await listener.ended()
    assert listener.kinds == ["submitted", "started", "thinking", "line break", "succeeded"]
