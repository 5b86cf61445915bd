"""``/relay/undelivered``: events that no receiver took; list them, and have them delivered again."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from holdfast.api.access import Access, access
from holdfast.api.auth import OPERATE
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.errors import InputError
from holdfast.events.undelivered import Undelivered, served_sinks
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.views.undelivered import Redelivering, UndeliveredList, UndeliveredView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

router = APIRouter(tags=["relay"])


class SinkName(StrEnum):
    """Where events go."""

    EVENTAPI = "eventapi"
    WEBHOOK = "webhook"
    PUSH = "push"


OfRun = Annotated[str, Query(description="Only events of this run.")]
OfSink = Annotated[SinkName | None, Query(description="Only events for this sink.")]
InQueue = Annotated[str, Query(description="Only events of this queue.")]

_EVENT: Final[dict[str, Any]] = {
    "id": "1731000002500-0",
    "queue": "agent-queue",
    "run_id": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
    "event_id": "1731000000100-0",
    "sequence": 3,
    "type": "succeeded",
    "sink": "eventapi",
    "error": "the receiver answered 422 (3 times)",
    "data": {"result": 42},
    "at": 1731000002.5,
    "tenant": "acme",
    "redelivering": False,
}


@router.get(
    "/relay/undelivered",
    summary="List events that no receiver took, newest first",
    responses={
        **answers(
            200,
            UndeliveredList,
            "A page of events; it may be short and yet not the last.",
            {"events": [_EVENT], "cursor": ""},
        ),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_undelivered(
    request: Request,
    queue: InQueue = "",
    run_id: OfRun = "",
    sink: OfSink = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str, Query(description="Where the last page ended.")] = "",
) -> Response:
    """List the undelivered events of all queues, with the last answer of their receiver."""
    here = access(request, OPERATE)
    sources = {
        f"{name}/{number}": _source(here, name, undelivered, run_id, sink)
        async for name, number, undelivered in _places(here, queue)
    }
    places = read_cursor(cursor, tuple(sources))
    events = await merged(sources, places, limit, lambda event: event.at)
    return reply(UndeliveredList(events, write_cursor(places)))


@router.post(
    "/relay/undelivered/redeliver",
    summary="Deliver undelivered events again",
    status_code=202,
    responses={
        **answers(202, Redelivering, "Relays deliver them again.", {"queued": 12, "refused": {}}),
        **answers(errors=(401, 403, 404, 413, 422, 503)),
    },
)
async def redeliver(
    request: Request,
    queue: InQueue = "",
    run_id: OfRun = "",
    sink: OfSink = None,
    everything: Annotated[
        bool,
        Query(alias="all", description="All that the caller sees; needed if neither run nor sink is named."),
    ] = False,
) -> Response:
    """Have events delivered again, in order per run; each is listed until its receiver has taken it."""
    here = access(request, OPERATE)
    if not (run_id or sink or everything):
        raise InputError("name a run_id or a sink, or pass all=true for all undelivered events")
    queued, refused = 0, dict[str, str]()
    async for name, _, undelivered in _places(here, queue):
        served = await served_sinks(here.backend.members, here.backend.redis, name)
        result = await undelivered.redeliver(
            run_id=run_id, sink=sink or "", tenant=here.caller.tenant, served=served
        )
        queued += result.queued
        refused |= result.refused
    return reply(Redelivering(queued, refused), 202)


async def _places(here: Access, queue: str) -> AsyncIterator[tuple[str, int, Undelivered]]:
    """The undelivered events of each partition of the queues that were asked for."""
    for line in here.lines(queue):
        for number, partition in enumerate(await line.queue.all_partitions()):
            yield line.queue.name, number, Undelivered(partition.keys, partition.redis)


def _source(
    here: Access, queue: str, undelivered: Undelivered, run_id: str, sink: str | None
) -> Callable[[str, int], Awaitable[Slice[UndeliveredView]]]:
    async def fetch(cursor: str, limit: int) -> Slice[UndeliveredView]:
        page = await undelivered.list(
            limit=limit, cursor=cursor, run_id=run_id, sink=sink or "", tenant=here.caller.tenant
        )
        views = [UndeliveredView(queue=queue, **msgspec.structs.asdict(event)) for event in page.events]
        return Slice(views, page.cursor)

    return fetch
