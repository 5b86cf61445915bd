"""The gRPC server of a host: its own service, ``grpc.health.v1`` for probes, and reflection for people.

::

    listening ─> serving: probes are answered, callers are told UNAVAILABLE ─> open ─> leaving ─> end
"""

# grpc_health and the generated code are not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from holdfast.errors import ConfigError
from holdfast.hosts.call_metrics import CallCounter
from holdfast.hosts.not_ready import NotReadyInterceptor
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import add_AgentHostServiceServicer_to_server
from holdfast.hosts.security import MAX_MESSAGE_BYTES, TokenCheck, server_credentials

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.config import HostSettings
    from holdfast.hosts.servicer import AgentHostServicer
    from holdfast.telemetry.metrics import Metrics

SERVICE: Final = wire.DESCRIPTOR.services_by_name["AgentHostService"].full_name
_GRACE_SECONDS: Final = 2.0


class Server:
    """A gRPC server that listens; ``port`` is the one it got."""

    def __init__(self, settings: HostSettings, metrics: Metrics) -> None:
        # Counted first: also what is refused for want of a token.
        interceptors: list[aio.ServerInterceptor] = [CallCounter(metrics)]
        interceptors += [TokenCheck(settings.token)] if settings.token else []
        self._door = NotReadyInterceptor(SERVICE)
        interceptors.append(self._door)
        # Without SO_REUSEPORT a second host on the same port is an error, not a lottery for its callers.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        self._server = aio.server(interceptors=interceptors, options=options)
        self._health = health.aio.HealthServicer()
        self.port = self._listen(settings)

    @contextlib.asynccontextmanager
    async def serving(self, servicer: AgentHostServicer) -> AsyncGenerator[None]:
        """Answer probes, and callers once it is open; at the end, what was begun may finish for a moment."""
        add_AgentHostServiceServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
        # A port that only listens would take connections and leave their callers waiting for an answer.
        await self._server.start()
        try:
            yield
        finally:
            await self._server.stop(_GRACE_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether callers are answered."""
        return self._door.is_open

    async def open(self) -> None:
        """Let callers in, and have probes know."""
        self._door.is_open = True
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)

    async def leave(self) -> None:
        """Have probes know that this host leaves; calls are still answered, and the process is well ("")."""
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)

    def _listen(self, settings: HostSettings) -> int:
        host = f"[{settings.listen}]" if ":" in settings.listen else settings.listen
        address, credentials = f"{host}:{settings.grpc_port}", server_credentials(settings)
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as exc:
            raise ConfigError(
                f"no gRPC server can listen on {address} (hosts.listen, hosts.grpc_port): {exc}"
            ) from exc
