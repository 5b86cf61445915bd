"""Calls to hosts: one channel each, with the credentials of the settings, and errors in our own words."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc import aio

from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.hosts.security import call_metadata, open_channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import HostSettings


class Trouble(enum.Enum):
    """What a failed call means for its caller."""

    NEXT = "ask another host"
    HELD = "it lives on another host"
    STALE = "it was placed anew, or is not wanted any more"
    HERE = "it is not here"
    INVALID = "no host will take this"
    FAILED = "it could not be started"


_TROUBLE: Final = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Trouble.NEXT,
    grpc.StatusCode.UNAVAILABLE: Trouble.NEXT,
    grpc.StatusCode.DEADLINE_EXCEEDED: Trouble.NEXT,
    grpc.StatusCode.CANCELLED: Trouble.NEXT,
    grpc.StatusCode.ALREADY_EXISTS: Trouble.HELD,
    grpc.StatusCode.FAILED_PRECONDITION: Trouble.STALE,
    grpc.StatusCode.NOT_FOUND: Trouble.HERE,
    grpc.StatusCode.INTERNAL: Trouble.FAILED,
}


class CallFailed(Exception):
    """A host did not do what it was asked for."""

    def __init__(self, address: str, error: aio.AioRpcError) -> None:
        self.address = address
        self.code = error.code()
        self.trouble = _TROUBLE.get(self.code, Trouble.INVALID)
        self.detail = error.details() or self.code.name
        super().__init__(f"host {address}: {self.detail} ({self.code.name})")


class Calls:
    """The channels to all hosts that were called, until closed; belongs to one event loop."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings = settings
        self._metadata = call_metadata(settings)
        self._channels: dict[str, aio.Channel] = {}

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    async def create(self, address: str, request: wire.CreateAgentRequest) -> wire.CreateAgentResponse:
        """Ask a host to start an agent; only its own answer says that it did not."""
        return await self._call(address, lambda stub: stub.CreateAgent, request, retries=0)

    async def stop(
        self, address: str, request: wire.StopAgentRequest, *, timeout_seconds: float
    ) -> wire.StopAgentResponse:
        """Ask a host to stop an agent, which may take as long as the agent may take."""
        wait = timeout_seconds + self._settings.grpc_timeout_seconds
        return await self._call(address, lambda stub: stub.StopAgent, request, timeout_seconds=wait)

    async def info(self, address: str, request: wire.GetAgentInfoRequest) -> wire.AgentInfo:
        """Ask a host for one agent."""
        return await self._call(address, lambda stub: stub.GetAgentInfo, request)

    async def list(self, address: str, request: wire.ListAgentsRequest) -> wire.ListAgentsResponse:
        """Ask a host for its agents."""
        return await self._call(address, lambda stub: stub.ListAgents, request)

    async def health(self, address: str, *, timeout_seconds: float | None = None) -> wire.HealthResponse:
        """Ask a host how it is."""
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
        pause = 0.05
        while True:
            try:
                call = method(AgentHostServiceStub(self._channel(address)))
                return await call(request, timeout=wait, metadata=self._metadata)
            except aio.AioRpcError as exc:
                # Only what was not even received is tried again here: the rest is for the caller to judge.
                if exc.code() is not grpc.StatusCode.UNAVAILABLE or left <= 0:
                    raise CallFailed(address, exc) from exc
            left -= 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _channel(self, address: str) -> aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, self._settings)
        return channel
