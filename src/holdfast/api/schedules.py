"""``/schedules``: what runs again and again; make, list, change and remove it, or pause many at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Final, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers, takes
from holdfast.api.replies import read, reply
from holdfast.api.scheduleexamples import CHANGES, MANY, READS, ROW, VIEW, WHICH, WRITES, Name
from holdfast.api.scheduleshapes import (
    PatternRequest,
    ScheduleChange,
    ScheduleList,
    ScheduleRequest,
    SchedulesChanged,
    ScheduleView,
)
from holdfast.api.scheduling import Book
from holdfast.errors import Conflict
from holdfast.operations.caller import OPERATE, READ
from holdfast.schedules.definitions import missing, removal_refused
from holdfast.schedules.replies import Changed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

router = APIRouter(tags=["schedules"])

_create = msgspec.json.Decoder(ScheduleRequest)
_change = msgspec.json.Decoder(ScheduleChange)
_pattern = msgspec.json.Decoder(PatternRequest)
_NAMES_TOLD: Final = 1000


# -- all of them


@router.get(
    "/schedules",
    summary="List schedules",
    responses={
        **answers(
            200,
            ScheduleList,
            "A page of schedules; it may be short and yet not the last.",
            {"schedules": [ROW], "cursor": ""},
        ),
        **answers(errors=(401, 403, 409, 422, 503)),
    },
)
async def get_schedules(
    request: Request,
    pattern: Annotated[str, Query(max_length=200, description="Only names that fit this glob.")] = "",
    state: Annotated[
        Literal["", "waiting", "running", "paused", "done", "missing"],
        Query(description="Only schedules in this state."),
    ] = "",
    agent: Annotated[str, Query(description="Only schedules of this agent.")] = "",
    source: Annotated[
        Literal["", "code", "api"], Query(description="Only those that the code declares, or not.")
    ] = "",
    tenant: Annotated[str, Query(description="Only schedules of this tenant.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str, Query(description="Where the last page ended.")] = "",
) -> Response:
    """List schedules, those of the code and those made here."""
    wanted = {"pattern": pattern, "state": state, "agent": agent, "source": source, "tenant": tenant}
    return reply(await Book(access(request, READ)).list(wanted, limit=limit, cursor=cursor))


@router.post(
    "/schedules",
    summary="Make a schedule",
    status_code=201,
    responses={
        **answers(201, ScheduleView, "The schedule is made.", VIEW),
        **answers(200, ScheduleView, "The very same was there already.", VIEW),
        **WRITES,
    },
    openapi_extra=takes(
        ScheduleRequest,
        {
            "interval": {"name": "refresh-prices", "agent": "refresh", "every": "5m", "timeout": "1m"},
            "cron": {
                "name": "nightly-report",
                "agent": "report",
                "cron": "30 3 * * *",
                "tz": "Europe/Berlin",
                "input": {"day": "yesterday"},
                "pause_after_failures": 5,
            },
            "once": {"name": "launch", "agent": "announce", "at": "2030-01-31T07:00:00Z", "target": "mail"},
        },
    ),
)
async def create_schedule(request: Request) -> Response:
    """Make a schedule; sending the same again changes nothing, another one of its name is refused."""
    book = Book(access(request, OPERATE))
    wanted = read(await request.body(), _create)
    schedule = book.asked(wanted)
    fresh = await book.definitions.create(schedule, paused=wanted.paused, reason=wanted.reason)
    made = await book.view(book.shown(schedule.name))
    return reply(made, 201 if fresh else 200, {"Location": f"/schedules/{quote(made.name, safe='')}"})


@router.post(
    "/schedules/pause",
    summary="Pause all schedules that fit a glob",
    responses=MANY,
    openapi_extra=WHICH,
)
async def pause_schedules(request: Request) -> Response:
    """Pause schedules by a pattern; those that run end their run first."""
    book, wanted = Book(access(request, OPERATE)), read(await request.body(), _pattern)
    return await _change_all(
        book, wanted, lambda names: book.definitions.pause(names, wanted.reason), Changed.PAUSED
    )


@router.post(
    "/schedules/resume",
    summary="Resume all schedules that fit a glob",
    responses=MANY,
    openapi_extra=WHICH,
)
async def resume_schedules(request: Request) -> Response:
    """Resume schedules by a pattern."""
    book, wanted = Book(access(request, OPERATE)), read(await request.body(), _pattern)
    return await _change_all(book, wanted, book.definitions.resume, Changed.RESUMED)


async def _change_all(
    book: Book,
    wanted: PatternRequest,
    change: Callable[[list[str]], Awaitable[list[Changed]]],
    word: Changed,
) -> Response:
    matched, changed, told = 0, 0, list[str]()
    async with contextlib.aclosing(book.matching(wanted.pattern)) as pages:
        async for names in pages:
            matched += len(names)
            done = [name for name, got in zip(names, await change(names), strict=True) if got is word]
            changed += len(done)
            told += [book.shown(name) for name in done[: _NAMES_TOLD - len(told)]]
    return reply(SchedulesChanged(matched, changed, told))


# -- one


@router.get(
    "/schedules/{name:path}",
    summary="Read all details of a schedule",
    responses={**answers(200, ScheduleView, "The schedule.", VIEW), **READS},
)
async def get_schedule(request: Request, name: Name) -> Response:
    """Read a schedule: its definition, its state and its last run."""
    return reply(await Book(access(request, READ)).view(name))


@router.patch(
    "/schedules/{name:path}",
    summary="Change a schedule that was made here",
    responses=CHANGES,
    openapi_extra=takes(ScheduleChange, {"slower": {"every": "10m"}, "other": {"input": {"day": "today"}}}),
)
async def change_schedule(request: Request, name: Name) -> Response:
    """Change what is given; it keeps its turn unless its trigger changes. The code's are changed there."""
    book, change = Book(access(request, OPERATE)), read(await request.body(), _change)
    stored = (await book.find(name)).entry.name
    await book.definitions.change(stored, lambda schedule: book.changed(schedule, change))
    return reply(await book.view(name))


@router.delete(
    "/schedules/{name:path}",
    summary="Remove a schedule for good",
    responses={**answers(200, ScheduleView, "The schedule as it was.", VIEW), **READS},
)
async def remove_schedule(
    request: Request,
    name: Name,
    stop: Annotated[bool, Query(description="Whether a run that goes on is stopped.")] = False,
    force: Annotated[bool, Query(description="Also one that the code once declared.")] = False,
) -> Response:
    """Remove a schedule; one that the code declares is refused, because its scheduler would bring it back."""
    book = Book(access(request, OPERATE))
    found = await book.find(name)
    (word,) = await book.definitions.remove(
        [found.entry.name], stop="its schedule was removed" if stop else "", force=force
    )
    if word is Changed.DECLARED:
        raise removal_refused(name)
    if word is Changed.UNKNOWN:
        raise missing(name)
    if word is Changed.STALE:
        raise Conflict(f"the schedule {name!r} is being changed by others: try again")
    return reply(book.viewed(found))
