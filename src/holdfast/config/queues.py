"""The settings of leases and queues: ``lease``, ``queue`` and ``queues``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from holdfast.config.durations import DAY, YEAR
from holdfast.config.patterns import NAME_ALLOWED, OPTIONAL_NAME
from holdfast.config.scaling import ScalingSettings
from holdfast.config.section import Section, about

if TYPE_CHECKING:
    from collections.abc import Collection


class LeaseSettings(Section, frozen=True, kw_only=True):
    """How soon the work of a dead owner is reclaimed."""

    ttl_seconds: Annotated[
        float,
        about(
            "How long a lease lasts without a renewal; then its work is reclaimed.",
            "HOLDFAST_LEASE_TTL_SECONDS",
            "RETRY_IDLE_MS",
            ge=1,
            le=DAY,
        ),
    ] = 30.0

    @property
    def renew_every_seconds(self) -> float:
        """How often a holder renews: a quarter of the ttl."""
        return self.ttl_seconds / 4

    @property
    def trust_seconds(self) -> float:
        """How long a holder trusts its last renewal: it stops before another owner can start."""
        return self.ttl_seconds * 3 / 4


class BackoffSettings(Section, frozen=True, kw_only=True):
    """How long a failed run waits before its next attempt."""

    base_seconds: Annotated[float, about("Wait before the first delayed retry.", ge=0, le=YEAR)] = 1.0
    multiplier: Annotated[float, about("Factor of each further wait.", ge=1, le=100)] = 2.0
    cap_seconds: Annotated[float, about("The longest wait.", ge=0, le=YEAR)] = 300.0
    jitter: Annotated[
        float, about("Random share of a wait, so that retries do not come at the same time.", ge=0, le=1)
    ] = 0.2
    forbidden_seconds: Annotated[
        float, about("Wait after a missing permission (401, 403).", ge=0, le=YEAR)
    ] = 600.0
    immediate_retries: Annotated[
        int, about("Retries without any wait after a transient failure.", ge=0, le=1000)
    ] = 1


MAILBOX: Final = "mailbox:"
"""The prefix of the names of residents' mailboxes."""
MOST_PARTITIONS: Final = 64
ONLY_AGENT: Final = "*"
"""A value of ``default_agent``: the agent of an app that has exactly one."""
_TAG = re.compile(r"\{[^}]+(?=\})")


def partition_name(name: str, partition: int) -> str:
    """Return the name of a queue's partition: the first has the queue's name, each other has its own slot."""
    if not partition:
        return name
    tag = _TAG.search(name)
    end = tag.end() if tag else len(name)
    return f"{name[:end]}.p{partition}{name[end:]}"


class QueueSettings(Section, frozen=True, kw_only=True):
    """One queue: its names, limits and timeouts."""

    name: str = "agent-queue"
    partition: int = 0
    """The partition of these settings; keys of the whole queue belong to the first."""
    group: Annotated[
        str,
        about(
            "Consumer group of the queue's streams; under `queue` it is the default queue's only.",
            "CLUSTER_CONSUMER_GROUP",
            pattern=OPTIONAL_NAME,
            allowed=NAME_ALLOWED,
            default="the queue's name + -group",
        ),
    ] = ""
    partitions: Annotated[
        int,
        about(
            "Partitions of the queue, each in its own cluster slot.",
            ge=1,
            le=MOST_PARTITIONS,
        ),
    ] = 1
    slots: Annotated[
        int,
        about("Runs that one worker performs at once.", "WORKER_POD_MESSAGES_BATCH_SIZE", ge=1, le=100_000),
    ] = 3
    timeout_seconds: Annotated[
        float, about("How long one attempt of a run may take.", "MESSAGE_LOCK_DURATION", ge=0.01, le=YEAR)
    ] = 1800.0
    stop_grace_seconds: Annotated[
        float,
        about(
            "How long an agent may ignore its deadline or a cancel; then its run ends without it.",
            ge=0.01,
            le=3600,
        ),
    ] = 10.0
    max_attempts: Annotated[
        int, about("Attempts before a run becomes a dead letter.", "MAX_ATTEMPTS", ge=1, le=100_000)
    ] = 5
    retry_programming_errors: Annotated[
        bool,
        about(
            "Whether a first attempt that ends with a TypeError, AttributeError, KeyError, AssertionError, "
            "NameError or ImportError is followed by another."
        ),
    ] = False
    max_pending: Annotated[
        int,
        about(
            "Runs that one worker may hold unfinished; fewer than its slots caps them.",
            "MAX_PENDING_PER_WORKER",
            ge=1,
            le=1_000_000,
        ),
    ] = 256
    max_depth: Annotated[
        int,
        about(
            "Runs that may wait; more are refused, never trimmed.", "STREAM_MAXLEN", ge=1, le=1_000_000_000
        ),
    ] = 1_000_000
    max_payload_bytes: Annotated[
        int, about("Largest message accepted.", "HOLDFAST_MAX_PAYLOAD_BYTES", ge=1, le=512 * 1024 * 1024)
    ] = 1_048_576
    delete_after_ack: Annotated[
        bool,
        about("Whether a finished run's stream entry is deleted at once.", "REDIS_STREAM_DELETE_AFTER_ACK"),
    ] = True
    block_ms: Annotated[
        int, about("How long an idle worker waits in one blocking read.", ge=1, le=3_600_000)
    ] = 5000
    retention_seconds: Annotated[
        float, about("How long finished runs and their events are kept.", ge=1, le=10 * YEAR)
    ] = 86400.0
    idempotency_ttl_seconds: Annotated[
        float,
        about(
            "How long an idempotency key returns its run, at most until Redis removes the run.",
            ge=1,
            le=10 * YEAR,
        ),
    ] = 86400.0
    deadletter: Annotated[
        str,
        about(
            "Stream of the runs that were given up; under `queue` it is the default queue's only.",
            pattern=OPTIONAL_NAME,
            allowed=f"empty, or {NAME_ALLOWED}",
            default="{the queue's name}:deadletter; with `CLUSTER_STREAM_KEY`, on one server, "
            "the queue's name + .deadletter",
        ),
    ] = ""
    tenant_concurrency: Annotated[
        int, about("Runs of one tenant that run at once; 0 is no limit.", ge=0, le=1_000_000)
    ] = 0
    key_concurrency: Annotated[
        int, about("Runs of one concurrency key that run at once; 0 is no limit.", ge=0, le=1_000_000)
    ] = 1
    default_agent: Annotated[
        str,
        about(
            "Agent for entries of other producers that name none; `*` is the only agent of an app, empty "
            "refuses them. The default is `*` if `CLUSTER_STREAM_KEY` names the queue."
        ),
    ] = ""
    backoff: BackoffSettings = BackoffSettings()
    scaling: ScalingSettings = ScalingSettings()

    def __post_init__(self) -> None:
        if not self.group:
            msgspec.structs.force_setattr(self, "group", f"{self.name}-group")

    @property
    def private(self) -> bool:
        """Whether it is a resident's mailbox, which only the resident reads and maintains."""
        return self.name.startswith(MAILBOX)

    @property
    def stream(self) -> str:
        """The key of the normal lane, without the prefix."""
        return partition_name(self.name, self.partition)

    def default_among(self, agents: Collection[str]) -> str:
        """Return the agent of entries that name none; empty if an app has several agents."""
        if self.default_agent != ONLY_AGENT:
            return self.default_agent
        return next(iter(agents)) if len(agents) == 1 else ""

    def of_partition(self, partition: int) -> QueueSettings:
        """Return the settings of one partition; only the first keeps the name of ``deadletter``."""
        deadletter = "" if partition else self.deadletter
        return msgspec.structs.replace(self, partition=partition, deadletter=deadletter)

    def renamed(self, name: str) -> QueueSettings:
        """Return these settings for another queue, with its own group and dead letters."""
        return msgspec.structs.replace(self, name=name, group="", deadletter="")
