"""Runs that Redis has removed: the archive has their records, and they can't be changed any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from holdfast.errors import ConfigError, Conflict, EventsExpired, NotFound, Refused, StoreUnavailable
from holdfast.runs.record import fault_of, value_of
from holdfast.runs.run import ENDED, Run, Status, status_phrase
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.store.archive import ArchivedRun
    from holdfast.store.lazy import LazyStore

Change: TypeAlias = Literal["cancel", "resume", "retry"]

UNASKED: Final = (StoreUnavailable, ConfigError)
"""The errors of a store that can't be read: unavailable, or without a driver or tables of this version."""
_RETRY_AFTER_SECONDS = 1.0

_log = get_logger(__name__)


async def past_run(lazy_store: LazyStore, run_id: str, missing: NotFound, *, queue: str = "") -> Run:
    """Return a run of the archive, or raise ``missing``, whose text says so if the archive can't be read."""
    try:
        store = await lazy_store.found()
        found = await store.archived(run_id, "", queue) if store is not None else None
    except UNASKED as exc:  # guard: archive-unavailable-client
        if not isinstance(exc, StoreUnavailable):  # which is logged as an outage
            _log.warning("archive not readable", run_id=run_id, error=str(exc))
        raise NotFound(f"{missing}; the archive, which may have it, could not be read: {exc}") from exc
    if found is None:  # guard: archived-run-found
        raise missing
    return run_of(found)


def unasked(run_id: str, why: str = "") -> Refused:
    """Return the error that a run may be in the archive, which can't be read; ``why`` is for operators."""
    return Refused(
        f"run {run_id!r} is not in Redis, and the archive, which may have it, can't be read now"
        f"{f' ({why})' if why else ''}: try again later",
        retry_after=_RETRY_AFTER_SECONDS,
    )


def run_of(archived: ArchivedRun) -> Run:
    """Make a run from its row in the store."""
    metadata, error = value_of(archived.metadata), fault_of(archived.error)
    # Another version may have written a status that this one does not have: the run has ended anyway.
    status = Status(archived.status) if archived.status in ENDED else Status.FAILED
    has_reason = error is not None and status is Status.CANCELLED and error.kind == "cancelled"
    return Run(
        id=archived.id,
        queue=archived.queue,
        status=status,
        agent=archived.agent,
        thread_id=archived.thread_id,
        tenant=archived.tenant,
        attempt=archived.attempt,
        fence=archived.fence,
        submitted_at=archived.submitted_at,
        started_at=archived.started_at,
        finished_at=archived.finished_at,
        input=value_of(archived.input),
        metadata=cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {},
        result=value_of(archived.result),
        cancel=error.message if error is not None and has_reason else "",  # guard: archived-cancel-reason
        error=error,
    )


def unchangeable(run: Run, change: Change) -> Conflict:
    """Return why an archived run can't be changed, in the words for an ended run that is still in Redis."""
    if change == "cancel":
        return Conflict(f"run {run.id} has already ended: {run.status.value}")
    if change == "resume":
        return Conflict(f"run {run.id} {status_phrase(run.status)}: only an interrupted run takes an answer")
    if run.status is Status.SUCCEEDED:
        rule = "only failed, timed out and cancelled runs can be queued again"
        return Conflict(f"run {run.id} {status_phrase(run.status)}: {rule}")
    return Conflict(
        f"run {run.id} ended long ago ({run.status.value}) and has left Redis for the archive: submit its "
        "input again, or replay its dead letter if it has one"
    )


def expired(run: Run) -> EventsExpired:
    """Return why an archived run has no events."""
    return EventsExpired(
        f"the events of run {run.id} are not kept any more: it ended long ago ({run.status.value}), and only "
        "its record is in the archive, where it can be read"
    )
