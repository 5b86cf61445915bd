"""Counts the calls of a host by method and status, and measures their duration.

Each is a span of its caller's trace.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.telemetry.traces import call_span, record_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.telemetry.metrics import Metrics

_SERVICE: Final = wire.DESCRIPTOR.services_by_name["AgentHostService"]
# By name from the proto file: an unknown name of a caller makes no label.
_KNOWN: Final = {f"/{_SERVICE.full_name}/{method.name}": method.name for method in _SERVICE.methods}

_TRACE: Final = ("traceparent", "tracestate")


class CallCounter(aio.ServerInterceptor):
    """Wraps each known call."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Count a known call when it ends."""
        handler = await continuation(handler_call_details)
        name = _KNOWN.get(handler_call_details.method)
        if handler is None or name is None or handler.unary_unary is None:
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._counted(name, handler, handler.unary_unary),
            response_serializer=handler.response_serializer,
        )

    def _counted(
        self, name: str, handler: grpc.RpcMethodHandler[Any, Any], call: Callable[..., Any]
    ) -> Callable[..., Any]:
        async def counted(data: bytes, context: aio.ServicerContext[Any, Any]) -> Any:
            began, status, error = time.monotonic(), "OK", None
            with call_span(f"host {name}", _carrier(context)) as span:
                try:
                    return await call(await _decoded(handler, data, context), context)
                except BaseException as exc:
                    error, status = exc, _status(context)
                    raise
                finally:
                    self._metrics.host_calls.labels(name, status).inc()
                    self._metrics.host_call_seconds.labels(name).observe(time.monotonic() - began)
                    # A caller that no longer waits is not an error of this host.
                    gone = isinstance(error, asyncio.CancelledError)
                    record_call(span, "CANCELLED" if gone else status, error)
                    del error  # it refers to this frame

        return counted


def _status(context: aio.ServicerContext[Any, Any]) -> str:
    return getattr(context.code(), "name", "UNKNOWN")  # an int or nothing, if it was not aborted


def _carrier(context: aio.ServicerContext[Any, Any]) -> dict[str, str]:
    """Return the trace context of the caller."""
    metadata = context.invocation_metadata() or ()
    return {key: value for key, value in metadata if key in _TRACE and isinstance(value, str)}


async def _decoded(
    handler: grpc.RpcMethodHandler[Any, Any], data: bytes, context: aio.ServicerContext[Any, Any]
) -> Any:
    """Decode the request here: gRPC would report a malformed request as an unknown error."""
    if handler.request_deserializer is None:
        return data
    try:
        return handler.request_deserializer(data)
    except DecodeError as exc:  # guard: undecodable-request
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
