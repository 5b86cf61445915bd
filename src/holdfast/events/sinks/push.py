"""A2A push notifications (protocol 1.0): a task's status or artifact update, to whoever asked to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.events.cloudevent import event_name, rfc3339, trace_headers
from holdfast.events.sinks.request import Request

if TYPE_CHECKING:
    from holdfast.events.event import Event
    from holdfast.events.origin import Origin

STATES: Final = {
    "submitted": "TASK_STATE_SUBMITTED",
    "succeeded": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "timed_out": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
    "interrupted": "TASK_STATE_INPUT_REQUIRED",
}
"""What an event says of the task; after any other it is working."""


LIFECYCLE: Final = frozenset(
    {
        *("submitted", "adopted", "queued", "delayed", "started", "running", "retrying", "handed_back"),
        *("reclaimed", "replayed", "restored", "resumed", "parked", "unparked"),
    }
)
"""What the system says of a run: never a message of the agent, since it names our pods, fences and limits."""


class _Authentication(msgspec.Struct, frozen=True):
    scheme: str = ""
    schemes: list[str] = []
    credentials: str = ""


class _Push(msgspec.Struct, frozen=True):
    """The part of a push notification config that matters here."""

    url: str = ""
    token: str = ""
    authentication: _Authentication | None = None


class Push:
    """The address that a run was submitted with, for A2A clients that don't hold a connection."""

    name = "push"
    ours = False

    def request(self, origin: Origin, event: Event, sequence: int, address: str) -> Request:
        """Write the request for one event."""
        wanted = _read(address)
        headers = {"content-type": "application/a2a+json", "a2a-version": "1.0", **trace_headers(origin)}
        if wanted.token:
            headers["x-a2a-notification-token"] = wanted.token
        if (asked := wanted.authentication) and asked.credentials:
            scheme = asked.scheme or (asked.schemes[0] if asked.schemes else "Bearer")
            headers["authorization"] = f"{scheme} {asked.credentials}"
        return Request(wanted.url, headers, msgspec.json.encode(_update(origin, event, sequence)))


def _read(address: str) -> _Push:
    try:
        return msgspec.json.decode(address, type=_Push)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Push()


def _update(origin: Origin, event: Event, sequence: int) -> dict[str, Any]:
    task = {"taskId": origin.run_id, "contextId": origin.thread_id or origin.run_id}
    metadata = {"event": event_name(origin, sequence), "type": event.type}
    if event.type == "chunk":
        artifact = {"artifactId": f"{origin.run_id}-output", "parts": [_part(event.data)]}
        return {"artifactUpdate": {**task, "artifact": artifact, "append": True, "metadata": metadata}}
    status: dict[str, Any] = {
        "state": STATES.get(event.type, "TASK_STATE_WORKING"),
        "timestamp": rfc3339(event.at),
    }
    if event.type not in LIFECYCLE and event.data not in (None, {}, ""):
        status["message"] = {
            "messageId": event_name(origin, sequence),
            "role": "ROLE_AGENT",
            "taskId": task["taskId"],
            "contextId": task["contextId"],
            "parts": [_part(event.data)],
        }
    return {"statusUpdate": {**task, "status": status, "metadata": metadata}}


def _part(data: Any) -> dict[str, Any]:
    return {"text": data} if isinstance(data, str) else {"data": data}
