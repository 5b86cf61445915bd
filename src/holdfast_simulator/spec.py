"""What a ScaledObject says about scaling: the names, limits and defaults of its ``spec``. Values only."""

from __future__ import annotations

import enum
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=0, le=100_000)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=31_536_000)]
Interval: TypeAlias = Annotated[float, Meta(ge=1, le=86_400)]


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the spec, with the names that a manifest has."""


class Metric(enum.StrEnum):
    """What a trigger counts."""

    DEPTH = "depth"
    """Our weighted demand: waiting runs by their age, and those in flight."""
    STREAM_LENGTH = "streamLength"
    """XLEN: waiting and in flight, since what is acked is deleted."""
    PENDING = "pendingEntriesCount"
    """XPENDING: in flight only, so never more than the slots that there are."""
    LAG = "lagCount"
    """The group's lag: waiting only, and NULL once entries are deleted out of order."""


class Lane(enum.StrEnum):
    """One of a queue's streams, in the order they are served."""

    RETURNED = "returned"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Trigger(_Spec, frozen=True, kw_only=True):
    """One number that scales: how much of it a replica is worth, and above how much there is work at all."""

    metric: Metric = Metric.DEPTH
    lane: Lane | None = None
    """The one stream that it looks at; the depth is always that of all four."""
    target: Annotated[float, Meta(gt=0)]
    activation: Annotated[float, Meta(ge=0)] = 0.0
    push: bool = False
    """Whether the arrival that makes it active wakes from zero at once (external-push), not only a poll."""
    null_lag: Literal[0, -1] = 0
    """What KEDA makes of a lag that is NULL: 0, or -1 from 2.18 to 2.20.1."""


class Select(enum.StrEnum):
    """Which of several limits counts: the one that allows most, the one that allows least, or no change."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class Limit(_Spec, frozen=True, kw_only=True):
    """How much may change within a period."""

    type: Literal["Pods", "Percent"]
    value: Annotated[int, Meta(gt=0)]
    period_seconds: Annotated[int, Meta(gt=0, le=1800)]


class Direction(_Spec, frozen=True, kw_only=True):
    """How fast to scale in one direction; the defaults are those of Kubernetes."""

    stabilization_window_seconds: Annotated[int, Meta(ge=0, le=3600)] | None = None
    select_policy: Select = Select.MAX
    policies: tuple[Limit, ...] | None = None
    tolerance: Annotated[float, Meta(ge=0, le=10)] | None = None


class Behavior(_Spec, frozen=True, kw_only=True):
    """``advanced.horizontalPodAutoscalerConfig.behavior``."""

    scale_up: Direction = Direction()
    scale_down: Direction = Direction()


class FallbackBehavior(enum.StrEnum):
    """Which number counts while a metric fails."""

    STATIC = "static"
    CURRENT = "currentReplicas"
    IF_HIGHER = "currentReplicasIfHigher"
    IF_LOWER = "currentReplicasIfLower"


class Fallback(_Spec, frozen=True, kw_only=True):
    """How many there are while a metric has failed more often than ``failure_threshold``."""

    failure_threshold: Count = 3
    replicas: Count
    behavior: FallbackBehavior = FallbackBehavior.STATIC


class KedaSpec(_Spec, frozen=True, kw_only=True):
    """A ScaledObject, as far as it decides about replicas; the defaults are KEDA's."""

    min_replica_count: Count = 0
    max_replica_count: Annotated[int, Meta(ge=1, le=100_000)] = 100
    idle_replica_count: Count | None = None
    polling_interval: Interval = 30.0
    cooldown_period: Seconds = 300.0
    triggers: Annotated[tuple[Trigger, ...], Meta(min_length=1)]
    fallback: Fallback | None = None
    behavior: Behavior | None = None

    def __post_init__(self) -> None:
        if self.min_replica_count > self.max_replica_count:
            raise ValueError(
                f"minReplicaCount {self.min_replica_count} is more than maxReplicaCount "
                f"{self.max_replica_count}"
            )
        idle = self.idle_replica_count
        if idle is not None and idle >= self.min_replica_count:
            raise ValueError(
                f"idleReplicaCount {idle} must be less than minReplicaCount {self.min_replica_count}"
            )


HPA_PERIOD_SECONDS: Final = 15.0
TOLERANCE: Final = 0.1
UP_LIMITS: Final = (
    Limit(type="Percent", value=100, period_seconds=15),
    Limit(type="Pods", value=4, period_seconds=15),
)
DOWN_LIMITS: Final = (Limit(type="Percent", value=100, period_seconds=15),)
DOWN_WINDOW_SECONDS: Final = 300
