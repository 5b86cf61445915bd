"""Who calls a host before it can serve is told so at once, and asks the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class NotReadyInterceptor(aio.ServerInterceptor):
    """Turns the callers of a service away until it is open; probes and reflection are let through."""

    def __init__(self, service: str) -> None:
        self.is_open = False  # guard: host-not-ready-at-start
        self._prefix = f"/{service}/"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Let a call in, or turn it away."""
        if self.is_open or not handler_call_details.method.startswith(self._prefix):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_turn_away)


async def _turn_away(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
    del request
    return await context.abort(
        grpc.StatusCode.UNAVAILABLE,
        "This host does not serve yet: it waits for Redis, or for its name (hosts.name). Its log says which.",
    )
