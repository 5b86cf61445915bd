"""What the outside sees of schedules and their turns."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.config.durations import iso
from holdfast.views.times import add_iso
from holdfast.views.triggers import Cron, Every, Once


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
    trigger: Annotated[
        Every | Cron | OnceView | None, Meta(description="Null if its definition can't be read.")
    ] = None
    source: Annotated[str, Meta(description="code or api: who defined it.")]
    state: Annotated[str, Meta(description="waiting, running, paused, done or missing.")]
    next_at: float | None = None
    triggered: bool
    target: str
    priority: int
    owner: Annotated[str, Meta(description="The scheduler that runs it now.")]
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


class PastTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One firing of a turn that has ended; times are epoch seconds by the clock of Redis."""

    turn: Annotated[str, Meta(description="The turn's id, as in the log; it keeps it if it runs again.")] = ""
    outcome: Annotated[
        str,
        Meta(
            description="succeeded, failed, timed_out, cancelled, submitted (its run goes on in the queue), "
            "given_back (it runs again) or lost (its scheduler died; it runs again)."
        ),
    ] = ""
    planned_at: float = 0.0
    started_at: float = 0.0
    ended_at: Annotated[float, Meta(description="If lost: when its lease was found to be over.")] = 0.0
    duration_ms: float = 0.0
    owner: Annotated[str, Meta(description="The scheduler that ran it.")] = ""
    fence: int = 0
    attempt: Annotated[int, Meta(description="One more for every scheduler that died with this turn.")] = 1
    manual: Annotated[bool, Meta(description="Whether it was triggered by hand.")] = False
    error_kind: Annotated[str, Meta(description="The class of a failure, such as transient.")] = ""
    error: str = ""
    queue: Annotated[str, Meta(description="The queue that its run was submitted to.")] = ""
    run_id: Annotated[str, Meta(description="The run that was submitted to the queue.")] = ""


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
