"""What goes in and out of the API, as msgspec reads and writes it; OpenAPI is derived from these."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.config.durations import iso
from holdfast.runs.receivers import (
    TOKEN_LONGEST,
    UNBROKEN_MUST,
    UNBROKEN_PATTERN,
    URL_LONGEST,
    URL_MUST,
    URL_PATTERN,
)

BATCH_MOST: Final = 1000
"""Runs of one batch; together they are as large as a body may be."""

# Beside each pattern, what a caller is told who does not match it.
_UNBROKEN: Final = {"must": UNBROKEN_MUST}
NAMED: Final = {"must": "be letters, digits and _ . : / -, beginning with a letter, a digit or _"}

Text = Annotated[
    str, Meta(max_length=256, pattern="^[ -~]*$", extra={"must": "be one line of printable ASCII characters"})
]
Id = Annotated[str, Meta(min_length=1, max_length=256, pattern="^[!-~]+$", extra=_UNBROKEN)]
Scoped = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[!-~]+$", extra=_UNBROKEN)]
"""A name that may be put behind that of its tenant."""
Tenant = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        pattern="^[A-Za-z0-9_.-]+$",
        extra={"must": "be letters, digits and . _ -"},
    ),
]
Url = Annotated[str, Meta(max_length=URL_LONGEST, pattern=URL_PATTERN, extra={"must": URL_MUST})]


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request: where, and what."""

    where: str
    what: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem, as RFC 9457 has it; ``request_id`` finds the request in the logs."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str = ""
    errors: tuple[Fault, ...] = ()


class Push(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A receiver of A2A push notifications."""

    url: Url
    token: Annotated[str, Meta(max_length=TOKEN_LONGEST, pattern=UNBROKEN_PATTERN, extra=_UNBROKEN)] = ""


class ExecuteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for a run (START), or answer one that waits for input (RESUME, with its correlation_id)."""

    agent_id: Annotated[
        str,
        Meta(
            max_length=200,
            pattern="^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$",
            description="The agent's name.",
            extra=NAMED,
        ),
    ]
    input: Annotated[Any, Meta(description="What the agent is given; with RESUME, the answer.")] = None
    action: Literal["START", "RESUME"] = "START"
    correlation_id: Annotated[
        Id | None, Meta(description="The run's id; the same one again is the same run.")
    ] = None
    thread_id: Annotated[
        Scoped | None, Meta(description="The conversation; its runs go one after the other.")
    ] = None
    client_id: Text | None = None
    project_id: Text | None = None
    tenant: Annotated[Tenant | None, Meta(description="Forced to the key's own, if the key has one.")] = None
    queue: Annotated[Text | None, Meta(description="The queue, if it is not the default one.")] = None
    priority: Literal["high", "normal", "low"] = "normal"
    delay_seconds: Annotated[float, Meta(ge=0, le=315_360_000)] | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    metadata: dict[str, Any] | None = None
    webhook: Annotated[
        Url | None,
        Meta(description="Where the run's events are sent, as Standard Webhooks has it."),
    ] = None
    push: Annotated[Push | None, Meta(description="Where A2A push notifications of the run go.")] = None
    logger_context: Annotated[
        dict[str, Any] | None,
        Meta(description="Fields of every log line about the run, and of its events that go outside."),
    ] = None
    multitask: Annotated[
        Literal["enqueue", "reject", "interrupt", "rollback"],
        Meta(description="What becomes of this run if its thread is busy."),
    ] = "enqueue"
    concurrency_key: Annotated[Scoped | None, Meta(description="Runs with the same key share a limit.")] = (
        None
    )


class Accepted(msgspec.Struct, frozen=True):
    """The receipt for a run; ``correlation_id`` is its id in the words of the caller."""

    status: str
    run_id: str
    correlation_id: str
    message_id: str
    thread_id: str


class BatchRun(ExecuteRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of a batch: what ``POST /execute`` takes, with START only, and its own idempotency key."""

    idempotency_key: Annotated[
        Scoped | None, Meta(description="The same key again is the same run, for a day.")
    ] = None


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ask for many runs at once; those of one queue are queued in this order."""

    runs: Annotated[list[BatchRun], Meta(min_length=1, max_length=BATCH_MOST)]


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one run of a batch: ``code`` is what ``POST /execute`` would have answered."""

    code: int
    run: Accepted | None = None
    problem: Problem | None = None
    retry_after: int = 0


class BatchReply(msgspec.Struct, frozen=True):
    """What became of each run of a batch, in the order they were asked for."""

    runs: list[BatchItem]


class ErrorView(msgspec.Struct, frozen=True):
    """Why a run, or its last attempt, ended badly."""

    kind: str = ""
    message: str = ""
    traceback: str = ""


def add_iso(view: msgspec.Struct, *names: str) -> None:
    """Write times of a view as text, too: ``submitted_at`` as ``submitted_at_iso``."""
    for name in names:
        msgspec.structs.force_setattr(view, f"{name}_iso", iso(getattr(view, name) or 0.0))


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
    """Everything that is known of a run."""

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


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to a run that waits for one."""

    value: Any = None


class ReasonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why something is done; others see it."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class Changed(msgspec.Struct, frozen=True):
    """What became of a run."""

    run_id: str
    status: str


class Explained(msgspec.Struct, frozen=True):
    """Why a run is where it is, in sentences."""

    run_id: str
    status: str
    because: list[str]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: whether it is open, and how much work it holds."""

    name: str
    mode: str
    reason: str
    since: float
    depth: int
    undelivered: int
    pending: int
    delayed: int
    dead: int
    oldest_seconds: float
    workers: int
    partitions: int = 1
    since_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "since")


class QueueList(msgspec.Struct, frozen=True):
    """Every configured queue, the default one first."""

    queues: list[QueueView]


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was given up, and why."""

    id: str
    run_id: str
    queue: str
    agent: str
    tenant: str = ""
    status: str
    reason: str
    attempts: int
    error: ErrorView
    input: Any
    message: Annotated[
        str, Meta(description="What was sent, as text, where it can't be read; input is null then.")
    ] = ""
    at: float
    at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "at")


class LetterList(msgspec.Struct, frozen=True):
    """Dead letters, newest first; without a cursor that was all."""

    letters: list[LetterView]
    cursor: str = ""


class UndeliveredView(msgspec.Struct, frozen=True, kw_only=True):
    """An event that no receiver took, and why; ``at`` is when it was given up."""

    id: str
    queue: str
    run_id: str
    event_id: str
    sequence: int
    type: str
    sink: str
    error: str
    data: Any
    at: float
    at_iso: str = ""
    tenant: str = ""
    redelivering: bool = False

    def __post_init__(self) -> None:
        add_iso(self, "at")


class UndeliveredList(msgspec.Struct, frozen=True):
    """Undelivered events, newest first; without a cursor that was all."""

    events: list[UndeliveredView]
    cursor: str = ""


class Redelivering(msgspec.Struct, frozen=True):
    """How many events relays will deliver again, and why others can't be, by their ids."""

    queued: int
    refused: dict[str, str]


class MemberView(msgspec.Struct, frozen=True):
    """One live process, as it last described itself."""

    kind: str
    name: str
    fields: dict[str, Any]
    """Its record: ``pid``, ``load``, ``capacity`` and ``since`` (epoch seconds) are numbers."""


class MemberList(msgspec.Struct, frozen=True):
    """Every live process."""

    members: list[MemberView]


class EventLine(msgspec.Struct, frozen=True):
    """An event of a run, as a line of NDJSON; its time is epoch seconds and text (ISO 8601, UTC)."""

    id: str
    type: str
    at: float
    data: Any
    at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "at")


class Health(msgspec.Struct, frozen=True):
    """Whether this process serves."""

    status: str


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether this process takes requests; ``unserved`` are queues whose runs wait without a worker."""

    status: str
    unserved: tuple[str, ...] = ()


class QueueHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a queue's consumer group is there; ``answers`` is false while its server does not answer."""

    queue: str
    group: str
    present: bool
    answers: bool = True


class RedisHealth(msgspec.Struct, frozen=True):
    """How fast Redis answers, and whether the consumer groups are there."""

    status: str
    ping_ms: float | None
    queues: list[QueueHealth]
