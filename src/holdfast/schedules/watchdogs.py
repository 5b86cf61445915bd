"""Four watchdogs that look at each cycle of a scheduler and bark at what stays wrong for three in a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATIENCE: Final = 3
"""Cycles in a row before a watchdog reports a problem."""


class Signal(StrEnum):
    """What a watchdog suspects.

    ::

        quiet --PATIENCE suspicious cycles in a row--> barking
        barking --one cycle that is not--> quiet
    """

    PERMIT_LEAK_SUSPECT = "permit_leak_suspect"
    CAPACITY_SKEW = "capacity_skew"
    ZERO_PROGRESS = "zero_progress"
    REDIS_STALL = "redis_stall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One turn of the scheduler's loop, as it was when the turn had ended."""

    permits: int | None = None
    """How many run at once; None is no limit."""
    free: int = 0
    running: int = 0
    backlog: int = 0
    """Schedules for this scheduler that are due and that this cycle has not acquired."""
    acquired: int = 0
    breaker_closed: bool = True


@dataclass(frozen=True, slots=True)
class Barking:
    """The problems now, and what has changed with this cycle."""

    now: frozenset[Signal] = frozenset()
    began: frozenset[Signal] = frozenset()
    ended: frozenset[Signal] = frozenset()


class Watchdogs:
    """Counts suspicious cycles; knows no clock and touches nothing."""

    def __init__(self) -> None:
        self._in_a_row: dict[Signal, int] = dict.fromkeys(Signal, 0)
        self._barking: frozenset[Signal] = frozenset()

    def look(self, cycle: Cycle) -> Barking:
        """Take one cycle into account and return the problems."""
        for signal, suspicious in _SUSPICIOUS.items():
            self._in_a_row[signal] = self._in_a_row[signal] + 1 if suspicious(cycle) else 0
        before, now = self._barking, frozenset(s for s, count in self._in_a_row.items() if count >= PATIENCE)
        self._barking = now
        return Barking(now, now - before, before - now)


def _leak(cycle: Cycle) -> bool:
    return (
        cycle.permits is not None
        and cycle.free < 0.01 * cycle.permits
        and not cycle.running
        and cycle.backlog > 0
    )


def _skew(cycle: Cycle) -> bool:
    return (
        cycle.permits is not None
        and cycle.free > 0.9 * cycle.permits
        and cycle.backlog > 0
        and cycle.acquired < 0.1 * cycle.free
    )


def _no_progress(cycle: Cycle) -> bool:
    # Without a free permit nothing can be acquired: a full house is no stall.
    has_room = cycle.permits is None or cycle.free > 0
    return has_room and cycle.backlog > 0 and not cycle.acquired and cycle.breaker_closed


def _stall(cycle: Cycle) -> bool:
    return not cycle.breaker_closed


_SUSPICIOUS: Final[Mapping[Signal, Callable[[Cycle], bool]]] = {
    Signal.PERMIT_LEAK_SUSPECT: _leak,
    Signal.CAPACITY_SKEW: _skew,
    Signal.ZERO_PROGRESS: _no_progress,
    Signal.REDIS_STALL: _stall,
}
