"""Rejects calls to a host that does not serve yet, so that the caller tries the next host at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class NotReadyInterceptor(aio.ServerInterceptor):
    """Rejects the calls of a service until it is open; probes and reflection are served."""

    def __init__(self, service: str) -> None:
        self.is_open = False  # guard: host-not-ready-at-start
        self._prefix = f"/{service}/"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Serve or reject a call."""
        if self.is_open or not handler_call_details.method.startswith(self._prefix):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_reject)


async def _reject(request: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
    del request
    return await context.abort(
        grpc.StatusCode.UNAVAILABLE,
        "This host does not serve yet: it waits for Redis, or for its name (hosts.name). See its log.",
    )
