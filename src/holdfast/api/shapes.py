"""What goes in and out of the API, as msgspec reads and writes it; OpenAPI is derived from these."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from holdfast.runs.receivers import (
    TOKEN_LONGEST,
    UNBROKEN_MUST,
    UNBROKEN_PATTERN,
    URL_LONGEST,
    URL_MUST,
    URL_PATTERN,
)
from holdfast.views.names import NAMED, Tenant
from holdfast.views.problems import Problem
from holdfast.views.runs import Accepted

BATCH_MOST: Final = 1000
"""Runs of one batch; together they are as large as a body may be."""

# Beside each pattern, what a caller is told who does not match it.
_UNBROKEN: Final = {"must": UNBROKEN_MUST}
_NO_BLANKS: Final = {"must": "be printable characters without blanks"}

Text = Annotated[
    str, Meta(max_length=256, pattern="^[ -~]*$", extra={"must": "be one line of printable ASCII characters"})
]
Id = Annotated[str, Meta(min_length=1, max_length=256, pattern="^[!-~]+$", extra=_UNBROKEN)]
Scoped = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[!-~]+$", extra=_UNBROKEN)]
"""A name that may be put behind that of its tenant."""
Url = Annotated[str, Meta(max_length=URL_LONGEST, pattern=URL_PATTERN, extra={"must": URL_MUST})]
ResidentId = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^\S+$", extra=_NO_BLANKS)]
Resident = Annotated[
    str, Meta(min_length=1, max_length=200, pattern="^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$", extra=NAMED)
]
Label = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=63,
        pattern="^[A-Za-z0-9][A-Za-z0-9._=/-]*$",
        extra={"must": "be letters, digits and . _ = / -, beginning with a letter or a digit"},
    ),
]
Labels = Annotated[tuple[Label, ...], Meta(max_length=100)]


class Push(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A receiver of A2A push notifications."""

    url: Url
    token: Annotated[str, Meta(max_length=TOKEN_LONGEST, pattern=UNBROKEN_PATTERN, extra=_UNBROKEN)] = ""


class ExecuteRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Submit a run (START), or answer one that waits for input (RESUME, with its correlation_id)."""

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


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to a run that waits for one."""

    value: Any = None


class ReasonRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why something is done; others see it."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class NeedsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a resident asks of its host."""

    cpu: Annotated[float, Meta(ge=0, le=100_000, description="Cores.")] = 0.0
    memory_mb: Annotated[float, Meta(ge=0, le=100_000_000)] = 0.0
    near: Annotated[Labels, Meta(description="Labels that its host must have.")] = ()
    apart: Annotated[Labels, Meta(description="Labels of residents that its host must not hold yet.")] = ()
    labels: Annotated[Labels, Meta(description="Its own labels.")] = ()


class ResidentRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to start a resident."""

    id: Annotated[ResidentId, Meta(description="Its id; the same one again is the same resident.")]
    resident: Annotated[Resident, Meta(description="Its name in the app of the hosts.")]
    input: Annotated[Any, Meta(description="What its class is made with; null makes it without.")] = None
    needs: NeedsRequest = NeedsRequest()
    tenant: Annotated[Tenant | None, Meta(description="Forced to the key's own, if the key has one.")] = None


class MessageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message for a resident."""

    message: Annotated[Any, Meta(description="What its receive() is given.")] = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    metadata: dict[str, Any] | None = None


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a resident should go; without a host, to whichever is best."""

    host: Annotated[str, Meta(max_length=200, pattern="^[!-~]*$", extra=_NO_BLANKS)] = ""


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
