"""Pages of runs: those in Redis, of all queues, newest first; then those that only the archive has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.config.queues import MAILBOX
from holdfast.redis.command import command
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.runs.past import run_of
from holdfast.runs.run import Status
from holdfast.views.runs import RunList, RunRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol

    from holdfast.operations.caller import Caller
    from holdfast.operations.system import QueueAccess, System
    from holdfast.runs.queue import RunQueue
    from holdfast.runs.run import Run
    from holdfast.store.archive import ArchivedRun

    class ShowRow(Protocol):
        """Shows a run as lists do."""

        def __call__(self, run: Run, *, archived: bool = False) -> RunRow:
            """Return the row of a run."""
            ...


_ARCHIVE: Final = "/archive"
"""The archive's name in a cursor; no queue has a slash in its name."""
_PAGES_MOST: Final = 10
"""How many pages of a queue are read for one page of matching runs."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a list has; an empty field matches all."""

    queue: str = ""
    status: Status | None = None
    agent: str = ""
    thread_id: str = ""
    tenant: str = ""

    def matches(self, run: Run) -> bool:
        """Whether a run matches the fields that a queue's own list does not filter by."""
        return (not self.tenant or run.tenant == self.tenant) and (
            not self.thread_id or run.thread_id == self.thread_id
        )


async def read_page(
    system: System, caller: Caller, wanted: RunFilter, row: ShowRow, *, limit: int, cursor: str
) -> RunList:
    """Read one page; it may be short and yet not the last."""
    sources = {each.queue.name: _live(each, caller, wanted, row) for each in system.selected(wanted.queue)}
    places = read_cursor(cursor, (*sources, _ARCHIVE))
    rows = await merged(sources, places, limit, lambda each: each.submitted_at)
    if not places.keys() - {_ARCHIVE} and _ARCHIVE in places:
        rows += await _archived(system, caller, wanted, row, places, limit - len(rows))
    return RunList(rows, write_cursor(places))


def _live(
    access: QueueAccess, caller: Caller, wanted: RunFilter, row: ShowRow
) -> Callable[[str, int], Awaitable[Slice[RunRow]]]:
    async def fetch(cursor: str, limit: int) -> Slice[RunRow]:
        found: list[RunRow] = []
        for _ in range(_PAGES_MOST):
            page = await access.queue.list(
                status=wanted.status, agent=wanted.agent, limit=limit - len(found), cursor=cursor
            )
            found += [row(run) for run in page.runs if caller.sees(run.tenant) and wanted.matches(run)]
            cursor = page.cursor
            if not cursor or len(found) == limit:
                break
        return Slice(found, cursor)

    return fetch


async def _archived(
    system: System, caller: Caller, wanted: RunFilter, row: ShowRow, places: dict[str, str], limit: int
) -> list[RunRow]:
    if limit < 1:
        return []  # the next page begins with them
    tenant = caller.tenant or wanted.tenant
    if wanted.tenant not in {"", tenant}:
        del places[_ARCHIVE]
        return []  # the runs of another tenant, which do not exist for this caller
    archive = await system.archive()
    if archive is None:
        del places[_ARCHIVE]
        return []
    page = await archive.list_archived(
        queue=wanted.queue,
        status=wanted.status.value if wanted.status else "",
        agent=wanted.agent,
        thread_id=wanted.thread_id,
        tenant=tenant,
        limit=limit,
        cursor=places[_ARCHIVE],
    )
    if page.cursor:
        places[_ARCHIVE] = page.cursor
    else:
        del places[_ARCHIVE]
    # For a while an ended run is in both: it has been listed from Redis.
    live = await asyncio.gather(*(_is_live(system, run) for run in page.runs))
    return [
        row(run_of(run), archived=True) for run, is_live in zip(page.runs, live, strict=True) if not is_live
    ]


async def _is_live(system: System, run: ArchivedRun) -> bool:
    access = system.queues.get(run.queue)
    if run.queue.startswith(MAILBOX):
        access = system.unlisted(run.queue)
    return access is not None and await in_redis(access.queue, run)


async def in_redis(queue: RunQueue, run: ArchivedRun) -> bool:
    """Whether Redis has a run, too, so that the archive's copy is not the only one."""
    record = (await queue.home(run.id)).keys.run(run.id)
    reply = await command(queue.redis, "HMGET", record, "submitted_at", "tenant")
    submitted_ms, tenant = ((value or b"").decode(errors="replace") for value in reply)
    # Another run may have the id by now, even one of another tenant: that one hides nothing.
    # guard: archived-run-same-id
    return (submitted_ms, tenant) == (f"{run.submitted_at * 1000:.0f}", run.tenant)
