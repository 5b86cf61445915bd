"""Finished runs that Redis has let go, as the API shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.api.shapes import ErrorView, RunRow, RunView

if TYPE_CHECKING:
    from holdfast.store.archive import ArchivedRun


def archived_view(run: ArchivedRun) -> RunView:
    """An archived run with everything that is known of it."""
    fields = {name: getattr(archived_row(run), name) for name in RunRow.__struct_fields__}
    metadata = _value(run.metadata)
    return RunView(
        **fields,
        input=_value(run.input),
        metadata=cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {},
        result=_value(run.result),
    )


def archived_row(run: ArchivedRun) -> RunRow:
    """An archived run as a list shows it."""
    return RunRow(
        id=run.id,
        queue=run.queue,
        status=run.status,
        agent=run.agent,
        thread_id=run.thread_id,
        tenant=run.tenant,
        attempt=run.attempt,
        fence=run.fence,
        submitted_at=run.submitted_at,
        started_at=run.started_at,
        finished_at=run.finished_at,
        error=_error(run.error),
        archived=True,
    )


def _value(data: bytes | None) -> Any:
    try:
        return msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _error(data: bytes | None) -> ErrorView | None:
    try:
        return msgspec.json.decode(data, type=ErrorView | None) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ErrorView(message=(data or b"").decode(errors="replace"))
