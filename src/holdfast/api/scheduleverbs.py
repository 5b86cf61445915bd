"""``/schedules/{name}/…``: what is asked of one schedule, and what it is told to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers, takes
from holdfast.api.paths import VerbRoute
from holdfast.api.replies import body, read, reply
from holdfast.api.scheduleexamples import CHANGES, READS, TURN, WHY, WRITES, Name
from holdfast.api.scheduleshapes import (
    Backfilled,
    BackfilledTurn,
    BackfillRequest,
    ScheduleChanged,
    ScheduleExplained,
    ScheduleTimes,
    ScheduleTurns,
)
from holdfast.api.scheduling import Book, moment
from holdfast.api.shapes import ReasonRequest
from holdfast.errors import Conflict
from holdfast.operations.caller import OPERATE, READ, SUBMIT
from holdfast.schedules.definitions import missing
from holdfast.schedules.entries import upcoming
from holdfast.schedules.explain import explain
from holdfast.schedules.replies import Changed
from holdfast.schedules.selection import Patterns
from holdfast.schedules.submission import served_queues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

router = APIRouter(tags=["schedules"], route_class=VerbRoute)

_reason = msgspec.json.Decoder(ReasonRequest)
_backfill = msgspec.json.Decoder(BackfillRequest)


@router.get(
    "/schedules/{name:path}/next",
    summary="Read the next turns of a schedule",
    responses={
        **answers(
            200,
            ScheduleTimes,
            "Its turns; none if it is done.",
            {"name": "nightly-report", "times": [1731033000.0, 1731119400.0]},
        ),
        **READS,
    },
)
async def next_turns(
    request: Request,
    name: Name,
    count: Annotated[int, Query(ge=1, le=1000, description="How many turns.")] = 5,
) -> Response:
    """Tell the next turns, as if every run took no time."""
    book = Book(access(request, READ))
    found = await book.find(name)
    now = (await book.registry.count()).now
    times = upcoming(found.entry, found.schedule, now, count) if found.readable else []
    return reply(ScheduleTimes(name, times))


@router.get(
    "/schedules/{name:path}/turns",
    summary="Read the past turns of a schedule",
    responses={
        **answers(
            200,
            ScheduleTurns,
            "Its last turns, the newest first, as many as redis.scheduler.kept-turns keeps.",
            {"name": "nightly-report", "turns": [TURN]},
        ),
        **READS,
    },
)
async def past_turns(
    request: Request,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many turns.")] = 20,
) -> Response:
    """Read how the last turns of a schedule ended."""
    book = Book(access(request, READ))
    return reply(ScheduleTurns(name, await book.turns(name, limit)))


@router.get(
    "/schedules/{name:path}/explain",
    summary="Read why a schedule does not run now",
    responses={
        **answers(
            200,
            ScheduleExplained,
            "The reason.",
            {
                "name": "nightly-report",
                "state": "waiting",
                "because": ["it is not due: its next turn is in 1m 26s"],
            },
        ),
        **READS,
    },
)
async def explain_schedule(request: Request, name: Name) -> Response:
    """Say why a schedule does not run now."""
    here = access(request, READ)
    book = Book(here)
    found = await book.find(name)
    settings, members = here.system.settings.redis, await here.system.members.all(here.system.redis)
    why = "its definition can't be read: make it again"
    if found.readable:
        why = explain(
            found.entry,
            found.schedule,
            now=(await book.registry.count()).now,
            patterns=Patterns.of(settings.agent),
            schedulers={one.name: one.fields for one in members if one.kind == "scheduler"},
            sharded=settings.scheduler.sharding != "none",
            queues=served_queues(here.system.settings.queue_names(), members),
        )
    return reply(ScheduleExplained(name, found.entry.state.value, [why]))


@router.post(
    "/schedules/{name:path}/trigger",
    summary="Run a schedule now; its turns stay where they are",
    status_code=202,
    responses={
        **answers(
            202,
            ScheduleChanged,
            "It will run; buffered: once more after the run that goes on.",
            {"name": "nightly-report", "status": "triggered"},
        ),
        **WRITES,
    },
)
async def trigger_schedule(request: Request, name: Name) -> Response:
    """Run a schedule now, also if it is paused."""
    book = Book(access(request, SUBMIT))
    found = await book.find(name)
    (word,) = await book.registry.trigger([found.entry.name])
    if word is Changed.UNKNOWN:
        raise missing(name)
    return reply(ScheduleChanged(name, word.value), 202)


@router.post(
    "/schedules/{name:path}/pause",
    summary="Pause a schedule until it is resumed",
    responses=CHANGES,
    openapi_extra=WHY,
)
async def pause_schedule(request: Request, name: Name) -> Response:
    """Pause a schedule, of the code or not; if it runs, that run ends first."""
    book = Book(access(request, OPERATE))
    why = (await body(request, _reason, ReasonRequest())).reason
    return await _change_one(book, name, lambda names: book.definitions.pause(names, why))


@router.post(
    "/schedules/{name:path}/resume",
    summary="Resume a paused schedule",
    responses=CHANGES,
    openapi_extra=WHY,
)
async def resume_schedule(request: Request, name: Name) -> Response:
    """Resume a schedule."""
    book = Book(access(request, OPERATE))
    await body(request, _reason, ReasonRequest())
    return await _change_one(book, name, book.definitions.resume)


async def _change_one(
    book: Book, name: str, change: Callable[[list[str]], Awaitable[list[Changed]]]
) -> Response:
    (word,) = await change([(await book.find(name)).entry.name])
    if word is Changed.STALE:
        raise Conflict(f"the schedule {name!r} is being changed by others: try again")
    return reply(await book.view(name))


@router.post(
    "/schedules/{name:path}/backfill",
    summary="Run the turns of a past window, each once",
    status_code=202,
    responses={
        **answers(
            202,
            Backfilled,
            "The turns; already: it was placed before.",
            {
                "name": "nightly-report",
                "turns": [{"turn": "nightly-report@1730946600.000", "at": 1730946600.0, "status": "placed"}],
            },
        ),
        **answers(errors=(401, 403, 404, 409, 413, 422, 429, 503)),
    },
    openapi_extra=takes(
        BackfillRequest,
        {"week": {"start": "2030-01-01T00:00:00Z", "end": "2030-01-08T00:00:00Z", "dry_run": True}},
    ),
)
async def backfill_schedule(request: Request, name: Name) -> Response:
    """Run what a schedule has missed in a window; asking again runs nothing twice."""
    book, wanted = Book(access(request, OPERATE)), read(await request.body(), _backfill)
    stored = (await book.find(name)).entry.name
    start, end = moment("start", wanted.start), moment("end", wanted.end)
    backfill = book.backfill()
    if wanted.dry_run:
        turns = await backfill.plan(stored, start, end, limit=wanted.limit)
    else:
        turns = await backfill.run(stored, start, end, limit=wanted.limit, at_once=wanted.at_once)
    told = [BackfilledTurn(book.shown(each.turn), each.at, each.word) for each in turns]
    return reply(Backfilled(name, told), 202)
