"""The variables of OpenTelemetry alone turn traces on, in every process; a collector is a real HTTP server here."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from grpc import StatusCode, aio
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.redis.client import Redis
from holdfast.runs.run import Submission
from holdfast.services.residents import Residents
from holdfast.telemetry.traces import inject
from tests.support.events.event_receiver import Receiver
from tests.support.processes import forked
from tests.support.runs.system import System
from tests.support.waiting import until

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
AGENTS = """
from opentelemetry import trace
from holdfast import App

app = App("traced")


@app.agent
async def inline(value):
    with trace.get_tracer("mine").start_as_current_span("my work"):
        return value


@app.schedule(every="1s")
async def tidy() -> None:
    pass


@app.schedule(every="1s")
@app.agent(isolation="process")
async def apart() -> None:
    pass


@app.resident
class Clerk:
    async def receive(self, ctx, message):
        with trace.get_tracer("mine").start_as_current_span("my work"):
            return message


@app.agent(isolation="process")
async def isolated(value):
    with trace.get_tracer("mine").start_as_current_span("my work"):
        return value
"""


@dataclass(frozen=True)
class Told:
    """A span as a collector has it."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: str
    failed: bool


class Collector(ThreadingHTTPServer):
    """Takes spans over OTLP, as a collector does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.spans: list[Told] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def take(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {each.key: each.value.string_value for each in group.resource.attributes}[
                "service.name"
            ]
            self.spans += [
                Told(
                    service,
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    Span.SpanKind.Name(span.kind),
                    span.status.code == Status.STATUS_CODE_ERROR,
                )
                for scope in group.scope_spans
                for span in scope.spans
            ]

    def find(self, name: str) -> Told | None:
        return next((span for span in self.spans if span.name == name), None)


class _Request(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/traces":
            self.server.take(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Command:
    """A command of Holdfast with some variables, as a user starts it; what it logs is JSON."""

    def __init__(self, system: System, folder: Path, *words: str, code: str = "", **environ: str) -> None:
        (folder / "agents.py").write_text(code + AGENTS)
        settings = system.settings
        ours = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("HOLDFAST_", "OTEL_"))
            },
            "REDIS_URL": settings.redis.url,
            "MESSAGING_QUEUE_NAME": settings.queue.name,
            "HOLDFAST_DATABASE_PATH": settings.database.path,
            "HOLDFAST_API_PORT": "0",
            "HOLDFAST_API_LINGER_SECONDS": "0",
        }
        self._path = folder / f"{words[0]}.log"
        with self._path.open("wb") as log:
            self.process = forked.Popen(
                [sys.executable, "-m", "holdfast", *words, "--json"],
                cwd=folder,
                env={**ours, **environ},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def lines(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]

    async def says(self, event: str) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            assert self.process.poll() is None, self._path.read_text()
            return next((line for line in self.lines() if line.get("event") == event), None)

        return await until(find, what=f"{event!r} in the log")

    async def end(self, signum: int = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return await until(self.process.poll, lambda code: code is not None, what="the end of the command")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
async def system(redis: Redis, redis_settings):
    async with System(redis_settings, ttl=20.0) as system:
        yield system


@pytest.mark.parametrize("agent", ["inline", "isolated"])
async def test_a_request_its_run_and_what_the_agent_does_are_one_trace(system, collector, tmp_path, agent):
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with (
        Command(system, tmp_path, "worker", "--app", "agents.py:app", **traced) as worker,
        Command(system, tmp_path, "api", **traced) as api,
    ):
        await worker.says("worker ready")
        port = (await api.says("api ready"))["port"]
        async with httpx.AsyncClient() as client:
            accepted = await client.post(
                f"http://127.0.0.1:{port}/execute",
                json={"agent_id": agent, "input": 7},
                headers={"traceparent": f"00-{TRACE}-{CALLER}-01"},
            )
        assert accepted.status_code == 202, accepted.text
        run = await system.ended(accepted.json()["correlation_id"])
        assert run.result == 7
        for name in ("POST /execute", f"run {agent}", "my work"):
            await until(lambda name=name: collector.find(name), what=f"the span {name!r}")
        assert [await api.end(), await worker.end()] == [0, 0]
    request, own = collector.find("POST /execute"), collector.find("my work")
    runs = {span.id: span for span in collector.spans if span.name == f"run {agent}"}
    assert {request.trace, own.trace, *(span.trace for span in runs.values())} == {TRACE}
    assert (request.service, request.trace, request.parent) == ("holdfast-api", TRACE, CALLER)
    outermost = next(span for span in runs.values() if span.parent not in runs)
    assert (outermost.service, outermost.trace, outermost.parent) == ("holdfast-worker", TRACE, request.id)
    assert (own.service, own.trace) == ("holdfast-worker", TRACE)
    assert len(runs) == (2 if agent == "isolated" else 1)
    assert own.parent not in {span.parent for span in runs.values()}, "a child of the innermost"
    assert own.parent in runs


async def test_calls_of_hosts_messages_to_residents_and_turns_are_spans(system, collector, spans, tmp_path):
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    app = ("--app", "agents.py:app")
    with (
        Command(system, tmp_path, "host", *app, GRPC_PORT="0", **traced) as host,
        Command(system, tmp_path, "scheduler", *app, **traced) as scheduler,
    ):
        address = (await host.says("host ready"))["address"]
        with trace.get_tracer("mine").start_as_current_span("caller") as caller:
            async with Residents(system.settings) as residents:
                await residents.start("Clerk", "clerk")
                assert await residents.ask("clerk", 7) == 7
                await residents.stop("clerk")
            async with aio.insecure_channel(address) as channel:
                with pytest.raises(aio.AioRpcError) as refused:
                    await AgentHostServiceStub(channel).GetAgentInfo(
                        wire.GetAgentInfoRequest(agent_id="nobody"), metadata=tuple(inject().items())
                    )
        assert refused.value.code() is StatusCode.NOT_FOUND
        names = ("host CreateAgent", "host GetAgentInfo", "run receive", "my work", "run tidy", "run apart")
        found = {
            name: await until(lambda name=name: collector.find(name), what=f"the span {name!r}")
            for name in names
        }
        assert [await scheduler.end(), await host.end()] == [0, 0]
    asked = caller.get_span_context()
    parent = (f"{asked.trace_id:032x}", f"{asked.span_id:016x}")
    create, info, receive, own, turn, _ = (found[name] for name in names)
    for call in (create, info):
        assert (call.service, call.kind, call.failed) == ("holdfast-host", "SPAN_KIND_SERVER", False)
        assert (call.trace, call.parent) == parent
    assert (receive.service, receive.kind, receive.trace, receive.parent) == (
        "holdfast-resident",
        "SPAN_KIND_CONSUMER",
        *parent,
    )
    assert (own.service, own.parent) == ("holdfast-resident", receive.id)
    assert (turn.service, turn.kind, turn.parent) == ("holdfast-scheduler", "SPAN_KIND_CONSUMER", "")
    isolated = {span.service for span in collector.spans if span.name == "run apart"}
    assert isolated == {"holdfast-scheduler"}, "its child, too"


async def test_a_delivery_is_a_span_of_the_relay_and_a_child_of_the_submitter(
    system, collector, spans, tmp_path
):
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    private = {"HOLDFAST_RELAY_PRIVATE_WEBHOOKS": "true"}
    async with Receiver() as receiver:
        receiver.behave = lambda path, body: 204 if len(receiver.got) else 503
        with Command(system, tmp_path, "relay", **traced, **private) as relay:
            await relay.says("relay ready")
            with trace.get_tracer("mine").start_as_current_span("caller") as caller:
                await system.queue.submit(Submission(agent="inline", webhook=receiver.url))
            deliveries = await until(
                lambda: [span for span in collector.spans if span.name == "deliver webhook"],
                lambda found: len(found) == 2,
            )
            assert await relay.end() == 0
    asked = caller.get_span_context()
    of_trace, submitter = f"{asked.trace_id:032x}", f"{asked.span_id:016x}"
    assert [span.failed for span in deliveries] == [True, False], "each try is one"
    for span, got in zip(deliveries, receiver.got, strict=True):
        assert (span.service, span.kind) == ("holdfast-relay", "SPAN_KIND_CLIENT")
        assert (span.trace, span.parent) == (of_trace, submitter)
        assert got.headers["traceparent"].split("-")[1:3] == [of_trace, span.id]
        assert got.event["traceparent"].split("-")[1:3] == [of_trace, submitter]


async def test_what_is_left_is_sent_when_a_process_ends(system, collector, tmp_path):
    """Fails if the last spans go with the process: here they would wait for an hour."""
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
    with Command(system, tmp_path, "worker", "--app", "agents.py:app", **traced) as worker:
        await worker.says("worker ready")
        await system.ended(await system.submit("inline", 1))
        assert await worker.end() == 0
    assert collector.find("run inline")


async def test_a_collector_that_hangs_holds_up_no_run_and_no_end(system, tmp_path):
    """Fails if the end waits for as long as the exporter tries again, or a run for its span to be sent."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # it accepts, and never answers
        traced = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hanging.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "300",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        with Command(system, tmp_path, "worker", "--app", "agents.py:app", **traced) as worker:
            await worker.says("worker ready")
            for agent in ("inline", "isolated"):
                assert (await system.ended(await system.submit(agent, 1))).result == 1
            assert await worker.end() == 0
    assert "lingering" not in str(worker.lines()), "the process of an attempt waited for the collector"


OWN_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())
"""


@pytest.mark.parametrize(
    ("environ", "code", "told"),
    [
        ({}, "", []),
        ({"OTEL_SDK_DISABLED": "true"}, "", []),
        ({"OTEL_TRACES_EXPORTER": "none"}, "", []),
        (
            {"OTEL_TRACES_EXPORTER": "zipkin"},
            "",
            ["OTEL_TRACES_EXPORTER must be otlp, console or none, got 'zipkin'"],
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "", ["the OTLP protocol must be one of"]),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "", ["opentelemetry-exporter-otlp-proto-grpc"]),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "", ["max_queue_size"]),
        ({}, OWN_PROVIDER, []),
    ],
)
async def test_whatever_the_variables_say_runs_go_on(system, collector, tmp_path, environ, code, told):
    """Fails if a variable that is meant for others, or wrong, keeps a worker from its work."""
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **environ} if environ or code else {}
    with Command(system, tmp_path, "worker", "--app", "agents.py:app", code=code, **traced) as worker:
        await worker.says("worker ready")
        for agent in ("inline", "isolated"):
            assert (await system.ended(await system.submit(agent, 1))).result == 1
        assert await worker.end() == 0
    warned = [line["why"] for line in worker.lines() if line.get("event") == "tracing not started"]
    assert collector.spans == []
    assert bool(warned) == bool(told)
    assert all(words in why for words in told for why in warned)


async def test_spans_on_the_console_are_lines_of_json_beside_the_log(system, tmp_path):
    with Command(
        system, tmp_path, "worker", "--app", "agents.py:app", OTEL_TRACES_EXPORTER="console"
    ) as worker:
        await worker.says("worker ready")
        await system.ended(await system.submit("inline", 1))
        assert await worker.end() == 0
    assert [line["name"] for line in worker.lines() if "event" not in line] == ["my work", "run inline"]


async def test_the_names_of_the_variables_hold(system, collector, tmp_path):
    traced = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_SERVICE_NAME": "mine",
    }
    with Command(system, tmp_path, "worker", "--app", "agents.py:app", **traced) as worker:
        await worker.says("worker ready")
        await system.ended(await system.submit("inline", 1))
        assert await worker.end() == 0
    assert {span.service for span in collector.spans} == {"mine"}
