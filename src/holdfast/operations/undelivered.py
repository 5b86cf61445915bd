"""Undelivered events: what no receiver has accepted, and its delivery again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import InputError
from holdfast.events.relay.undelivered import Undelivered, served_sinks
from holdfast.operations.caller import OPERATE
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.views.undelivered import Redelivering, UndeliveredList, UndeliveredView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.operations.caller import Caller
    from holdfast.operations.system import System


class UndeliveredOperations:
    """What one caller can ask of undelivered events."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller

    async def list(
        self, *, queue: str = "", run_id: str = "", sink: str = "", limit: int = 50, cursor: str = ""
    ) -> UndeliveredList:
        """Read a page of the undelivered events of all queues, newest first, with their last errors."""
        self._caller.require(OPERATE)
        sources = {
            f"{name}/{number}": self._source(name, events, run_id, sink)
            async for name, number, events in self._partitions(queue)
        }
        places = read_cursor(cursor, tuple(sources))
        found = await merged(sources, places, limit, lambda event: event.at)
        return UndeliveredList(found, write_cursor(places))

    async def redeliver(
        self, *, queue: str = "", run_id: str = "", sink: str = "", everything: bool = False
    ) -> Redelivering:
        """Deliver events again, in order per run; each is listed until its receiver has accepted it."""
        self._caller.require(OPERATE)
        if not (run_id or sink or everything):
            raise InputError("name a run_id or a sink, or pass all=true for all undelivered events")
        queued, refused = 0, dict[str, str]()
        async for name, _, events in self._partitions(queue):
            served = await served_sinks(self._system.members, self._system.redis, name)
            result = await events.redeliver(
                run_id=run_id, sink=sink, tenant=self._caller.tenant, served=served
            )
            queued += result.queued
            refused |= result.refused
        return Redelivering(queued, refused)

    async def _partitions(self, queue: str) -> AsyncIterator[tuple[str, int, Undelivered]]:
        for access in self._system.selected(queue):
            for number, partition in enumerate(await access.queue.all_partitions()):
                yield access.queue.name, number, Undelivered(partition.keys, partition.redis)

    def _source(
        self, queue: str, events: Undelivered, run_id: str, sink: str
    ) -> Callable[[str, int], Awaitable[Slice[UndeliveredView]]]:
        async def fetch(cursor: str, limit: int) -> Slice[UndeliveredView]:
            page = await events.list(
                limit=limit, cursor=cursor, run_id=run_id, sink=sink, tenant=self._caller.tenant
            )
            views = [UndeliveredView(queue=queue, **msgspec.structs.asdict(event)) for event in page.events]
            return Slice(views, page.cursor)

        return fetch
