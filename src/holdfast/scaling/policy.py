"""From depth to workers: pure functions, the same for KEDA, the local autoscaler and the simulator.

::

    demand = undelivered x weight(oldest) + in flight + due        wanted = demand / slots, within min and max

The weight never raises the demand above the slots of the workers that the runs need, as each run then has
a slot. It is for Kubernetes' HPA, which ignores a demand within 10 % of the present number.
Work in flight counts, so the demand is 0 only when no work is left, and no busy worker is scaled to zero.
It is never weighted, since more workers do not end it sooner. Waiting runs of a paused queue can't start, so
only its work in flight counts.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.config import QueueSettings
    from holdfast.config.scaling import ScalingSettings
    from holdfast.runs.queue import Depth

_ROUNDING = 1e-9


def weight(oldest_seconds: float, scaling: ScalingSettings) -> float:
    """Return the weight of a waiting run: 1 up to the target wait, then rising to the cap at twice of it."""
    late = oldest_seconds / scaling.target_wait_seconds - 1
    share = min(max(late, 0.0), 1.0)
    return 1 + (scaling.age_weight - 1) * share * share * (3 - 2 * share)


def demand(depth: Depth, scaling: ScalingSettings, slots: int) -> float:
    """Return how many runs need a slot; waiting runs are weighted by their age."""
    return total_demand([(depth, scaling)], slots)


def total_demand(queues: Iterable[tuple[Depth, ScalingSettings]], slots: int) -> float:
    """Return how many runs of these queues need a slot, at most the slots of the workers they can fill."""
    runs, wanting = 0, 0.0
    for depth, scaling in queues:
        waiting, due = (0, 0) if depth.paused else (depth.undelivered, depth.due)
        runs += waiting + depth.pending + due
        wanting += waiting * weight(depth.oldest_seconds, scaling) + depth.pending + due
    return min(wanting, math.ceil(runs / slots) * slots)  # guard: demand-within-runs


def slots_of(queue: QueueSettings) -> int:
    """Return how many runs one worker of a queue performs at once."""
    return min(queue.slots, queue.max_pending)


def workers_wanted(demand: float, slots: int, scaling: ScalingSettings) -> int:
    """Return how many workers this demand needs."""
    if not scaling.enabled:
        return max(scaling.min_workers, 1)
    exact = math.ceil(demand / slots - _ROUNDING)
    return min(max(exact, scaling.min_workers), scaling.max_workers)


class Damper:
    """Follows a demand up at once, and down only to its maximum over ``down_seconds``."""

    __slots__ = ("_down_seconds", "_peaks")

    def __init__(self, down_seconds: float) -> None:
        self._down_seconds = down_seconds
        # Pairs of time and demand, falling: each demand is less than the one before.
        self._peaks: deque[tuple[float, int]] = deque()

    def follow(self, now: float, wanted: int) -> int:
        """Return the damped demand; ``now`` never decreases."""
        while self._peaks and self._peaks[-1][1] <= wanted:
            self._peaks.pop()
        self._peaks.append((now, wanted))
        while self._peaks[0][0] < now - self._down_seconds:
            self._peaks.popleft()
        return self._peaks[0][1]
