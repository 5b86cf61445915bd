"""A trace from what really happened: the runs that Redis still knows, and those of the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast_simulator.traces import Row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.runs.queue import RunQueue
    from holdfast.runs.run import Run
    from holdfast.store.archive import ArchivedRun
    from holdfast.store.store import Store

_PAGE = 500


async def recorded(queue: RunQueue, store: Store | None, *, since: float = 0.0) -> tuple[list[Row], int]:
    """The runs of a queue that were started and have ended, and how many others there were."""
    rows: dict[str, Row] = {}
    others = 0
    async for run in _everywhere(queue, store, since):
        if run.submitted_at < since or run.id in rows:
            continue
        if run.started_at and run.finished_at >= run.started_at:
            took = run.finished_at - run.started_at
            rows[run.id] = Row(run.submitted_at, took, queue.name, _priority(run))
        else:
            others += 1
    return list(rows.values()), others


async def _everywhere(queue: RunQueue, store: Store | None, since: float) -> AsyncIterator[Run | ArchivedRun]:
    cursor = ""
    while True:
        page = await queue.list(limit=_PAGE, cursor=cursor)
        for run in page.runs:
            yield run
        cursor = page.cursor
        if not cursor:
            break
    while store is not None:
        past = await store.list_archived(queue=queue.name, since=since, limit=_PAGE, cursor=cursor)
        for archived in past.runs:
            yield archived
        cursor = past.cursor
        if not cursor:
            break


def _priority(run: Run | ArchivedRun) -> str:
    """The lane that it came from, where that is known still: the archive does not keep it."""
    lane = getattr(run, "lane", "").rpartition(":")[2]
    return lane if lane in {"high", "low"} else ""
