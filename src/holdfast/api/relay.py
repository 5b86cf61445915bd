"""``/relay/undelivered``: events that no receiver took; list them, and have them delivered again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.operations.caller import OPERATE
from holdfast.views.undelivered import Redelivering, UndeliveredList

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
    page = await here.undelivered.list(
        queue=queue, run_id=run_id, sink=sink or "", limit=limit, cursor=cursor
    )
    return reply(page)


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
    started = await here.undelivered.redeliver(
        queue=queue, run_id=run_id, sink=sink or "", everything=everything
    )
    return reply(started, 202)
