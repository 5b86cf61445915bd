"""A gRPC server: one service of ours, ``grpc.health.v1`` for probes, and reflection for people."""

# grpc_health is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    import grpc

_GRACE_SECONDS: Final = 2.0
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcServer:
    """A gRPC server that listens; ``port`` is the one it got."""

    def __init__(
        self,
        service: str,
        credentials: grpc.ServerCredentials | None,
        *,
        interceptors: Sequence[aio.ServerInterceptor] = (),
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._service = service
        self._credentials = credentials
        # Without SO_REUSEPORT a second server on the same port is an error, not a lottery for its callers.
        self._server = aio.server(interceptors=interceptors, options=[("grpc.so_reuseport", 0), *options])
        self._health = health.aio.HealthServicer()
        self.port = 0

    def listen(self, host: str, port: int, *, settings: str) -> None:
        """Take a port, 0 is any that is free; ``settings`` names where to choose another one."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as exc:
            raise ConfigError(
                f"no gRPC server can listen on {address}: {exc}; choose another {settings}"
            ) from exc

    @contextlib.asynccontextmanager
    async def serving(
        self, add_service: Callable[[aio.Server], None], *, ready: bool
    ) -> AsyncGenerator[None]:
        """Answer callers; at the end, what was begun may finish for a moment."""
        add_service(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (self._service, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        await self.report(ready=ready)
        # A port that only listens would take connections and leave their callers waiting for an answer.
        await self._server.start()
        try:
            yield
        finally:
            await self._server.stop(_GRACE_SECONDS)

    async def report(self, *, ready: bool, alive: bool = True) -> None:
        """Answer probes: whether the service is ready for callers, and whether the process is alive."""
        await self._health.set("", _SERVING if alive else _NOT_SERVING)
        await self._health.set(self._service, _SERVING if ready else _NOT_SERVING)
