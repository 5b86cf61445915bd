"""What the outside sees of runs and their events."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.views.times import add_iso


class Accepted(msgspec.Struct, frozen=True):
    """The receipt for a run; ``correlation_id`` is its id in the words of the caller."""

    status: str
    run_id: str
    correlation_id: str
    message_id: str
    thread_id: str


class ErrorView(msgspec.Struct, frozen=True):
    """Why a run, or its last attempt, ended badly."""

    kind: str = ""
    message: str = ""
    traceback: str = ""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list; times are seconds since the epoch, 0 = not yet, and text (ISO 8601, UTC)."""

    id: str
    queue: str
    status: str
    agent: str
    thread_id: str = ""
    tenant: str = ""
    attempt: int = 0
    fence: int = 0
    owner: str = ""
    submitted_at: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    due_at: float = 0.0
    submitted_at_iso: str = ""
    started_at_iso: str = ""
    finished_at_iso: str = ""
    due_at_iso: str = ""
    cancel: str = ""
    parked: str = ""
    parent: Annotated[str, Meta(description="The run whose agent has submitted it, if one did.")] = ""
    error: ErrorView | None = None
    archived: bool = False

    def __post_init__(self) -> None:
        add_iso(self, "submitted_at", "started_at", "finished_at", "due_at")


class RunView(RunRow, frozen=True, kw_only=True):
    """Everything that is known of a run; ``lane`` and ``entry`` are where it is in Redis."""

    lane: str = ""
    entry: str = ""
    input: Any = None
    metadata: dict[str, Any] = {}
    result: Any = None
    interrupt: Any = None


class RunList(msgspec.Struct, frozen=True):
    """Runs, newest first, the archived ones last; without a cursor that was all."""

    runs: list[RunRow]
    cursor: str = ""


class ResultView(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a run ended, or where it is; ``result`` if it succeeded, ``error`` if it did not."""

    run_id: str
    status: str
    result: Any = msgspec.UNSET
    error: ErrorView | None = None
    interrupt: Any = msgspec.UNSET


class Changed(msgspec.Struct, frozen=True):
    """What became of a run."""

    run_id: str
    status: str


class Explained(msgspec.Struct, frozen=True):
    """Why a run is where it is, in sentences."""

    run_id: str
    status: str
    because: list[str]


class EventLine(msgspec.Struct, frozen=True):
    """An event of a run, as a line of NDJSON; its time is epoch seconds and text (ISO 8601, UTC)."""

    id: str
    type: str
    at: float
    data: Any
    at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "at")
