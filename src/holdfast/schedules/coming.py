"""The turns that come: what a schedule will do if nobody changes it and every run takes no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schedules.cadence import fire_times
from holdfast.schedules.entries import State

if TYPE_CHECKING:
    from holdfast.schedules.entries import Entry
    from holdfast.schedules.schedule import Schedule


def coming(entry: Entry, schedule: Schedule, now: float, count: int) -> list[float]:
    """Return the next ``count`` turns; those of a paused schedule are what it would have."""
    if entry.state is State.DONE:
        return []
    if schedule.max_runs:
        count = min(count, max(schedule.max_runs - entry.runs, 0))
    first = entry.next_at
    if first is None:
        return fire_times(schedule, now, count)
    return [first, *fire_times(schedule, max(first, now), count - 1)][:count]
