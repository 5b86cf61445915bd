"""How many workers a queue is worth: ``queue.scaling``, and ``queues.<name>.scaling`` of a worker type."""

from __future__ import annotations

from typing import Annotated, Final

from holdfast.config.durations import DAY
from holdfast.config.section import Section, about

HPA_SECONDS: Final = 15.0
"""How often Kubernetes' HPA decides: fewer workers may leave so much before ``down_seconds`` are over."""
ANNOUNCE_SECONDS: Final = 1.0
"""How soon an idle worker that takes a run writes that into its record."""


def latest_lowering(down_seconds: float, late_seconds: float) -> float:
    """How long an idle pod's cost may stay high at most, to be lowered before the scale-in.

    The janitor hears of an idle worker late: its record may be a heartbeat old when the janitor looks.
    """
    return max(down_seconds - HPA_SECONDS - late_seconds, 0.0)


def lowering(down_seconds: float, late_seconds: float) -> float:
    """How long it stays high by default: half of ``down_seconds`` is left for writing it down."""
    early = max(down_seconds / 2 - HPA_SECONDS, 0.0)
    return min(early, latest_lowering(down_seconds, late_seconds))


class ScalingSettings(Section, frozen=True, kw_only=True):
    """What turns a queue's depth into a number of workers."""

    enabled: Annotated[
        bool,
        about("Whether autoscalers decide about this type; else it has `min_workers`, and at least one."),
    ] = True
    min_workers: Annotated[int, about("Workers that stay when there is no work.", ge=0, le=100_000)] = 0
    max_workers: Annotated[int, about("Workers that there are at most.", ge=1, le=100_000)] = 10
    target_wait_seconds: Annotated[
        float, about("How old the oldest waiting run may get before it weighs more.", ge=0.1, le=DAY)
    ] = 30.0
    age_weight: Annotated[
        float,
        about(
            "How much waiting runs weigh at most, at twice the target wait, within the last worker that they "
            "need; 1 is always the same.",
            ge=1,
            le=100,
        ),
    ] = 2.0
    down_seconds: Annotated[
        float, about("How long fewer workers must have been enough before some leave.", ge=0, le=DAY)
    ] = 60.0
