"""``/deadletters``: runs that were given up; replay or drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.api.access import Access, access
from holdfast.api.auth import OPERATE, READ
from holdfast.api.openapi import answers
from holdfast.api.paths import OfQueue  # noqa: TC001  FastAPI reads it when it runs
from holdfast.api.replies import reply
from holdfast.errors import NotFound
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.runs.run import checked_id
from holdfast.views.dead_letters import LetterList, LetterView
from holdfast.views.runs import Changed, ErrorView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.api.backend import Line
    from holdfast.runs.deadletter import Letter

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

_LOOKS: Final = 10
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
    sources = {line.queue.name: _source(here, line, agent, reason) for line in here.lines(queue)}
    places = read_cursor(cursor, tuple(sources))
    letters = await merged(sources, places, limit, lambda letter: letter.at)
    return reply(LetterList(letters, write_cursor(places)))


def _source(
    here: Access, line: Line, agent: str, reason: str
) -> Callable[[str, int], Awaitable[Slice[LetterView]]]:
    async def fetch(cursor: str, limit: int) -> Slice[LetterView]:
        found: list[LetterView] = []
        letters = DeadLetters(line.queue)
        for _ in range(_LOOKS):
            page = await letters.list(limit=limit - len(found), cursor=cursor, agent=agent, reason=reason)
            found += [_view(here, line, letter) for letter in page.letters if here.caller.sees(letter.tenant)]
            cursor = page.cursor
            if not cursor or len(found) == limit:
                break
        return Slice(found, cursor)

    return fetch


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
    here = access(request, READ)
    return reply(_view(here, *await _found(here, ref, queue)))


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
    line, letter = await _found(access(request, OPERATE), ref, queue)
    await DeadLetters(line.queue).replay_letter(letter)
    return reply(Changed(letter.run_id, "queued"), 202)


@router.delete(
    "/deadletters/{ref:path}",
    summary="Throw a dead letter away",
    responses={
        **answers(200, LetterView, "The letter that was dropped.", _LETTER),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def drop_letter(request: Request, ref: Ref, queue: OfQueue = "") -> Response:
    """Drop a letter; its run can't be replayed by it any more."""
    here = access(request, OPERATE)
    line, letter = await _found(here, ref, queue)
    await DeadLetters(line.queue).drop_letter(letter)
    return reply(_view(here, line, letter))


async def _found(here: Access, ref: str, queue: str) -> tuple[Line, Letter]:
    checked_id(ref, "the letter's id")
    for line in here.lines(queue):
        try:
            letter = await DeadLetters(line.queue).show(ref)
        except NotFound:
            continue
        if here.caller.sees(letter.tenant):
            return line, letter
    raise NotFound(f"no dead letter {ref!r} is known here, neither by its id nor by its run's")


def _view(here: Access, line: Line, letter: Letter) -> LetterView:
    return LetterView(
        id=letter.id,
        run_id=letter.run_id,
        queue=line.queue.name,
        agent=letter.agent,
        tenant=letter.tenant,
        status=letter.status,
        reason=letter.reason,
        attempts=letter.attempts,
        error=here.error(letter.error) or ErrorView(),
        input=letter.input,
        message=letter.message,
        at=letter.at,
    )
