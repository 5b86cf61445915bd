"""An event as the outside sees it: CloudEvents 1.0, structured JSON; the same however often it is sent."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from holdfast.events.event import Event
    from holdfast.events.origin import Origin

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
_TRACE: Final = ("traceparent", "tracestate")
_HEADER_VALUE: Final = re.compile(r"[ -~]{1,512}")


def event_name(origin: Origin, sequence: int) -> str:
    """The id to deduplicate by: the run and the event's position in its feed, from 1."""
    return f"{origin.run_id}/{sequence}"


def rfc3339(at: float) -> str:
    """A time as CloudEvents and A2A write it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def trace_headers(origin: Origin) -> dict[str, str]:
    """The submitter's trace context, as far as it can be a header."""
    found = {name: origin.trace.get(name, "") for name in _TRACE}
    return {name: value for name, value in found.items() if _HEADER_VALUE.fullmatch(value)}


def cloud_event(origin: Origin, event: Event, sequence: int) -> bytes:
    """Write the event, with what is told of its run."""
    told: dict[str, Any] = {
        "specversion": "1.0",
        "id": event_name(origin, sequence),
        "source": f"/holdfast/queues/{origin.queue}",
        "type": f"holdfast.run.{event.type}",
        "subject": origin.run_id,
        "time": rfc3339(event.at),
        "datacontenttype": "application/json",
        "sequence": str(sequence),
        "partitionkey": origin.run_id,
        **trace_headers(origin),
        "data": {
            "run_id": origin.run_id,
            "event_id": event.id,
            "type": event.type,
            "agent": origin.agent,
            "thread_id": origin.thread_id,
            "tenant": origin.tenant,
            "client_id": origin.client_id,
            "project_id": origin.project_id,
            "payload": event.data,
            "logger_context": origin.logger_context,
        },
    }
    return msgspec.json.encode(told)
