"""What the HorizontalPodAutoscaler decides every 15 seconds. It has a memory, but no clock.

::

    proposal = ceil(total / target), or what there is if total / (target x replicas) is within 10 % of 1
    several metrics: the greatest      then: stabilization windows, limits per period, min and max
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from holdfast_simulator.spec import (
    DOWN_LIMITS,
    DOWN_WINDOW_SECONDS,
    TOLERANCE,
    UP_LIMITS,
    Direction,
    Select,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from holdfast_simulator.spec import Behavior, Limit

    _Pick: TypeAlias = Callable[[list[int]], int]

_LONGEST_PERIOD_SECONDS: Final = 1800
_DEFAULT: Final = Direction()
_LEAST_DOUBLED: Final = 4


def proposal(
    total: float,
    target: float,
    replicas: int,
    *,
    up: float = TOLERANCE,
    down: float = TOLERANCE,
    most: int = 100_000,
) -> int:
    """How many replicas one metric asks for, before any window or limit; counted in thousandths."""
    whole, each = int(total * 1000), int(target * 1000)
    if whole < 0:  # KEDA's -1 for a lag of NULL: since Kubernetes 1.34 that is taken as "all you have"
        return most
    ratio = whole / (each * replicas)
    if 1 - down <= ratio <= 1 + up:
        return replicas
    return -(-whole // each)


def greatest(
    values: Sequence[float | None],
    targets: Sequence[float],
    replicas: int,
    *,
    up: float = TOLERANCE,
    down: float = TOLERANCE,
    most: int = 100_000,
) -> int | None:
    """The greatest proposal; None if a metric failed and the others can't say that more are needed."""
    known = [
        proposal(value, target, replicas, up=up, down=down, most=most)
        for value, target in zip(values, targets, strict=True)
        if value is not None
    ]
    wanted = max(known, default=None)
    if len(known) < len(values) and (wanted is None or wanted < replicas):
        return None
    return wanted


class Hpa:
    """One autoscaler: what it recommended and what it changed lately."""

    __slots__ = ("_behavior", "_down", "_events", "_least", "_most", "_recommended", "_targets", "_up")

    def __init__(
        self, targets: Sequence[float], *, least: int, most: int, behavior: Behavior | None = None
    ) -> None:
        self._targets = tuple(targets)
        self._least, self._most = least, most
        self._behavior = behavior
        self._up = behavior.scale_up if behavior else _DEFAULT
        self._down = behavior.scale_down if behavior else _DEFAULT
        self._recommended: deque[tuple[float, int]] = deque()
        self._events: deque[tuple[float, int]] = deque()

    def sync(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Say how many replicas there should be; with none there is nothing to divide by, so it stays out."""
        if replicas == 0:
            return 0
        if not self._recommended:
            self._recommended.append((now, replicas))
        if not self._least <= replicas <= self._most:
            wanted = min(max(replicas, self._least), self._most)
        else:
            proposed = greatest(
                values,
                self._targets,
                replicas,
                up=self._tolerance(self._up),
                down=self._tolerance(self._down),
            )
            if proposed is None:
                return replicas
            wanted = self._limited(now, self._stable(now, min(proposed, self._most), replicas), replicas)
        if wanted != replicas:
            self._events.append((now, wanted - replicas))
        return wanted

    @staticmethod
    def _tolerance(way: Direction) -> float:
        return TOLERANCE if way.tolerance is None else way.tolerance

    def _stable(self, now: float, wanted: int, replicas: int) -> int:
        """Go up only to the least, down only to the most that was recommended in the windows."""
        up_window = self._up.stabilization_window_seconds or 0
        down_window = self._down.stabilization_window_seconds
        if down_window is None:
            down_window = DOWN_WINDOW_SECONDS
        while self._recommended and self._recommended[0][0] <= now - max(up_window, down_window):
            self._recommended.popleft()
        ceiling = min((n for at, n in self._recommended if at > now - up_window), default=wanted)
        floor = max((n for at, n in self._recommended if at > now - down_window), default=wanted)
        self._recommended.append((now, wanted))
        # Going up counts as much as the window allows; then nothing above the floor of going down is kept.
        return min(max(replicas, min(ceiling, wanted)), max(floor, wanted))

    def _limited(self, now: float, wanted: int, replicas: int) -> int:
        while self._events and self._events[0][0] <= now - _LONGEST_PERIOD_SECONDS:
            self._events.popleft()
        if wanted > replicas:
            return min(wanted, self._most, max(self._highest(now, replicas), replicas))
        if wanted < replicas:
            return max(wanted, self._least, min(self._lowest(now, replicas), replicas))
        return wanted

    def _highest(self, now: float, replicas: int) -> int:
        if self._behavior is None:  # the old rule of an HPA without any behaviour: from 1 to 4, not to 5
            return max(2 * replicas, _LEAST_DOUBLED)
        if self._up.select_policy is Select.DISABLED:
            return replicas
        limits = UP_LIMITS if self._up.policies is None else self._up.policies
        allowed = [
            began + limit.value if limit.type == "Pods" else math.ceil(began * (100 + limit.value) / 100)
            for limit, began in self._began(now, replicas, limits)
        ]
        return _selected(allowed, self._up.select_policy, best=max, least=min, otherwise=replicas)

    def _lowest(self, now: float, replicas: int) -> int:
        if self._down.select_policy is Select.DISABLED:
            return replicas
        limits = DOWN_LIMITS if self._down.policies is None else self._down.policies
        allowed = [
            began - limit.value if limit.type == "Pods" else int(began * (100 - limit.value) / 100)
            for limit, began in self._began(now, replicas, limits)
        ]
        return _selected(allowed, self._down.select_policy, best=min, least=max, otherwise=replicas)

    def _began(self, now: float, replicas: int, limits: Iterable[Limit]) -> list[tuple[Limit, int]]:
        """With how many replicas the period of each limit began."""
        return [
            (limit, replicas - sum(n for at, n in self._events if at > now - limit.period_seconds))
            for limit in limits
        ]


def _selected(allowed: list[int], select: Select, *, best: _Pick, least: _Pick, otherwise: int) -> int:
    if not allowed:
        return otherwise
    return (least if select is Select.MIN else best)(allowed)
