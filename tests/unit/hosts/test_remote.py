"""Calls to hosts over gRPC: the channels that are kept, and how often a call is tried."""

from __future__ import annotations

import contextlib

import grpc
import pytest
from grpc import aio
from opentelemetry import trace

from holdfast.config import HostSettings
from holdfast.hosts.agent import Agent
from holdfast.hosts.call_metrics import CallCounter
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import (
    AgentHostServiceServicer,
    add_AgentHostServiceServicer_to_server,
)
from holdfast.hosts.remote import RemoteCalls
from holdfast.hosts.transport import CallFailed
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.traces import inject
from tests.support.redis.valkey_process import free_port


class Clock:
    """Stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def ask_nobody(calls: RemoteCalls, address: str) -> None:
    with pytest.raises(CallFailed):
        await calls.health(address, timeout_seconds=5)


async def test_a_channel_that_nobody_uses_is_not_kept():
    clock = Clock()
    calls = RemoteCalls(HostSettings(), clock)
    gone, lives, new = (f"127.0.0.1:{free_port()}" for _ in range(3))
    try:
        await ask_nobody(calls, gone)
        await ask_nobody(calls, lives)
        clock.now = 400.0
        await ask_nobody(calls, lives)
        assert calls.addresses == {gone, lives}
        clock.now = 800.0
        await ask_nobody(calls, new)
        assert calls.addresses == {lives, new}
    finally:
        await calls.close()


class Reluctant(AgentHostServiceServicer):
    """A host that is not there for the first calls."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.calls = 0

    async def ListAgents(self, request, context) -> wire.ListAgentsResponse:  # noqa: N802 - gRPC calls it so
        self.calls += 1
        if self.calls <= self.refusals:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return wire.ListAgentsResponse()


@pytest.mark.parametrize(
    ("retries", "refusals", "calls", "answered"),
    [(0, 1, 1, False), (2, 2, 3, True), (2, 3, 3, False), (3, 0, 1, True)],
)
async def test_a_call_that_was_not_received_is_tried_again_as_often_as_the_setting_says(
    retries: int, refusals: int, calls: int, answered: bool
):
    host, server = Reluctant(refusals), aio.server()
    add_AgentHostServiceServicer_to_server(host, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    remote = RemoteCalls(HostSettings(grpc_max_retries=retries))
    try:
        with contextlib.nullcontext() if answered else pytest.raises(CallFailed, match="UNAVAILABLE"):
            await remote.list(address, wire.ListAgentsRequest())
        assert host.calls == calls
    finally:
        await remote.close()
        await server.stop(None)


class Traced(AgentHostServiceServicer):
    """A host that remembers what came with a call."""

    def __init__(self) -> None:
        self.request_id = ""
        self.trace = ""

    async def CreateAgent(self, request, context) -> wire.CreateAgentResponse:  # noqa: N802 - gRPC calls it so
        self.request_id = request.request_id
        self.trace = inject().get("traceparent", "")
        return wire.CreateAgentResponse(success=True)


async def test_a_call_has_an_id_and_goes_on_with_the_trace_of_its_caller():
    host, server = Traced(), aio.server(interceptors=[CallCounter(Metrics())])
    add_AgentHostServiceServicer_to_server(host, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    remote = RemoteCalls(HostSettings())
    wanted = Agent(agent_id="x", entry="plain", payload=b"{}")
    caller = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    try:
        await remote.create(address, wanted, 0)
        first = host.request_id
        assert (len(first), host.trace) == (32, "")
        with trace.use_span(trace.NonRecordingSpan(caller)):
            await remote.create(address, wanted, 0)
        assert host.request_id != first
        assert host.trace.split("-")[1] == f"{0xABC:032x}"
    finally:
        await remote.close()
        await server.stop(None)
