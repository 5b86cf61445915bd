"""What a pod's deletion cost shows: what its worker holds, as late as the janitor writes it down.

A worker that has just begun a run still looks idle, and one that has just ended its last still looks busy. A
scale-in within that time chooses the wrong one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.config.scaling import ANNOUNCE_SECONDS
from holdfast.scaling.deletioncost import cost
from holdfast.scaling.policy import Damper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.config import Settings


class Lag(msgspec.Struct, frozen=True):
    """How many seconds after a worker has begun work its pod shows it, and how many after it has less."""

    raised: float
    lowered: float


NO_LAG = Lag(0.0, 0.0)


def lag_of(settings: Settings) -> Lag:
    """The longest that it takes with these settings: the worker's record, the janitor's look, its delay."""
    janitor, heartbeat = settings.janitor, settings.worker.heartbeat_seconds
    return Lag(
        ANNOUNCE_SECONDS + janitor.deletion_cost_seconds + janitor.deletion_cost_raise_seconds,
        heartbeat + janitor.deletion_cost_seconds + janitor.deletion_cost_lower_seconds,
    )


class Mark:
    """The cost that one pod shows."""

    __slots__ = ("_most", "_raised")

    def __init__(self, lag: Lag) -> None:
        self._raised = lag.raised
        self._most = Damper(lag.lowered)

    def cost(self, now: float, begun: Iterable[float]) -> int:
        """What it shows now, if its worker holds runs that began then; asked before each change of those."""
        held = [now - self._raised - began for began in begun if began <= now - self._raised]
        return self._most.follow(now, cost(len(held), sum(held)))
