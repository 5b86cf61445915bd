"""The span in which a job is emitted, and the span of the job, in the same trace.

A run that came through Holdfast's producer continues its trace by itself. A plain ``XADD`` can only name the
trace, in ``metadata.trace_id``: then the job's span is put into it, with a link to the span of the run.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TracerProvider,
    get_current_span,
    get_tracer_provider,
    set_span_in_context,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from .schema import Job


def current_trace_id() -> str:
    """The trace of the current span; empty if there is none."""
    context = get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else ""


def ingest_span() -> AbstractContextManager[Span]:
    """Open the span ``ingest image``, in which a job is made and sent; without tracing it records nothing."""
    tracer = get_tracer_provider().get_tracer("media_clustering")
    return tracer.start_as_current_span("ingest image", kind=SpanKind.PRODUCER)


@contextmanager
def job_span(job: Job, attempt: int, provider: TracerProvider | None = None) -> Generator[None]:
    """Open the span ``cluster media`` with ``job_id`` and ``pet_id`` as its attributes."""
    tracer = (provider or get_tracer_provider()).get_tracer("media_clustering")
    around = get_current_span().get_span_context()
    named = int(job.trace_id, 16) if job.trace_id else 0
    parent, links = None, []
    if named and named != around.trace_id:
        parent = _inside(named)
        links = [Link(around)] if around.is_valid else []
    with tracer.start_as_current_span(
        "cluster media",
        context=parent,
        links=links,
        attributes={"job_id": job.job_id, "pet_id": str(job.pet_id), "attempt": attempt},
    ):
        yield


def _inside(trace_id: int) -> Context:
    """A place in a trace of which only the id is known."""
    emitter = SpanContext(
        trace_id, secrets.randbits(63) + 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    return set_span_in_context(NonRecordingSpan(emitter))
