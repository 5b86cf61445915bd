"""``/deadletters``: runs that were given up; replay or drop them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.paths import OfQueue  # noqa: TC001  FastAPI reads it when it runs
from holdfast.api.replies import reply
from holdfast.operations.caller import OPERATE, READ
from holdfast.views.dead_letters import LetterList, LetterView
from holdfast.views.runs import Changed

router = APIRouter(tags=["dead letters"])

Ref = Annotated[
    str,
    Path(
        description="The letter's id, or its run's.",
        min_length=1,
        max_length=256,
        pattern="^[!-~]+$",
        examples=["1731000002500-0"],
    ),
]

_LETTER: Final[dict[str, Any]] = {
    "id": "1731000002500-0",
    "run_id": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
    "queue": "agent-queue",
    "agent": "triage",
    "tenant": "acme",
    "status": "failed",
    "reason": "attempts",
    "attempts": 3,
    "error": {"kind": "ValueError", "message": "no such ticket", "traceback": ""},
    "input": {"ticket": 7},
    "message": "",
    "at": 1731000002.5,
}


@router.get(
    "/deadletters",
    summary="List runs that were given up, newest first",
    responses={
        **answers(
            200,
            LetterList,
            "A page of letters; it may be short and yet not the last.",
            {"letters": [_LETTER], "cursor": ""},
        ),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_letters(
    request: Request,
    queue: Annotated[str, Query(description="Only letters of this queue.")] = "",
    agent: Annotated[str, Query(description="Only letters of this agent.")] = "",
    reason: Annotated[str, Query(description="Only letters with this reason.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str, Query(description="Where the last page ended.")] = "",
) -> Response:
    """List the dead letters of all queues."""
    here = access(request, READ)
    page = await here.dead_letters.list(queue=queue, agent=agent, reason=reason, limit=limit, cursor=cursor)
    return reply(page)


@router.get(
    "/deadletters/{ref:path}",
    summary="Read one dead letter",
    responses={
        **answers(200, LetterView, "The letter.", _LETTER),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_letter(request: Request, ref: Ref, queue: OfQueue = "") -> Response:
    """Read a letter by its id or by its run's."""
    return reply(await access(request, READ).dead_letters.get(ref, queue=queue))


@router.post(
    "/deadletters/{ref:path}/replay",
    summary="Queue the run of a dead letter again, from its first attempt",
    status_code=202,
    responses={
        **answers(202, Changed, "The run is queued.", {"run_id": "7", "status": "queued"}),
        **answers(errors=(401, 403, 404, 409, 413, 422, 503)),
    },
)
async def replay_letter(request: Request, ref: Ref, queue: OfQueue = "") -> Response:
    """Replay a letter; it leaves the dead letters in the same step."""
    return reply(await access(request, OPERATE).dead_letters.replay(ref, queue=queue), 202)


@router.delete(
    "/deadletters/{ref:path}",
    summary="Delete a dead letter",
    responses={
        **answers(200, LetterView, "The letter that was dropped.", _LETTER),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def drop_letter(request: Request, ref: Ref, queue: OfQueue = "") -> Response:
    """Drop a letter; its run can't be replayed by it any more."""
    return reply(await access(request, OPERATE).dead_letters.drop(ref, queue=queue))
