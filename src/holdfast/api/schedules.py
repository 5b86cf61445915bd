"""``/schedules``: what runs again and again; make, list, change, steer and remove it, one or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers, takes
from holdfast.api.paths import VerbRoute
from holdfast.api.replies import body, read, reply
from holdfast.api.shapes import ReasonRequest
from holdfast.errors import ConfigError, Conflict
from holdfast.operations.caller import OPERATE, READ, SUBMIT
from holdfast.views.schedule_options import (
    BackfillRequest,
    PatternRequest,
    ScheduleChange,
    ScheduleRequest,
    given_changes,
    given_options,
)
from holdfast.views.schedules import (
    Backfilled,
    ScheduleChanged,
    ScheduleExplained,
    ScheduleList,
    SchedulesChanged,
    ScheduleTimes,
    ScheduleTurns,
    ScheduleView,
)

if TYPE_CHECKING:
    from holdfast.operations.schedules import ScheduleOperations

router = APIRouter(tags=["schedules"], route_class=VerbRoute)

Name = Annotated[
    str,
    Path(
        description="The schedule's name; a slash in it may be %2F, and must be if it ends like /next.",
        min_length=1,
        max_length=300,
        pattern="^[!-~]+$",
        examples=["nightly-report"],
    ),
]

_create = msgspec.json.Decoder(ScheduleRequest)
_change = msgspec.json.Decoder(ScheduleChange)
_pattern = msgspec.json.Decoder(PatternRequest)
_reason = msgspec.json.Decoder(ReasonRequest)
_backfill = msgspec.json.Decoder(BackfillRequest)

_ROW: Final[dict[str, Any]] = {
    "name": "nightly-report",
    "tenant": "acme",
    "agent": "report",
    "trigger": {"kind": "cron", "expression": "30 3 * * *", "zone": "Europe/Berlin"},
    "source": "api",
    "state": "waiting",
    "next_at": 1731033000.0,
    "triggered": False,
    "target": "",
    "priority": 5,
    "owner": "",
    "acquired_at": None,
    "deadline": None,
    "runs": 12,
    "streak": 0,
    "paused": "",
    "paused_since": None,
    "last_start": 1730946600.0,
    "last_end": 1730946603.2,
    "last_duration_ms": 3200.0,
    "last_outcome": "succeeded",
    "last_error": "TimeoutError: the warehouse does not answer",
    "last_error_at": 1730860203.2,
}
_VIEW: Final[dict[str, Any]] = {
    **_ROW,
    "fence": 1730946600000001,
    "revision": 1730000000000001,
    "timeout_seconds": 300.0,
    "error_seconds": None,
    "input": {"day": "yesterday"},
    "starts_at": 0.0,
    "ends_at": 0.0,
    "max_runs": 0,
    "misfire": "coalesce",
    "catch_up_most": 10,
    "overlap": "skip",
    "overlap_most": 10,
    "pause_after_failures": 5,
    "metadata": {"team": "sales"},
}
_TURN: Final[dict[str, Any]] = {
    "turn": "nightly-report@1730946600.000",
    "outcome": "failed",
    "planned_at": 1730946600.0,
    "started_at": 1730946600.1,
    "ended_at": 1730946603.3,
    "duration_ms": 3200.0,
    "owner": "scheduler-7f9c",
    "fence": 1730946600000001,
    "attempt": 1,
    "manual": False,
    "error_kind": "transient",
    "error": "TimeoutError: the warehouse does not answer",
    "queue": "",
    "run_id": "",
}
_READS: Final = answers(errors=(401, 403, 404, 409, 422, 503))
_WRITES: Final = answers(errors=(401, 403, 404, 409, 413, 422, 503))
_CHANGES: Final = {**answers(200, ScheduleView, "The schedule as it is now.", _VIEW), **_WRITES}
_MANY: Final = {
    **answers(
        200,
        SchedulesChanged,
        "What became of those that fit.",
        {"matched": 2, "changed": 1, "names": ["nightly-report"]},
    ),
    **_WRITES,
}
_WHY: Final = takes(ReasonRequest, {"why": {"reason": "the database moves"}}, required=False)
_WHICH: Final = takes(PatternRequest, {"some": {"pattern": "nightly-*", "reason": "the database moves"}})


# -- all of them


@router.get(
    "/schedules",
    summary="List schedules",
    responses={
        **answers(
            200,
            ScheduleList,
            "A page of schedules; it may be short and yet not the last.",
            {"schedules": [_ROW], "cursor": ""},
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
    filters = {"pattern": pattern, "state": state, "agent": agent, "source": source, "tenant": tenant}
    return reply(await _schedules(request, READ).list(**filters, limit=limit, cursor=cursor))


@router.post(
    "/schedules",
    summary="Make a schedule",
    status_code=201,
    responses={
        **answers(201, ScheduleView, "The schedule is made.", _VIEW),
        **answers(200, ScheduleView, "The very same was there already.", _VIEW),
        **_WRITES,
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
    schedules, wanted = _schedules(request, OPERATE), read(await request.body(), _create)
    made, fresh = await schedules.create(
        wanted.name,
        wanted.agent,
        given_options(wanted),
        tenant=wanted.tenant or "",
        paused=wanted.paused,
        reason=wanted.reason,
    )
    return reply(made, 201 if fresh else 200, {"Location": f"/schedules/{quote(made.name, safe='')}"})


@router.post(
    "/schedules/pause",
    summary="Pause all schedules that fit a glob",
    responses=_MANY,
    openapi_extra=_WHICH,
)
async def pause_schedules(request: Request) -> Response:
    """Pause schedules by a pattern; those that run end their run first."""
    schedules, wanted = _schedules(request, OPERATE), read(await request.body(), _pattern)
    return reply(await schedules.pause_matching(wanted.pattern, wanted.reason))


@router.post(
    "/schedules/resume",
    summary="Resume all schedules that fit a glob",
    responses=_MANY,
    openapi_extra=_WHICH,
)
async def resume_schedules(request: Request) -> Response:
    """Resume schedules by a pattern."""
    schedules, wanted = _schedules(request, OPERATE), read(await request.body(), _pattern)
    return reply(await schedules.resume_matching(wanted.pattern))


# -- one: first what its paths end with


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
        **_READS,
    },
)
async def next_turns(
    request: Request,
    name: Name,
    count: Annotated[int, Query(ge=1, le=1000, description="How many turns.")] = 5,
) -> Response:
    """Tell the next turns, as if every run took no time."""
    return reply(await _schedules(request, READ).next(name, count))


@router.get(
    "/schedules/{name:path}/turns",
    summary="Read the past turns of a schedule",
    responses={
        **answers(
            200,
            ScheduleTurns,
            "Its last turns, the newest first, as many as redis.scheduler.kept-turns keeps.",
            {"name": "nightly-report", "turns": [_TURN]},
        ),
        **_READS,
    },
)
async def past_turns(
    request: Request,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many turns.")] = 20,
) -> Response:
    """Read how the last turns of a schedule ended."""
    return reply(await _schedules(request, READ).turns(name, limit))


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
        **_READS,
    },
)
async def explain_schedule(request: Request, name: Name) -> Response:
    """Say why a schedule does not run now."""
    return reply(await _schedules(request, READ).explain(name))


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
        **_WRITES,
    },
)
async def trigger_schedule(request: Request, name: Name) -> Response:
    """Run a schedule now, also if it is paused."""
    return reply(await _schedules(request, SUBMIT).trigger(name), 202)


@router.post(
    "/schedules/{name:path}/pause",
    summary="Pause a schedule until it is resumed",
    responses=_CHANGES,
    openapi_extra=_WHY,
)
async def pause_schedule(request: Request, name: Name) -> Response:
    """Pause a schedule, of the code or not; if it runs, that run ends first."""
    schedules = _schedules(request, OPERATE)
    given = await body(request, _reason, ReasonRequest())
    return reply(await schedules.pause(name, given.reason))


@router.post(
    "/schedules/{name:path}/resume",
    summary="Resume a paused schedule",
    responses=_CHANGES,
    openapi_extra=_WHY,
)
async def resume_schedule(request: Request, name: Name) -> Response:
    """Resume a schedule."""
    schedules = _schedules(request, OPERATE)
    await body(request, _reason, ReasonRequest())
    return reply(await schedules.resume(name))


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
    schedules, wanted = _schedules(request, OPERATE), read(await request.body(), _backfill)
    turns = await schedules.backfill(name, **msgspec.structs.asdict(wanted))
    return reply(turns, 202)


@router.get(
    "/schedules/{name:path}",
    summary="Read all details of a schedule",
    responses={**answers(200, ScheduleView, "The schedule.", _VIEW), **_READS},
)
async def get_schedule(request: Request, name: Name) -> Response:
    """Read a schedule: its definition, its state and its last run."""
    return reply(await _schedules(request, READ).get(name))


@router.patch(
    "/schedules/{name:path}",
    summary="Change a schedule that was made here",
    responses=_CHANGES,
    openapi_extra=takes(ScheduleChange, {"slower": {"every": "10m"}, "other": {"input": {"day": "today"}}}),
)
async def change_schedule(request: Request, name: Name) -> Response:
    """Change what is given; it keeps its turn unless its trigger changes. The code's are changed there."""
    schedules, change = _schedules(request, OPERATE), read(await request.body(), _change)
    return reply(await schedules.change(name, given_changes(change)))


@router.delete(
    "/schedules/{name:path}",
    summary="Remove a schedule for good",
    responses={**answers(200, ScheduleView, "The schedule as it was.", _VIEW), **_READS},
)
async def remove_schedule(
    request: Request,
    name: Name,
    stop: Annotated[bool, Query(description="Whether a run that goes on is stopped.")] = False,
    force: Annotated[bool, Query(description="Also one that the code once declared.")] = False,
) -> Response:
    """Remove a schedule; one that the code declares is refused, because its scheduler would bring it back."""
    return reply(await _schedules(request, OPERATE).remove(name, stop=stop, force=force))


def _schedules(request: Request, role: str) -> ScheduleOperations:
    """Return what the request's caller can ask of schedules, if it has the role."""
    here = access(request, role)
    try:
        return here.schedules
    except ConfigError as exc:
        raise Conflict(str(exc)) from None
