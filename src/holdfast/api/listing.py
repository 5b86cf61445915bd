"""The list of runs: those in Redis, of all queues, newest first; then those that only the archive has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.access import in_redis
from holdfast.config.queues import MAILBOX
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.runs.past import run_of
from holdfast.views.runs import RunList, RunRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.api.access import Access
    from holdfast.api.backend import Line
    from holdfast.runs.run import Run
    from holdfast.store.archive import ArchivedRun

_ARCHIVE: Final = "/archive"
"""No queue has a slash in its name."""
_LOOKS: Final = 10


async def list_runs(
    here: Access, queue: str, wanted: Mapping[str, Any], *, limit: int, cursor: str
) -> RunList:
    """Read one page; ``wanted`` are the filters."""
    lines = here.lines(queue)
    sources = {line.queue.name: _live(here, line, wanted) for line in lines}
    places = read_cursor(cursor, (*sources, _ARCHIVE))
    rows = await merged(sources, places, limit, lambda each: each.submitted_at)
    if not places.keys() - {_ARCHIVE} and _ARCHIVE in places:
        rows += await _archived(here, queue, wanted, places, limit - len(rows))
    return RunList(rows, write_cursor(places))


def _live(
    here: Access, line: Line, wanted: Mapping[str, Any]
) -> Callable[[str, int], Awaitable[Slice[RunRow]]]:
    async def fetch(cursor: str, limit: int) -> Slice[RunRow]:
        found: list[RunRow] = []
        for _ in range(_LOOKS):
            page = await line.queue.list(
                status=wanted["status"], agent=wanted["agent"], limit=limit - len(found), cursor=cursor
            )
            found += [here.row(run) for run in page.runs if _is_wanted(here, run, wanted)]
            cursor = page.cursor
            if not cursor or len(found) == limit:
                break
        return Slice(found, cursor)

    return fetch


def _is_wanted(here: Access, run: Run, wanted: Mapping[str, Any]) -> bool:
    thread, tenant = wanted["thread_id"], wanted["tenant"]
    return (
        here.caller.sees(run.tenant)
        and (not tenant or run.tenant == tenant)
        and (not thread or run.thread_id == thread)
    )


async def _archived(
    here: Access, queue: str, wanted: Mapping[str, Any], places: dict[str, str], limit: int
) -> list[RunRow]:
    if limit < 1:
        return []  # the next page begins with them
    status, tenant = wanted["status"], here.caller.tenant or wanted["tenant"]
    if wanted["tenant"] not in {"", tenant}:
        del places[_ARCHIVE]
        return []  # another tenant's: for this caller there are none
    store = await here.backend.store.get()
    page = await store.list_archived(
        queue=queue,
        status=status.value if status else "",
        agent=wanted["agent"],
        thread_id=wanted["thread_id"],
        tenant=tenant,
        limit=limit,
        cursor=places[_ARCHIVE],
    )
    if page.cursor:
        places[_ARCHIVE] = page.cursor
    else:
        del places[_ARCHIVE]
    # For a while an ended run is in both: it has been listed from Redis.
    both = await asyncio.gather(*(_still_live(here, run) for run in page.runs))
    return [
        here.row(run_of(run), archived=True) for run, live in zip(page.runs, both, strict=True) if not live
    ]


async def _still_live(here: Access, run: ArchivedRun) -> bool:
    line = here.backend.lines.get(run.queue)
    if run.queue.startswith(MAILBOX):
        line = here.backend.mailbox(run.queue)
    return line is not None and await in_redis(line.queue, run)
