"""How many workers a queue needs: ``queue.scaling``, and ``queues.<name>.scaling`` of a worker type."""

from __future__ import annotations

from typing import Annotated, Final

from holdfast.config.durations import DAY
from holdfast.config.section import Section, about

HPA_SECONDS: Final = 15.0
"""The interval of Kubernetes' HPA: it may end workers that much before ``down_seconds`` are over."""
ANNOUNCE_SECONDS: Final = 1.0
"""How soon an idle worker that claims a run updates its record."""


def latest_lowering(down_seconds: float, late_seconds: float) -> float:
    """Return how long an idle pod's cost may stay high at most, to be lowered before the scale-in.

    The janitor detects an idle worker late: its record may be a heartbeat old when the janitor reads it.
    """
    return max(down_seconds - HPA_SECONDS - late_seconds, 0.0)


def lowering(down_seconds: float, late_seconds: float) -> float:
    """Return how long it stays high by default: half of ``down_seconds`` is left to lower it."""
    early = max(down_seconds / 2 - HPA_SECONDS, 0.0)
    return min(early, latest_lowering(down_seconds, late_seconds))


class ScalingSettings(Section, frozen=True, kw_only=True):
    """The number of workers by a queue's depth."""

    enabled: Annotated[
        bool,
        about("Whether autoscalers scale this worker type; else it has `min_workers`, and at least one."),
    ] = True
    min_workers: Annotated[int, about("The least number of workers.", ge=0, le=100_000)] = 0
    max_workers: Annotated[int, about("The largest number of workers.", ge=1, le=100_000)] = 10
    target_wait_seconds: Annotated[
        float, about("The age of the oldest waiting run from which runs weigh more.", ge=0.1, le=DAY)
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
        float, about("How long fewer workers must have been enough before some are stopped.", ge=0, le=DAY)
    ] = 60.0
