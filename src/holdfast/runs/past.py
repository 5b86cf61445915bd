"""Runs that Redis has let go: the archive knows what they were, and nothing can be changed about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from holdfast.errors import Conflict, EventsExpired
from holdfast.runs.run import ENDED, Run, RunFault, Status

if TYPE_CHECKING:
    from holdfast.store.archive import ArchivedRun
    from holdfast.store.door import StoreDoor

Change: TypeAlias = Literal["cancel", "resume", "retry"]


async def past_run(door: StoreDoor, run_id: str, *, queue: str = "") -> Run | None:
    """Return a run of the archive, if there is an archive and it knows the run."""
    store = await door.found()
    found = await store.archived(run_id, "", queue) if store is not None else None
    return run_of(found) if found is not None else None


def run_of(archived: ArchivedRun) -> Run:
    """Make a run of what the store has kept of it."""
    metadata = _value(archived.metadata)
    return Run(
        id=archived.id,
        queue=archived.queue,
        # Another version may have written a word that this one does not know: it has ended all the same.
        status=Status(archived.status) if archived.status in ENDED else Status.FAILED,
        agent=archived.agent,
        thread_id=archived.thread_id,
        tenant=archived.tenant,
        attempt=archived.attempt,
        fence=archived.fence,
        submitted_at=archived.submitted_at,
        started_at=archived.started_at,
        finished_at=archived.finished_at,
        input=_value(archived.input),
        metadata=cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {},
        result=_value(archived.result),
        error=_fault(archived.error),
    )


def unchangeable(run: Run, change: Change) -> Conflict:
    """Say why an archived run can't be changed, in the words for an ended one that is still in Redis."""
    if change == "cancel":
        return Conflict(f"run {run.id} has already ended: {run.status.value}")
    if change == "resume":
        return Conflict(f"run {run.id} is {run.status.value}: only an interrupted run waits for an answer")
    if run.status is Status.SUCCEEDED:
        told = "only failed, timed out and cancelled runs can be queued again"
        return Conflict(f"run {run.id} is {run.status.value}: {told}")
    return Conflict(
        f"run {run.id} ended long ago ({run.status.value}) and has left Redis for the archive: submit its "
        "input again, or replay its dead letter if it has one"
    )


def expired(run: Run) -> EventsExpired:
    """Say why an archived run has no events."""
    return EventsExpired(
        f"the events of run {run.id} are not kept any more: it ended long ago ({run.status.value}), and only "
        "its record is in the archive; GET /runs/{id} reads it"
    )


def _value(data: bytes | None) -> Any:
    try:
        return msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _fault(data: bytes | None) -> RunFault | None:
    try:
        return msgspec.json.decode(data, type=RunFault | None) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return RunFault(message=(data or b"").decode(errors="replace"))
