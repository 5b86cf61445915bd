"""``/internal/scaling/{queue}``: the number that KEDA's metrics-api trigger reads, and what it is made of."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.queues import Name  # noqa: TC001 - FastAPI reads it
from holdfast.api.replies import reply
from holdfast.operations.caller import READ
from holdfast.scaling.asking import too_slow
from holdfast.scaling.depth import Need, needs

router = APIRouter(tags=["scaling"])

_NEED: Final[dict[str, Any]] = {
    "queue": "agent-queue",
    "depth": 7.0,
    "undelivered": 4,
    "in_flight": 3,
    "due": 0,
    "oldest_seconds": 0.8,
    "slots": 3,
    "wanted": 3,
    "paused": False,
}


@router.get(
    "/internal/scaling/{name}",
    summary="Read how many workers a queue is worth",
    responses={
        **answers(
            200, Need, "`depth` is the demand: undelivered, weighted by age, and in flight and due.", _NEED
        ),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_scaling(request: Request, name: Name) -> Response:
    """Answer an autoscaler; a Redis that can't be asked is a 503, never 0."""
    here = access(request, READ)
    here.caller.require_every_tenant()
    asked, settings = here.system.queue(name).queue, here.system.settings
    seconds = settings.scaler.answer_seconds
    try:
        async with asyncio.timeout(seconds):  # KEDA waits 3 s: an answer that comes later is none
            (need,) = await needs(here.system.redis, (asked,))
    except TimeoutError as exc:
        raise too_slow(settings.redis.url, seconds) from exc
    return reply(need)
