"""A run's span continues the trace of whoever submitted it, through a carrier that travels with the run.

OpenTelemetry is loaded only when there is a trace to continue or somebody else has loaded it,
so a worker that nobody traces pays neither its memory nor its time.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

TRACER = "holdfast"
_TRACEPARENT_WORDS = 4  # version, trace id, span id, flags
_NAMED_OUTSIDE = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ
_NOT_TRACED: AbstractContextManager[None] = nullcontext()


def inject() -> dict[str, str]:
    """Carry the current span away as ``traceparent`` and ``tracestate``; empty when there is none."""
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
    """Return the id of the trace in the carrier, to find a run's log lines by; empty when there is none."""
    words = carrier.get("traceparent", "").split("-")
    return words[1] if len(words) >= _TRACEPARENT_WORDS else ""


def run_span(
    name: str, carrier: Mapping[str, str], attributes: Mapping[str, AttributeValue] | None = None
) -> AbstractContextManager[Span | None]:
    """Open the span of a run as a child of the span in the carrier; gives None when nobody traces."""
    if not carrier and not _is_traced():
        return _NOT_TRACED
    return _span(name, carrier, attributes)


def mark_failed(span: Span | None, reason: str) -> None:
    """Say on the span that the run failed; outcomes are values, so no exception tells it."""
    if span is not None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  a span exists: loaded

        span.set_status(Status(StatusCode.ERROR, reason))


def _is_traced() -> bool:
    """Whether a tracer provider was installed; the API's own stand-in does not count."""
    # Asked for every run, so it must cost nothing: an import statement would be half of it, and the public
    # question searches the environment each time. A version without the private name is asked.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or (getattr(trace, "_TRACER_PROVIDER", trace) is None and not _NAMED_OUTSIDE):
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def _span(
    name: str, carrier: Mapping[str, str], attributes: Mapping[str, AttributeValue] | None
) -> Generator[Span]:
    from opentelemetry.trace import SpanKind, get_tracer  # noqa: PLC0415

    with get_tracer(TRACER).start_as_current_span(
        name, context=_extract(carrier), kind=SpanKind.CONSUMER, attributes=attributes
    ) as span:
        yield span


def _extract(carrier: Mapping[str, str]) -> Context | None:
    """The submitter's context; None (the current one) when the carrier is empty."""
    if not carrier:
        return None
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    # Whoever writes to the stream may write anything: a header that is no text must not end a run.
    return TraceContextTextMapPropagator().extract({key: str(value) for key, value in carrier.items()})
