"""From depth to workers: pure functions, the same for KEDA, the local autoscaler and the simulator.

::

    demand = undelivered x weight(oldest) + in flight + due        wanted = demand / slots, within min and max

The weight fills up the last worker that the runs need and asks for none beyond it: each run has a slot then.
It is for Kubernetes' HPA, which lets a demand within 10 % of what there is wait.
Work in flight counts, so the demand is 0 only when nothing is left, and no busy worker is scaled to zero;
it is never weighted, since more workers don't end it sooner. Nobody may start what waits in a paused queue,
so there only what is in flight counts.
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
    """How much a waiting run counts: 1 up to the target wait, then smoothly up to the cap at twice of it."""
    late = oldest_seconds / scaling.target_wait_seconds - 1
    share = min(max(late, 0.0), 1.0)
    return 1 + (scaling.age_weight - 1) * share * share * (3 - 2 * share)


def demand(depth: Depth, scaling: ScalingSettings, slots: int) -> float:
    """How many runs want a slot, those that wait weighted by their age."""
    return total_demand([(depth, scaling)], slots)


def total_demand(queues: Iterable[tuple[Depth, ScalingSettings]], slots: int) -> float:
    """How many runs of all these queues want a slot; never more than the workers have that they can fill."""
    runs, wanting = 0, 0.0
    for depth, scaling in queues:
        waiting, due = (0, 0) if depth.paused else (depth.undelivered, depth.due)
        runs += waiting + depth.pending + due
        wanting += waiting * weight(depth.oldest_seconds, scaling) + depth.pending + due
    return min(wanting, math.ceil(runs / slots) * slots)  # guard: demand-within-runs


def slots_of(queue: QueueSettings) -> int:
    """How many runs one worker of a queue does at once."""
    return min(queue.slots, queue.max_pending)


def workers_wanted(demand: float, slots: int, scaling: ScalingSettings) -> int:
    """How many workers this much work is worth."""
    if not scaling.enabled:
        return max(scaling.min_workers, 1)
    exact = math.ceil(demand / slots - _ROUNDING)
    return min(max(exact, scaling.min_workers), scaling.max_workers)


class Damper:
    """Follows what is wanted up at once, and down only to what was wanted at most for a while."""

    __slots__ = ("_down_seconds", "_peaks")

    def __init__(self, down_seconds: float) -> None:
        self._down_seconds = down_seconds
        # Falling: (when, how many), each fewer than the one before, the greatest first.
        self._peaks: deque[tuple[float, int]] = deque()

    def follow(self, now: float, wanted: int) -> int:
        """Say how many there should be; ``now`` never goes back."""
        while self._peaks and self._peaks[-1][1] <= wanted:
            self._peaks.pop()
        self._peaks.append((now, wanted))
        while self._peaks[0][0] < now - self._down_seconds:
            self._peaks.popleft()
        return self._peaks[0][1]
