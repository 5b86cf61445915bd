"""Calls to hosts over gRPC: one channel each, with the credentials of the settings."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.hosts.security import call_metadata, open_channel, tls_stamp
from holdfast.hosts.transport import LOCAL, CallFailed, Trouble
from holdfast.hosts.wire_codec import create_fields
from holdfast.reliability.backoff import backoff_seconds
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.traces import inject

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import HostSettings
    from holdfast.hosts.agent import Agent

_log = get_logger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0
_UNUSED_SECONDS: Final = 600.0
TROUBLES: Final = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Trouble.NEXT,
    grpc.StatusCode.UNAVAILABLE: Trouble.NEXT,
    grpc.StatusCode.DEADLINE_EXCEEDED: Trouble.NEXT,
    grpc.StatusCode.CANCELLED: Trouble.NEXT,
    grpc.StatusCode.ALREADY_EXISTS: Trouble.HELD,
    grpc.StatusCode.FAILED_PRECONDITION: Trouble.STALE,
    grpc.StatusCode.NOT_FOUND: Trouble.HERE,
    grpc.StatusCode.INTERNAL: Trouble.FAILED,
}


class RemoteCalls:
    """The channels to all hosts that were called, until closed; for one event loop."""

    def __init__(self, settings: HostSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._metadata = call_metadata(settings)
        self._channels: dict[str, tuple[aio.Channel, AgentHostServiceStub]] = {}
        self._used: dict[str, float] = {}
        self._stamp = tls_stamp(settings)

    @property
    def addresses(self) -> set[str]:
        """The addresses of the open channels."""
        return set(self._channels)

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel, _ in channels.values()))

    async def create(self, address: str, agent: Agent, fence: int) -> None:
        """Call CreateAgent on a host; after a lost reply the agent may run."""
        request_id = uuid.uuid4().hex
        _log.debug(
            "agent requested from host", address=address, agent_id=agent.agent_id, request_id=request_id
        )
        request = wire.CreateAgentRequest(**create_fields(agent), fence=fence, request_id=request_id)
        wait = self._settings.create_seconds
        await self._call(address, lambda stub: stub.CreateAgent, request, retries=0, timeout_seconds=wait)

    async def stop(
        self, address: str, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Call StopAgent on a host; the timeout includes the stop timeout of the agent."""
        timeout = 0 if timeout_seconds is None else max(1, round(timeout_seconds))
        request = wire.StopAgentRequest(agent_id=agent_id, timeout=timeout, moving=moving)
        may_take = self._settings.stop_seconds if timeout_seconds is None else timeout_seconds
        wait = may_take + self._settings.grpc_timeout_seconds
        await self._call(address, lambda stub: stub.StopAgent, request, timeout_seconds=wait)

    async def info(self, address: str, request: wire.GetAgentInfoRequest) -> wire.AgentInfo:
        """Call GetAgentInfo on a host."""
        return await self._call(address, lambda stub: stub.GetAgentInfo, request)

    async def list(self, address: str, request: wire.ListAgentsRequest) -> wire.ListAgentsResponse:
        """Call ListAgents on a host."""
        return await self._call(address, lambda stub: stub.ListAgents, request)

    async def health(self, address: str, *, timeout_seconds: float | None = None) -> wire.HealthResponse:
        """Call Health on a host."""
        request = wire.HealthRequest()
        return await self._call(
            address, lambda stub: stub.Health, request, retries=0, timeout_seconds=timeout_seconds
        )

    async def _call(
        self,
        address: str,
        method: Callable[[Any], Any],
        request: Any,
        *,
        retries: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        left = self._settings.grpc_max_retries if retries is None else retries
        wait = self._settings.grpc_timeout_seconds if timeout_seconds is None else timeout_seconds
        metadata = (*self._metadata, *inject().items())
        if address.startswith(LOCAL):
            raise CallFailed(address, Trouble.NEXT, "it is inside another program (hosts.engine is local)")
        for failures in itertools.count(1):
            try:
                call = method(self._stub(address))
                return await call(request, timeout=wait, metadata=metadata)
            except aio.AioRpcError as exc:
                # Only calls that were not received are retried here: the caller decides about the others.
                if exc.code() is not grpc.StatusCode.UNAVAILABLE or left <= 0:
                    raise failed(address, exc) from exc
            left -= 1
            await asyncio.sleep(backoff_seconds(failures, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS))
        raise AssertionError("the last try returns or raises")

    def _stub(self, address: str) -> AgentHostServiceStub:
        stamp = tls_stamp(self._settings)
        if stamp != self._stamp:  # guard: client-certificate-reload
            # New certificates: the old channels are closed after their last call.
            self._stamp, self._channels = stamp, {}
        now = self._clock()
        if address not in self._channels:
            self._drop_unused(now)
            channel = open_channel(address, self._settings)
            self._channels[address] = channel, AgentHostServiceStub(channel)
        self._used[address] = now
        return self._channels[address][1]

    def _drop_unused(self, now: float) -> None:
        """Drop channels that no call has used for long: each new pod has a new address."""
        self._used = {address: at for address, at in self._used.items() if now - at < _UNUSED_SECONDS}
        # Not closed: a pending call keeps its channel until it ends.
        self._channels = {address: kept for address, kept in self._channels.items() if address in self._used}


def failed(address: str, error: aio.AioRpcError) -> CallFailed:
    """Return the error of a gRPC call for its caller."""
    code = error.code()
    trouble = TROUBLES.get(code, Trouble.INVALID)
    return CallFailed(address, trouble, error.details() or code.name, code.name)
