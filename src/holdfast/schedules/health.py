"""How a scheduler is: HEALTHY or DEGRADED by a sample, and watchdogs that compare its last cycles. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PATIENCE: Final = 3
"""Cycles in a row before a watchdog reports a problem."""


class ScheduleHealth(StrEnum):
    """Whether schedules run when they are due."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The figures of one scheduler and its sorted sets at one time."""

    registered: int = 0
    running: int = 0
    scripts: int = 0
    ready: int = 0
    """Schedules of this scheduler that are due and wait."""
    elsewhere: int = 0
    """Schedules that are due and not run here."""
    oldest_overdue_seconds: float = 0.0
    shortest_interval_seconds: float | None = None
    """The shortest period of the enabled schedules; None if there are none."""
    capacity_per_cycle: int = 0
    permits: int | None = None
    """How many run at once; None is no limit."""
    free: int = 0
    zombies_cleaned: int = 0
    orphans_cleaned: int = 0
    queue_depth: int = 0
    overlapping: int = 0
    """Members that a sample found in both sets."""
    silent_seconds: float | None = None
    """How long Redis has not replied; None while it does. All other fields are then the last known ones."""
    refused: str = ""
    """The error of Redis; all other fields are then the last known ones, too."""


def problems(sample: Sample) -> tuple[str, ...]:
    """Return what is wrong, in words that name what to check."""
    found: list[str] = []
    if sample.silent_seconds is not None:  # guard: silent-redis-degrades
        found.append(f"Redis has not answered for {sample.silent_seconds:.1f} s")
    if sample.refused:
        found.append(f"Redis refuses to count schedules, is a key of them damaged? ({sample.refused})")
    shortest, oldest = sample.shortest_interval_seconds, sample.oldest_overdue_seconds
    if shortest is not None and oldest > shortest:
        found.append(
            f"the oldest schedule is overdue for {oldest:.1f} s, the shortest interval is {shortest:g} s"
        )
    if sample.overlapping:
        found.append(f"{sample.overlapping} schedules are waiting and working at once")
    return tuple(found)


def health(sample: Sample) -> ScheduleHealth:
    """Return the state that a sample shows."""
    return ScheduleHealth.DEGRADED if problems(sample) else ScheduleHealth.HEALTHY


def summary(sample: Sample) -> str:
    """Return the summary line of the scheduler, with the fields that its document prescribes."""
    return (
        f"Scheduler health | health={health(sample)} | "
        f"[agents registered={sample.registered} active=futures={sample.running} scripts={sample.scripts}] "
        f"[backlog ready={sample.ready} oldest_overdue={sample.oldest_overdue_seconds:.0f}s "
        f"capacity_per_cycle={sample.capacity_per_cycle}] "
        f"[permits {_permits(sample)}] "
        f"[cleanup zombies_cleaned={sample.zombies_cleaned} orphans_cleaned={sample.orphans_cleaned}] "
        f"queue_depth={sample.queue_depth}"
    )


def _permits(sample: Sample) -> str:
    if sample.permits is None:
        return "unbounded"
    share = 100.0 * sample.free / sample.permits if sample.permits else 0.0
    return f"{sample.free}/{sample.permits} ({share:.1f}%)"


class Signal(StrEnum):
    """The problem that a watchdog reports.

    ::

        quiet --PATIENCE suspicious cycles in a row--> reported
        reported --one cycle that is not suspicious--> quiet
    """

    PERMIT_LEAK_SUSPECT = "permit_leak_suspect"
    CAPACITY_SKEW = "capacity_skew"
    ZERO_PROGRESS = "zero_progress"
    REDIS_STALL = "redis_stall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The figures at the end of one cycle of the scheduler's loop."""

    permits: int | None = None
    """How many run at once; None is no limit."""
    free: int = 0
    running: int = 0
    backlog: int = 0
    """Schedules for this scheduler that are due and that this cycle has not acquired."""
    acquired: int = 0
    breaker_closed: bool = True


@dataclass(frozen=True, slots=True)
class WatchdogReport:
    """The problems now, and those that began or ended with this cycle."""

    now: frozenset[Signal] = frozenset()
    began: frozenset[Signal] = frozenset()
    ended: frozenset[Signal] = frozenset()


class Watchdogs:
    """Counts suspicious cycles in a row; without a clock."""

    def __init__(self) -> None:
        self._in_a_row: dict[Signal, int] = dict.fromkeys(Signal, 0)
        self._reported: frozenset[Signal] = frozenset()

    def look(self, cycle: Cycle) -> WatchdogReport:
        """Take one cycle into account and return the problems."""
        for signal, suspicious in _SUSPICIOUS.items():
            self._in_a_row[signal] = self._in_a_row[signal] + 1 if suspicious(cycle) else 0
        before, now = self._reported, frozenset(s for s, count in self._in_a_row.items() if count >= PATIENCE)
        self._reported = now
        return WatchdogReport(now, now - before, before - now)


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
    # Without a free permit nothing can be acquired: that is no stall.
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
