"""``/queues``: how much work there is, and whether queues take and give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers, takes
from holdfast.api.replies import body, reply
from holdfast.api.shapes import ReasonRequest
from holdfast.operations.caller import OPERATE, READ
from holdfast.views.queues import QueueDetail, QueueList

if TYPE_CHECKING:
    from holdfast.operations import Operations

router = APIRouter(tags=["queues"])

Name = Annotated[str, Path(description="The queue's name.", examples=["agent-queue"])]

_reason = msgspec.json.Decoder(ReasonRequest)
_VIEW: Final[dict[str, Any]] = {
    "name": "agent-queue",
    "mode": "open",
    "reason": "",
    "since": 0.0,
    "depth": 3,
    "undelivered": 1,
    "pending": 2,
    "delayed": 0,
    "dead": 0,
    "oldest_seconds": 0.2,
    "workers": 1,
    "partitions": 1,
}
_WORK: Final = {
    "undelivered": 1,
    "pending": 2,
    "delayed": 0,
    "due": 0,
    "dead": 0,
    "oldest_seconds": 0.2,
    "consumers": 1,
    "paused": False,
}
_DETAIL: Final = {
    **_VIEW,
    "length": 3,
    "consumer_idle_seconds": 1.2,
    "longest_running_seconds": 42.0,
    "streams": [{"stream": "agent-queue", "slot": 1234, "depth": _WORK}],
    "settings": {"slots": 10, "timeout_seconds": 1800.0},
}
_CHANGES: Final = {
    **answers(
        200, QueueDetail, "The queue as it is now.", {**_DETAIL, "mode": "paused", "reason": "upgrade"}
    ),
    **answers(errors=(401, 403, 404, 413, 422, 503)),
}
_BODY: Final = takes(ReasonRequest, {"why": {"reason": "upgrade"}}, required=False)


@router.get(
    "/queues",
    summary="List the queues",
    responses={
        **answers(200, QueueList, "Every configured queue.", {"queues": [_VIEW]}),
        **answers(errors=(401, 403, 503)),
    },
)
async def get_queues(request: Request) -> Response:
    """Show every configured queue, the default one first."""
    return reply(await access(request, READ).queues.list())


@router.get(
    "/queues/{name}",
    summary="Read how much work a queue holds",
    responses={
        **answers(200, QueueDetail, "The queue as it is now.", _DETAIL),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_queue(request: Request, name: Name) -> Response:
    """Show one queue."""
    return reply(await access(request, READ).queues.get(name))


@router.post(
    "/queues/{name}/pause",
    summary="Take no new runs and start none; what runs goes on",
    responses=_CHANGES,
    openapi_extra=_BODY,
)
async def pause_queue(request: Request, name: Name) -> Response:
    """Pause a queue."""
    here, reason = await _operator(request)
    return reply(await here.queues.pause(name, reason))


@router.post(
    "/queues/{name}/drain",
    summary="Take no new runs, but work off those that are there",
    responses=_CHANGES,
    openapi_extra=_BODY,
)
async def drain_queue(request: Request, name: Name) -> Response:
    """Drain a queue."""
    here, reason = await _operator(request)
    return reply(await here.queues.drain(name, reason))


@router.post("/queues/{name}/resume", summary="Open a queue again", responses=_CHANGES, openapi_extra=_BODY)
async def resume_queue(request: Request, name: Name) -> Response:
    """Open a queue that was paused or drained."""
    here, _ = await _operator(request)
    return reply(await here.queues.resume(name))


async def _operator(request: Request) -> tuple[Operations, str]:
    """Return the operations of an operator, and the reason in the body."""
    here = access(request, OPERATE)
    here.caller.require_every_tenant()  # before the body is read, as the role
    given = await body(request, _reason, ReasonRequest())
    return here, given.reason
