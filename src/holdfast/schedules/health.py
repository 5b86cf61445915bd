"""How a scheduler is, from what one look at it found: a state with its reasons, and one line for the log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """Whether schedules are run when they are due."""

    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one look at a scheduler and its sets found."""

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
    """How long Redis has not answered; None while it does. All else is then what was known last."""
    refused: str = ""
    """The error that Redis has answered with; all else is then what was known last, too."""


def problems(sample: Sample) -> tuple[str, ...]:
    """Return what is wrong, in words that say what to look at."""
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


def health(sample: Sample) -> Health:
    """Return the state that a sample shows."""
    return Health.DEGRADED if problems(sample) else Health.HEALTHY


def summary(sample: Sample) -> str:
    """Return the line that says how the scheduler is, in the document's words."""
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
