"""What people write to make a schedule: each option is declared here once, with its type and its limits.

The bodies of ``/schedules``, the OpenAPI document, the options of ``holdfast schedules create`` and the
checks of ``@app.schedule`` and of clients follow from ``ScheduleOptions``. ``ScheduleKeywords`` repeats its
names for editors and type checkers; a test compares the two.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypedDict, Union, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.views.names import Name, Tenant
from holdfast.views.triggers import LATEST, Since

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    Duration: TypeAlias = float | str | timedelta
    Time: TypeAlias = float | str | datetime

Misfire: TypeAlias = Literal["coalesce", "skip", "catch_up"]
Overlap: TypeAlias = Literal["skip", "buffer", "cancel", "allow"]

# ``metavar`` is the word for the value in the help of a command.
Span: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0)] | Annotated[str, Meta(max_length=40)],
    Meta(
        description="Seconds, or a number with its unit: 500ms, 30s, 5m, 2h, 1d.",
        extra={"metavar": "DURATION"},
    ),
]
When: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=LATEST)] | Annotated[str, Meta(max_length=40)],
    Meta(description="Epoch seconds, or ISO 8601 with its zone.", extra={"metavar": "TIME"}),
]
Priority: TypeAlias = Annotated[int, Meta(ge=0, le=9)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000)]
CatchUpMost: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
OverlapMost: TypeAlias = Annotated[int, Meta(ge=1, le=100)]


class ScheduleOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a schedule is due and how it runs: exactly one of every, cron and at says when."""

    every: Annotated[Span, Meta(description="Interval between runs: 30s, 5m, 1d.")] | None = None
    cron: (
        Annotated[
            str,
            Meta(
                max_length=1000,
                description="Cron expression, such as '30 3 * * *'; with six fields the first is seconds.",
                extra={"metavar": "CRON"},
            ),
        ]
        | None
    ) = None
    at: Annotated[When, Meta(description="Run once at this time.")] | None = None
    tz: Annotated[
        str,
        Meta(max_length=100, description="Time zone of the cron expression.", extra={"metavar": "ZONE"}),
    ] = "UTC"
    since: Annotated[
        Since,
        Meta(description="Count the interval from the start or the completion.", extra={"metavar": "EVENT"}),
    ] = "start"
    timeout: Annotated[Span, Meta(description="Timeout of each run.")] | None = None
    error_interval: Annotated[Span, Meta(description="Interval after a run that failed.")] | None = None
    priority: Annotated[Priority, Meta(description="Priority; 0 is the most urgent.")] = 5
    input: Annotated[Any, Meta(description="Input of each run.")] = None
    starts_at: Annotated[When, Meta(description="No run before this time.")] | None = None
    ends_at: Annotated[When, Meta(description="No run after this time.")] | None = None
    max_runs: Annotated[
        Count, Meta(description="Number of runs after which the schedule ends; 0 is no limit.")
    ] = 0
    misfire: Annotated[
        Misfire,
        Meta(
            description="What to do with missed runs: coalesce, skip or catch_up.",
            extra={"metavar": "POLICY"},
        ),
    ] = "coalesce"
    catch_up_most: Annotated[CatchUpMost, Meta(description="Missed runs that catch_up does at most.")] = 10
    overlap: Annotated[
        Overlap,
        Meta(
            description="What to do while the last run is still running: skip, buffer, cancel or allow.",
            extra={"metavar": "POLICY"},
        ),
    ] = "skip"
    overlap_most: Annotated[OverlapMost, Meta(description="Runs that allow lets wait or run at once.")] = 10
    pause_after_failures: Annotated[
        Count, Meta(description="Pause after so many failures in a row; 0 never pauses.")
    ] = 0
    target: Annotated[
        str,
        Meta(
            max_length=256,
            description="Queue to submit runs to. Without it the scheduler runs the agent.",
            extra={"metavar": "QUEUE"},
        ),
    ] = ""
    metadata: Annotated[
        dict[str, Annotated[str, Meta(max_length=10_000)]], Meta(description="Metadata of each run.")
    ] = {}


class ScheduleKeywords(TypedDict, total=False):
    """``ScheduleOptions`` as keywords; durations may be a timedelta, times a datetime with its zone."""

    every: Duration | None
    cron: str | None
    at: Time | None
    tz: str
    since: Since
    timeout: Duration | None
    error_interval: Duration | None
    priority: int | None
    input: Any
    starts_at: Time | None
    ends_at: Time | None
    max_runs: int | None
    misfire: Misfire | None
    catch_up_most: int | None
    overlap: Overlap | None
    overlap_most: int | None
    pause_after_failures: int | None
    target: str | None
    metadata: dict[str, str] | None


class CreateKeywords(ScheduleKeywords, total=False):
    """The keywords of ``client.schedules.create``."""

    tenant: str
    paused: bool
    reason: str


class ScheduleRequest(ScheduleOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a schedule: exactly one of every, cron and at says when."""

    name: Name
    agent: Name
    tenant: (
        Annotated[
            Tenant,
            Meta(
                description="Tenant of the schedule and of its runs; that of the key, if the key has one.",
                extra={"metavar": "TENANT"},
            ),
        ]
        | None
    ) = None
    paused: Annotated[bool, Meta(description="Create the schedule paused.")] = False
    reason: Annotated[
        str, Meta(max_length=1000, description="Why it is paused.", extra={"metavar": "TEXT"})
    ] = ""


_CLEARED_BY_NULL: Final = {"error_interval", "starts_at", "ends_at"}


def _change_of(option: msgspec.structs.FieldInfo) -> tuple[str, Any, UnsetType]:
    """Return the field of an option in a change: left out it stays, and null only clears some."""
    kind: Any = option.type
    if option.name not in _CLEARED_BY_NULL and NoneType in get_args(kind):
        kind = Union[tuple(each for each in get_args(kind) if each is not NoneType)]  # noqa: UP007
    return option.name, kind | UnsetType, UNSET


ScheduleChange: Final = msgspec.defstruct(
    "ScheduleChange",
    [("agent", Name | UnsetType, UNSET), *map(_change_of, msgspec.structs.fields(ScheduleOptions))],
    namespace={"__doc__": "Change a schedule: what is left out stays as it is."},
    module=__name__,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


class PatternRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which schedules, by a glob such as ``nightly-*``, and why; others see it."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200)]
    reason: Annotated[str, Meta(max_length=1000)] = ""


class BackfillRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run the turns of a past window, from ``start`` on and before ``end``, each once."""

    start: When
    end: When
    limit: Annotated[int, Meta(ge=1, le=10_000, description="More turns than this are an error.")] = 100
    at_once: Annotated[int, Meta(ge=1, le=1000, description="How many run together.")] = 1
    dry_run: Annotated[bool, Meta(description="Only tell which turns that would be.")] = False


def given_options(request: ScheduleOptions) -> dict[str, Any]:
    """Return the options of a request by their names."""
    return {name: getattr(request, name) for name in ScheduleOptions.__struct_fields__}


def given_changes(change: msgspec.Struct) -> dict[str, Any]:
    """Return what a change was given, by name."""
    return {name: given for name, given in msgspec.structs.asdict(change).items() if given is not UNSET}
