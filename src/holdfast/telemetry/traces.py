"""Tracing: a run's span continues the trace of its submitter, from a carrier in the run's message.

OTEL_* variables turn tracing on: an OTLP endpoint, or OTEL_TRACES_EXPORTER. OpenTelemetry is loaded only
then, for a trace to continue, or if the application has loaded it, so a worker without tracing has no cost.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from holdfast.packages import missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue


TRACER = "holdfast"
_SERVER_ERROR = 500
_SERVER_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""The gRPC codes that make a server's span an error, by OpenTelemetry's conventions."""
_TRACEPARENT_WORDS = 4  # version, trace id, span id, flags
_NAMED_OUTSIDE = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ
_NOT_TRACED: AbstractContextManager[None] = nullcontext()
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP: Final = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
_FLUSH_SECONDS: Final = 2.0
"""How long a stopping process sends its last spans to a collector that is slow or down."""
_providers: list[TracerProvider] = []


# -- turning it on


def start(process: str) -> None:
    """Send the spans of this process to the target of the OTEL_* variables; without them, do nothing.

    Call it when the application is loaded: a tracer provider of its own, or of ``opentelemetry-instrument``,
    is kept. An error of the configuration is a warning: it does not stop the process.
    """
    if _is_traced() or not import_sdk():
        return
    try:
        provider = _provider(process)
    except (ValueError, RuntimeError) as exc:  # a variable that can't be read, or no memory for a thread
        _warn(str(exc))
        return
    from opentelemetry.trace import set_tracer_provider  # noqa: PLC0415

    set_tracer_provider(provider)
    _providers.append(provider)


@cache
def import_sdk() -> bool:
    """Import the packages of :func:`start`, best before a fork; return whether spans can be sent."""
    exporter = _exporter_name()
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter in {"", "none"}:
        return False
    if exporter not in {"otlp", "console"}:
        return _warn(f"{_EXPORTER} must be otlp, console or none, got {exporter!r}")
    if exporter == "otlp" and _protocol() not in _OTLP:
        return _warn(f"the OTLP protocol must be one of {', '.join(_OTLP)}, got {_protocol()!r}")
    try:
        importlib.import_module("opentelemetry.sdk.trace.export")
        if exporter == "otlp":
            importlib.import_module(_OTLP[_protocol()])
    except (ImportError, TypeError) as exc:  # the latter from protobuf, of a version that does not fit
        package = getattr(exc, "name", None) or str(exc)
        if ".grpc" in package:
            return _warn("OTLP over gRPC needs the package opentelemetry-exporter-otlp-proto-grpc")
        return _warn(missing_extra("tracing", package, "otel"))
    return True


def finish(seconds: float = _FLUSH_SECONDS) -> None:
    """Send the last spans, for ``seconds`` at most: a collector that is down must not delay the shutdown."""
    while _providers:
        # The library's own flush waits for all retries of its exporter.
        flush = threading.Thread(target=_providers.pop().shutdown, name="holdfast traces", daemon=True)
        flush.start()
        flush.join(seconds)  # guard: bounded-flush


def _provider(process: str) -> TracerProvider:
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: f"holdfast-{process}"}))
    # finish() shuts it down: at the interpreter's exit no thread can start, and there is no timeout.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    return provider


def _exporter() -> SpanExporter:
    if _exporter_name() == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415

        return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: f"{span.to_json(indent=None)}\n")
    return importlib.import_module(_OTLP[_protocol()]).OTLPSpanExporter()


def _exporter_name() -> str:
    named = os.environ.get(_EXPORTER, "").strip().lower()
    return named or ("otlp" if any(os.environ.get(endpoint) for endpoint in _ENDPOINTS) else "")


def _protocol() -> str:
    given = (os.environ.get(name, "").strip() for name in _PROTOCOLS)
    return next(filter(None, given), "http/protobuf")


def _warn(why: str) -> Literal[False]:
    # Imported here: clients without tracing need no structlog.
    from holdfast.telemetry.logs import get_logger  # noqa: PLC0415

    get_logger(__name__).warning("tracing not started", why=why)
    return False


# -- spans


def inject() -> dict[str, str]:
    """Return the current span as ``traceparent`` and ``tracestate``; empty without a span."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" not in sys.modules:
        return carrier
    from opentelemetry.trace import get_current_span  # noqa: PLC0415  loaded already, see above

    if get_current_span().get_span_context().is_valid:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        TraceContextTextMapPropagator().inject(carrier)
    return carrier


def trace_id_of(carrier: Mapping[str, str]) -> str:
    """Return the trace id of the carrier, by which a run's log lines are found; empty without one."""
    words = carrier.get("traceparent", "").split("-")
    return words[1] if len(words) >= _TRACEPARENT_WORDS else ""


def run_span(
    name: str, carrier: Mapping[str, str], attributes: Mapping[str, AttributeValue] | None = None
) -> AbstractContextManager[Span | None]:
    """Open the span of a run as a child of the span in the carrier; yields None without tracing."""
    if not carrier and not _is_traced():
        return _NOT_TRACED
    return _span(name, carrier, attributes, "CONSUMER")


def request_span(
    method: str, carrier: Callable[[], Mapping[str, str]]
) -> AbstractContextManager[Span | None]:
    """Open the span of an HTTP request, None without tracing; :func:`record_response` adds the rest."""
    if not _is_traced():
        return _NOT_TRACED
    return _span(method, carrier(), {"http.request.method": method}, "SERVER")


def call_span(name: str, carrier: Mapping[str, str]) -> AbstractContextManager[Span | None]:
    """Open the span of a gRPC call at its server; yields None without tracing."""
    if not carrier and not _is_traced():
        return _NOT_TRACED
    # An aborted call raises an exception, but is mostly a refusal: its code decides whether it is an error.
    return _span(name, carrier, {"rpc.system": "grpc", "rpc.method": name}, "SERVER", exceptions=False)


def delivery_span(sink: str, run_id: str, carrier: Mapping[str, str]) -> AbstractContextManager[Span | None]:
    """Open the span of the POST that delivers an event of a run; yields None without tracing."""
    if not _is_traced():
        return _NOT_TRACED
    attributes = {"http.request.method": "POST", "holdfast.run_id": run_id}
    return _span(f"deliver {sink}", carrier, attributes, "CLIENT")


def record_delivery(span: Span | None, status: int, failure: str) -> None:
    """Set the receiver's response on the span of a delivery; ``failure`` is why it was not accepted."""
    if span is None:
        return
    if status:
        span.set_attribute("http.response.status_code", status)
    if failure:
        mark_failed(span, failure)


def record_call(span: Span | None, status: str, error: BaseException | None) -> None:
    """Set the gRPC status of a call on its span; only a server error makes the span an error."""
    if span is None:
        return
    span.set_attribute("rpc.response.status_code", status)
    if error is not None and status in _SERVER_FAULTS:
        # A handler aborts the call while it handles the exception that is the reason.
        span.record_exception(error.__context__ or error)
        mark_failed(span, f"{status}: {error.__context__ or error}")


def record_response(
    span: Span | None, method: str, route: str, status: int, error: Exception | None = None
) -> None:
    """Set the route and the status of a request on its span; both may be missing."""
    if span is None:
        return
    if route:
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= _SERVER_ERROR:
        if error is not None:
            span.record_exception(error)
        mark_failed(span, f"answered with {status}")


def mark_failed(span: Span | None, reason: str) -> None:
    """Set the span's status to ERROR; outcomes are values, so there is no exception."""
    if span is not None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  a span exists: loaded

        span.set_status(Status(StatusCode.ERROR, reason))


def _is_traced() -> bool:
    """Return whether a tracer provider was installed; the API's own placeholder does not count."""
    # Called for every run, so it must be fast: an import statement would be half of its cost, and the public
    # function searches the environment each time. It is called only in versions without the private name.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or (getattr(trace, "_TRACER_PROVIDER", trace) is None and not _NAMED_OUTSIDE):
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def _span(
    name: str,
    carrier: Mapping[str, str],
    attributes: Mapping[str, AttributeValue] | None,
    kind: str,
    *,
    exceptions: bool = True,
) -> Generator[Span]:
    from opentelemetry.trace import SpanKind, get_tracer  # noqa: PLC0415

    with get_tracer(TRACER).start_as_current_span(
        name,
        context=_extract(carrier),
        kind=SpanKind[kind],
        attributes=attributes,
        record_exception=exceptions,
        set_status_on_exception=exceptions,
    ) as span:
        yield span


def _extract(carrier: Mapping[str, str]) -> Context | None:
    """Return the submitter's context; None (the current one) if the carrier is empty."""
    if not carrier:
        return None
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    # A foreign producer may write any value: a header that is not text must not end a run.
    return TraceContextTextMapPropagator().extract({key: str(value) for key, value in carrier.items()})
