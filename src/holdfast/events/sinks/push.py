"""A2A push notifications (protocol 1.0): a task's status or artifact update, to the run's A2A client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.events.sinks.cloudevent import event_name, rfc3339, trace_headers
from holdfast.events.sinks.request import SinkRequest

if TYPE_CHECKING:
    from holdfast.events.event import Event
    from holdfast.events.relay.run_facts import RunFacts

STATES: Final = {
    "submitted": "TASK_STATE_SUBMITTED",
    "succeeded": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "timed_out": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
    "interrupted": "TASK_STATE_INPUT_REQUIRED",
}
"""The task's state after an event; after any other event it is working."""


LIFECYCLE: Final = frozenset(
    {
        *("submitted", "adopted", "queued", "delayed", "started", "running", "retrying", "handed_back"),
        *("reclaimed", "replayed", "restored", "resumed", "parked", "unparked"),
    }
)
"""Events of the system: never sent as the agent's message, as they have internal names, fences and limits."""


class _Authentication(msgspec.Struct, frozen=True):
    scheme: str = ""
    schemes: list[str] = []
    credentials: str = ""


class _Push(msgspec.Struct, frozen=True):
    """The part of a push notification config that is used."""

    url: str = ""
    token: str = ""
    authentication: _Authentication | None = None


class PushSink:
    """The push address of a run, for A2A clients that do not keep a connection open."""

    name = "push"
    ours = False

    def request(self, run: RunFacts, event: Event, sequence: int, address: str) -> SinkRequest:
        """Write the request for one event."""
        config = _read(address)
        headers = {"content-type": "application/a2a+json", "a2a-version": "1.0", **trace_headers(run)}
        if config.token:
            headers["x-a2a-notification-token"] = config.token
        if (auth := config.authentication) and auth.credentials:
            scheme = auth.scheme or (auth.schemes[0] if auth.schemes else "Bearer")
            headers["authorization"] = f"{scheme} {auth.credentials}"
        return SinkRequest(config.url, headers, msgspec.json.encode(_update(run, event, sequence)))


def _read(address: str) -> _Push:
    try:
        return msgspec.json.decode(address, type=_Push)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Push()


def _update(run: RunFacts, event: Event, sequence: int) -> dict[str, Any]:
    task = {"taskId": run.run_id, "contextId": run.thread_id or run.run_id}
    metadata = {"event": event_name(run, sequence), "type": event.type}
    if event.type == "chunk":
        artifact = {"artifactId": f"{run.run_id}-output", "parts": [_part(event.data)]}
        return {"artifactUpdate": {**task, "artifact": artifact, "append": True, "metadata": metadata}}
    status: dict[str, Any] = {
        "state": STATES.get(event.type, "TASK_STATE_WORKING"),
        "timestamp": rfc3339(event.at),
    }
    if event.type not in LIFECYCLE and event.data not in (None, {}, ""):
        status["message"] = {
            "messageId": event_name(run, sequence),
            "role": "ROLE_AGENT",
            "taskId": task["taskId"],
            "contextId": task["contextId"],
            "parts": [_part(event.data)],
        }
    return {"statusUpdate": {**task, "status": status, "metadata": metadata}}


def _part(data: Any) -> dict[str, Any]:
    return {"text": data} if isinstance(data, str) else {"data": data}
