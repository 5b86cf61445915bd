"""The gRPC server of a host.

::

    listening ─> serving: probes are served, calls get UNAVAILABLE ─> open ─> draining ─> end
"""

# The generated code is not typed.
# pyright: reportUnknownMemberType=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.hosts.call_metrics import CallCounter
from holdfast.hosts.not_ready import NotReadyInterceptor
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import add_AgentHostServiceServicer_to_server
from holdfast.hosts.security import MAX_MESSAGE_BYTES, TokenCheck, server_credentials
from holdfast.rpc.server import GrpcServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from grpc import aio

    from holdfast.config import HostSettings
    from holdfast.hosts.servicer import AgentHostServicer
    from holdfast.telemetry.metrics import Metrics

SERVICE: Final = wire.DESCRIPTOR.services_by_name["AgentHostService"].full_name


class HostServer:
    """Serves the calls of engines; ``port`` is the one that was opened."""

    def __init__(self, settings: HostSettings, metrics: Metrics) -> None:
        self._not_ready = NotReadyInterceptor(SERVICE)
        # The counter is first: it also counts calls that are rejected without a token.
        interceptors: list[aio.ServerInterceptor] = [CallCounter(metrics)]
        interceptors += [TokenCheck(settings.token)] if settings.token else []
        interceptors.append(self._not_ready)
        self._server = GrpcServer(
            SERVICE,
            server_credentials(settings),
            interceptors=interceptors,
            options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)],
        )
        self._server.listen(settings.listen, settings.grpc_port, settings="hosts.listen or hosts.grpc_port")

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    @contextlib.asynccontextmanager
    async def serving(self, servicer: AgentHostServicer) -> AsyncGenerator[None]:
        """Serve probes, and calls once it is open; at the end, running calls may finish for a moment."""
        async with self._server.serving(
            partial(add_AgentHostServiceServicer_to_server, servicer), ready=False
        ):
            yield

    @property
    def is_open(self) -> bool:
        """Whether calls are served."""
        return self._not_ready.is_open

    async def open(self) -> None:
        """Serve calls, and report this to probes."""
        self._not_ready.is_open = True
        await self._server.report(ready=True)

    async def leave(self) -> None:
        """Report to probes that this host is draining; calls are still served, and the process is alive."""
        await self._server.report(ready=False)
