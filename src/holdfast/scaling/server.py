"""The gRPC server of the scaler: KEDA's service, ``grpc.health.v1`` for probes, and reflection for people."""

# grpc_health and the generated code are not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from holdfast.errors import ConfigError
from holdfast.hosts.security import tls_credentials
from holdfast.scaling.external import SERVICE
from holdfast.scaling.proto.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.config.scaler import ScalerSettings
    from holdfast.scaling.external import Scaler

_GRACE_SECONDS: Final = 2.0
_OPTIONS: Final[list[tuple[str, Any]]] = [
    # A second scaler on the same port is an error, not a lottery for KEDA.
    ("grpc.so_reuseport", 0),
    # A KEDA that vanished without a goodbye does not keep its streams for ever; one that pings is welcome.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]


class Server:
    """A gRPC server that listens; ``port`` is the one it got."""

    def __init__(self, settings: ScalerSettings) -> None:
        self._server = aio.server(options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        self.port = self._listen(settings)

    @contextlib.asynccontextmanager
    async def serving(self, scaler: Scaler) -> AsyncGenerator[None]:
        """Answer callers; at the end, what was begun may finish for a moment."""
        add_ExternalScalerServicer_to_server(scaler, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        await self._server.start()
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        try:
            yield
        finally:
            await self._server.stop(_GRACE_SECONDS)

    async def leave(self) -> None:
        """Have probes know that this scaler leaves."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def _say(self, status: Any) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, status)

    def _listen(self, settings: ScalerSettings) -> int:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        mutual = bool(settings.tls_ca)  # guard: scaler-client-certificate
        credentials = tls_credentials(settings, mutual=mutual) if settings.tls_certificate else None
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as exc:
            raise ConfigError(
                f"the scaler can't listen on {address}: {exc}; choose another scaler.port "
                "(HOLDFAST_SCALER_PORT) or scaler.host (HOLDFAST_SCALER_HOST)"
            ) from exc
