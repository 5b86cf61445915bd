"""The gRPC server of the scaler, which KEDA calls."""

# The generated code is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.rpc.server import GrpcServer
from holdfast.rpc.tls import tls_credentials
from holdfast.scaling.external import SERVICE
from holdfast.scaling.proto.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.config.scaler import ScalerSettings
    from holdfast.scaling.external import Scaler

_OPTIONS: Final[list[tuple[str, Any]]] = [
    # Streams of a KEDA that was lost without closing its connection are ended; pings from KEDA are allowed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]


class ScalerServer:
    """Serves the calls of KEDA; ``port`` is the one it listens on."""

    def __init__(self, settings: ScalerSettings) -> None:
        mutual = bool(settings.tls_ca)  # guard: scaler-client-certificate
        credentials = tls_credentials(settings, mutual=mutual) if settings.tls_certificate else None
        self._server = GrpcServer(SERVICE, credentials, options=_OPTIONS)
        self._server.listen(
            settings.host,
            settings.port,
            settings="scaler.port (HOLDFAST_SCALER_PORT) or scaler.host (HOLDFAST_SCALER_HOST)",
        )

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.port

    @contextlib.asynccontextmanager
    async def serving(self, scaler: Scaler) -> AsyncGenerator[None]:
        """Serve calls; at the end, running calls get a moment to finish."""
        async with self._server.serving(partial(add_ExternalScalerServicer_to_server, scaler), ready=True):
            yield

    async def leave(self) -> None:
        """Report to probes that this scaler shuts down."""
        await self._server.report(ready=False, alive=False)
