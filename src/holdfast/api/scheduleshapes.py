"""What goes in and out of ``/schedules``, as msgspec reads and writes it; OpenAPI is derived from these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.api.shapes import NAMED, Tenant
from holdfast.config.durations import iso
from holdfast.schedules.history import PastTurn
from holdfast.schedules.overlap import Overlap
from holdfast.schedules.schedule import Misfire, Schedule
from holdfast.schedules.trigger import LATEST, Cron, Every, Once, Since
from holdfast.views.times import add_iso

if TYPE_CHECKING:
    from holdfast.schedules.entries import Entry
    from holdfast.schedules.trigger import Trigger

Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=200, pattern="^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$", extra=NAMED)
]
Span: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0)] | Annotated[str, Meta(max_length=40)],
    Meta(description="Seconds, or a number with its unit: 500ms, 30s, 5m, 2h, 1d."),
]
When: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=LATEST)] | Annotated[str, Meta(max_length=40)],
    Meta(description="Epoch seconds, or ISO 8601 with its zone."),
]
Expression: TypeAlias = Annotated[
    str, Meta(max_length=1000, description="Five fields, or six with the seconds in front.")
]
Zone: TypeAlias = Annotated[str, Meta(max_length=100, description="Whose clocks a cron expression means.")]
Priority: TypeAlias = Annotated[int, Meta(ge=0, le=9, description="0 is the most urgent.")]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Reason: TypeAlias = Annotated[str, Meta(max_length=1000)]
Target: TypeAlias = Annotated[
    str, Meta(max_length=256, description="The queue that gets its runs; empty runs it in the scheduler.")
]
Metadata: TypeAlias = dict[str, Annotated[str, Meta(max_length=10_000)]]


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a schedule: exactly one of every, cron and at says when."""

    name: Name
    agent: Name
    every: Span | None = None
    cron: Expression | None = None
    at: When | None = None
    tz: Zone = "UTC"
    since: Since = "start"
    timeout: Span | None = None
    error_interval: Span | None = None
    priority: Priority = 5
    input: Any = None
    starts_at: When | None = None
    ends_at: When | None = None
    max_runs: Count = 0
    misfire: Misfire = "coalesce"
    catch_up_most: Annotated[int, Meta(ge=1, le=1000)] = 10
    overlap: Overlap = "skip"
    overlap_most: Annotated[int, Meta(ge=1, le=100)] = 10
    pause_after_failures: Count = 0
    target: Target = ""
    metadata: Metadata = {}
    tenant: Annotated[Tenant | None, Meta(description="Forced to the key's own, if the key has one.")] = None
    paused: Annotated[bool, Meta(description="Whether it waits until it is resumed.")] = False
    reason: Annotated[str, Meta(max_length=1000, description="Why it is paused.")] = ""


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change a schedule: what is left out stays as it is."""

    agent: Name | UnsetType = UNSET
    every: Span | UnsetType = UNSET
    cron: Expression | UnsetType = UNSET
    at: When | UnsetType = UNSET
    tz: Zone | UnsetType = UNSET
    since: Since | UnsetType = UNSET
    timeout: Span | UnsetType = UNSET
    error_interval: Span | UnsetType | None = UNSET
    priority: Priority | UnsetType = UNSET
    input: Any | UnsetType = UNSET
    starts_at: When | UnsetType | None = UNSET
    ends_at: When | UnsetType | None = UNSET
    max_runs: Count | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    catch_up_most: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    overlap_most: Annotated[int, Meta(ge=1, le=100)] | UnsetType = UNSET
    pause_after_failures: Count | UnsetType = UNSET
    target: Target | UnsetType = UNSET
    metadata: Metadata | UnsetType = UNSET


class PatternRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which schedules, by a glob such as ``nightly-*``, and why; others see it."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200)]
    reason: Reason = ""


class BackfillRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run the turns of a past window, from ``start`` on and before ``end``, each once."""

    start: When
    end: When
    limit: Annotated[int, Meta(ge=1, le=10_000, description="More turns than this are an error.")] = 100
    at_once: Annotated[int, Meta(ge=1, le=1000, description="How many run together.")] = 1
    dry_run: Annotated[bool, Meta(description="Only tell which turns that would be.")] = False


class OnceView(Once, frozen=True, kw_only=True, tag_field="kind", tag="once"):
    """Due at one moment: epoch seconds, and text (ISO 8601, UTC)."""

    at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "at")


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in a list; times are epoch seconds, null where there is none, and text (ISO 8601, UTC)."""

    name: str
    tenant: str
    agent: str
    trigger: Every | Cron | OnceView | None = None
    source: Annotated[str, Meta(description="code or api: who defined it.")]
    state: Annotated[str, Meta(description="waiting, running, paused, done or missing.")]
    next_at: float | None = None
    triggered: bool
    target: str
    priority: int
    owner: str
    acquired_at: float | None = None
    deadline: float | None = None
    runs: int
    streak: Annotated[int, Meta(description="Failures in a row.")]
    paused: Annotated[str, Meta(description="Why it is paused.")]
    paused_since: float | None = None
    last_start: float | None = None
    last_end: float | None = None
    last_duration_ms: float | None = None
    last_outcome: str
    last_error: Annotated[str, Meta(description="Type and message; it stays until the next one.")]
    last_error_at: float | None = None
    next_at_iso: str = ""
    acquired_at_iso: str = ""
    deadline_iso: str = ""
    paused_since_iso: str = ""
    last_start_iso: str = ""
    last_end_iso: str = ""
    last_error_at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "next_at", "acquired_at", "deadline", "paused_since")
        add_iso(self, "last_start", "last_end", "last_error_at")


class ScheduleView(ScheduleRow, frozen=True, kw_only=True):
    """A schedule with everything that is known of it."""

    fence: int
    revision: Annotated[int, Meta(description="Another one after every change; 0 is the code's.")]
    timeout_seconds: float
    error_seconds: float | None = None
    input: Any
    starts_at: float
    ends_at: float
    starts_at_iso: str = ""
    ends_at_iso: str = ""
    max_runs: int
    misfire: str
    catch_up_most: int
    overlap: str
    overlap_most: int
    pause_after_failures: int
    metadata: dict[str, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        add_iso(self, "starts_at", "ends_at")


S = TypeVar("S", bound=ScheduleRow)


def schedule_view(shape: type[S], entry: Entry, schedule: Schedule | None, name: str = "") -> S:
    """The view of a schedule; without one its stored definition can't be read."""
    known = schedule or Schedule(name=entry.name, agent="", trigger=Every(seconds=1))
    fields = {
        field: getattr(entry if hasattr(entry, field) else known, field)
        for field in shape.__struct_fields__
        if not field.endswith("_iso")  # these follow from the times
    }
    fields |= {"name": name or entry.name, "state": entry.state.value}
    fields["trigger"] = None if schedule is None else _trigger_view(schedule.trigger)
    return shape(**fields)


def _trigger_view(trigger: Trigger) -> Every | Cron | OnceView:
    return OnceView(at=trigger.at) if isinstance(trigger, Once) else trigger


class ScheduleList(msgspec.Struct, frozen=True):
    """Schedules; without a cursor that was all."""

    schedules: list[ScheduleRow]
    cursor: str = ""


class ScheduleChanged(msgspec.Struct, frozen=True):
    """What became of a schedule: triggered, or buffered if it runs and will run once more."""

    name: str
    status: str


class SchedulesChanged(msgspec.Struct, frozen=True):
    """How many schedules fit, how many of them have changed, and the names of the first of these."""

    matched: int
    changed: int
    names: list[str]


class ScheduleTimes(msgspec.Struct, frozen=True):
    """The next turns of a schedule, epoch seconds and text (ISO 8601, UTC)."""

    name: str
    times: list[float]
    times_iso: list[str] = []

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "times_iso", [iso(at) for at in self.times])


class ScheduleTurn(PastTurn, frozen=True, kw_only=True):
    """One past turn of a schedule; times are epoch seconds and text (ISO 8601, UTC)."""

    planned_at_iso: str = ""
    started_at_iso: str = ""
    ended_at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "planned_at", "started_at", "ended_at")


class ScheduleTurns(msgspec.Struct, frozen=True):
    """The past turns of a schedule, the newest first."""

    name: str
    turns: list[ScheduleTurn]


class ScheduleExplained(msgspec.Struct, frozen=True):
    """Why a schedule does not run now, in sentences."""

    name: str
    state: str
    because: list[str]


class BackfilledTurn(msgspec.Struct, frozen=True):
    """One turn of a backfill: placed, already (it was placed before) or planned (nothing was done)."""

    turn: str
    at: float
    status: str
    at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "at")


class Backfilled(msgspec.Struct, frozen=True):
    """The turns of a backfill, oldest first."""

    name: str
    turns: list[BackfilledTurn]
