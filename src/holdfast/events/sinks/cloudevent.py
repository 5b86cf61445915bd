"""The encoding of an event for receivers: CloudEvents 1.0, structured JSON; the same at every try."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from holdfast.events.event import Event
    from holdfast.events.relay.run_facts import RunFacts

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
_TRACE: Final = ("traceparent", "tracestate")
_HEADER_VALUE: Final = re.compile(r"[ -~]{1,512}")


def event_name(run: RunFacts, sequence: int) -> str:
    """Return the id by which receivers deduplicate: the run and the event's position in its feed, from 1."""
    return f"{run.run_id}/{sequence}"


def rfc3339(at: float) -> str:
    """Return a time in the format of CloudEvents and A2A."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def trace_headers(run: RunFacts) -> dict[str, str]:
    """Return the submitter's trace context, as far as it is valid in headers."""
    found = {name: run.trace.get(name, "") for name in _TRACE}
    return {name: value for name, value in found.items() if _HEADER_VALUE.fullmatch(value)}


def cloud_event(run: RunFacts, event: Event, sequence: int) -> bytes:
    """Encode the event, with the facts of its run."""
    fields: dict[str, Any] = {
        "specversion": "1.0",
        "id": event_name(run, sequence),
        "source": f"/holdfast/queues/{run.queue}",
        "type": f"holdfast.run.{event.type}",
        "subject": run.run_id,
        "time": rfc3339(event.at),
        "datacontenttype": "application/json",
        "sequence": str(sequence),
        "partitionkey": run.run_id,
        **trace_headers(run),
        "data": {
            "run_id": run.run_id,
            "event_id": event.id,
            "type": event.type,
            "agent": run.agent,
            "thread_id": run.thread_id,
            "tenant": run.tenant,
            "client_id": run.client_id,
            "project_id": run.project_id,
            "payload": event.data,
            "logger_context": run.logger_context,
        },
    }
    return msgspec.json.encode(fields)
