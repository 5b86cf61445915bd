"""The types of a run: its statuses, its submission, and its record."""

from __future__ import annotations

import enum
import re
from typing import Any

import msgspec

from holdfast.errors import InputError


class Status(enum.StrEnum):
    """The status of a run.

    ::

        submit ──> queued ──claim──> running ──settle──> succeeded
          │          ^ ^                │                failed      (dead letters)
          └> delayed ┘ │                │                timed_out   (dead letters)
                ^      │                ├─ retry ──────> delayed
                │      │                ├─ hand back ──> queued       (attempt not counted)
                │      └── replay ──    └─ worker dies ─> queued      (reclaimed, higher fence)
                └─ backoff
        running ──interrupt──> interrupted ──resume──> queued
        queued, delayed, running, interrupted ──cancel──> cancelled

    A queued run may be parked: it waits for its thread, or for another limit, and not in a lane.
    """

    QUEUED = "queued"
    DELAYED = "delayed"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the status is final; only a replay changes it."""
        return self in ENDED


ENDED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT, Status.CANCELLED})


def status_phrase(status: str) -> str:
    """Return the words of an error after a run's id: ``is running``, ``has already failed``."""
    if status == Status.CANCELLED:
        return "was cancelled"
    return f"has already {status.replace('_', ' ')}" if status in ENDED else f"is {status}"


class Priority(enum.StrEnum):
    """Which lane a run waits in."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Multitask(enum.StrEnum):
    """What a new run does if its thread is busy: wait, be refused, cancel the other, or undo it too."""

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of ``message_data``: the input, and the options of the submission."""

    input: Any = msgspec.UNSET
    action: str = "START"
    thread_id: str = ""
    client_id: str = ""
    project_id: str = ""
    tenant: str = ""
    timeout_seconds: float | None = None
    metadata: dict[str, Any] = {}
    webhook: str = ""
    push: dict[str, Any] = {}
    trace: dict[str, str] = {}
    logger_context: dict[str, Any] = {}


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one run, as the caller states it."""

    agent: str
    input: Any = None
    run_id: str = ""
    thread_id: str = ""
    priority: Priority = Priority.NORMAL
    delay_seconds: float = 0.0
    timeout_seconds: float | None = None
    idempotency_key: str = ""
    client_id: str = ""
    project_id: str = ""
    tenant: str = ""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    webhook: str = ""
    push: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Where A2A push notifications go: url and token."""
    multitask: Multitask = Multitask.ENQUEUE
    concurrency_key: str = ""
    logger_context: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    trace: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """The trace of the submitter, if that is another process; else the current span is used."""
    parent: str = ""
    """The run whose agent submits this one, if that is another process; else the current run is used."""


class Ticket(msgspec.Struct, frozen=True):
    """The receipt for a submission; ``fresh`` is False if the run already existed."""

    run_id: str
    status: Status
    message_id: str
    fresh: bool = True


class RunFault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a run, or its last attempt, ended badly."""

    kind: str = ""
    message: str = ""
    traceback: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is now; times are seconds since the epoch, 0 = not yet."""

    id: str
    queue: str
    status: Status
    agent: str
    thread_id: str = ""
    lane: str = ""
    entry: str = ""
    attempt: int = 0
    fence: int = 0
    owner: str = ""
    submitted_at: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    due_at: float = 0.0
    cancel: str = ""
    tenant: str = ""
    parked: str = ""
    """The limit that the run waits for, if it does."""
    parent: str = ""
    """The run whose agent has submitted this one, if any."""
    interrupt: Any = None
    """The question of an interrupted run, while it waits for the answer."""
    input: Any = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    result: Any = None
    error: RunFault | None = None


_ID = re.compile(r"[!-~]{1,256}\Z")


def checked_id(value: str, what: str) -> str:
    """Return ``value`` if it can name a run; ids end up in keys, logs and URLs."""
    if not _ID.match(value):
        raise InputError(
            f"{what} must be 1 to 256 printable ASCII characters without spaces, got {value[:80]!r}"
        )
    if value.endswith(":events"):
        raise InputError(
            f"{what} must not end in ':events', got {value[:80]!r}: that is the name of a run's feed"
        )
    return value
