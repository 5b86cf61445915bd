"""When a schedule is due: the times at which its trigger fires, between its start and its end. Pure.

Times are epoch seconds of Redis. An interval counts from the time that is given, as if that had been a turn.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from holdfast.errors import InputError
from holdfast.schedules.trigger import Cron, Every, Once
from holdfast.schedules.wallclock import next_fire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.schedules.schedule import Schedule

MOST_COUNTED: Final = 1000
"""Missed turns of a cron expression are counted up to here: more are as bad."""
_INSTANT: Final = 0.001
_SLACK: Final = 1e-6


def first_run(schedule: Schedule, now: float, jitter: float = 0.0) -> float | None:
    """Return when a new schedule is due first; ``jitter`` seconds later if it is an interval."""
    trigger = schedule.trigger
    if isinstance(trigger, Every):
        at = max(now, schedule.starts_at) + jitter
    elif isinstance(trigger, Once):
        at = None if trigger.at < now and schedule.misfire == "skip" else trigger.at
    else:
        at = fire_after(schedule, now - _INSTANT)
    return within(schedule, at)


def fire_times(schedule: Schedule, after: float, n: int) -> list[float]:
    """Return the next ``n`` turns after ``after``, as if every run took no time."""
    return list(itertools.islice(_fires(schedule, after), n))


def fire_after(schedule: Schedule, after: float) -> float | None:
    """Return the first turn after a time, as if the last one had been then, also after the schedule's end."""
    match schedule.trigger:
        case Every(seconds=seconds):
            return schedule.starts_at if after < schedule.starts_at else after + seconds
        case Cron(expression=expression, zone=zone):
            return next_fire(expression, zone, max(after, schedule.starts_at - _INSTANT))
        case Once(at=at):
            return at if at > after else None


def window(schedule: Schedule, start: float, end: float, most: int) -> list[float]:
    """Return the first ``most`` turns in [start, end), the same ones however a time is cut into windows."""
    if not start < end:
        raise InputError(f"the window must end after it begins, got {start:g} to {end:g}")
    turns = (
        _grid(schedule, start) if isinstance(schedule.trigger, Every) else _fires(schedule, start - _INSTANT)
    )
    return list(itertools.takewhile(lambda turn: turn < end, itertools.islice(turns, most)))


def count(schedule: Schedule, after: float, until: float) -> int:
    """Count the turns in (after, until], those of a cron expression up to a bound."""
    if until <= after:
        return 0
    if isinstance(schedule.trigger, Every):
        return math.floor((until - after) / schedule.trigger.seconds + _SLACK)
    return sum(1 for _ in itertools.islice(_until(schedule, after, until), MOST_COUNTED))


def latest(schedule: Schedule, after: float, until: float, most: int) -> list[float]:
    """Return the last turns in (after, until], looking back further and further until there are enough."""
    span = 1.0
    while True:
        start = max(after, until - span)
        found = list(_until(schedule, start, until))
        if len(found) >= most or start == after:
            return found[-most:]
        span *= 2


def last_due(schedule: Schedule, at: float, now: float) -> tuple[float, int]:
    """Return the last turn from the turn ``at`` on that is due at ``now``, and how many it leaves out."""
    trigger = schedule.trigger
    if now <= at or isinstance(trigger, Once):  # guard: missed-turns-computed
        return at, 0
    if isinstance(trigger, Every):
        left_out = count(schedule, at, min(now, schedule.ends_at or math.inf))
        return at + left_out * trigger.seconds, left_out
    last = latest(schedule, at, now, 1)
    return (last[-1], count(schedule, at, now)) if last else (at, 0)


def period(schedule: Schedule, after: float) -> float | None:
    """Return the seconds between two turns, as they come after ``after``; None if there is only one."""
    if isinstance(schedule.trigger, Every):
        return schedule.trigger.seconds
    turns = fire_times(schedule, after, 2)
    return turns[1] - turns[0] if len(turns) == 2 else None


def within(schedule: Schedule, at: float | None) -> float | None:
    """Return a time not before the schedule's start, as a score; None if it is after its end."""
    if at is None or 0 < schedule.ends_at < at:
        return None
    return rounded_up(max(at, schedule.starts_at))


def rounded_up(at: float) -> float:
    """Round up to a whole millisecond: a score never lies before the time that was meant."""
    return math.ceil(round(at * 1000, 3)) / 1000


def _fires(schedule: Schedule, after: float) -> Iterator[float]:
    turn = fire_after(schedule, after)
    while turn is not None and not 0 < schedule.ends_at < turn:
        yield turn
        turn = fire_after(schedule, turn)


def _until(schedule: Schedule, after: float, until: float) -> Iterator[float]:
    for turn in _fires(schedule, after):
        if turn > until:
            return
        yield turn


def _grid(schedule: Schedule, start: float) -> Iterator[float]:
    """Turns of an interval counted from its beginning, or from 1970: the same in any window."""
    assert isinstance(schedule.trigger, Every)
    seconds, origin = schedule.trigger.seconds, schedule.starts_at
    first = max(0, math.ceil((start - origin) / seconds) - 1)  # one early: the division may round
    turns = (origin + number * seconds for number in itertools.count(first))
    last = schedule.ends_at or math.inf
    return itertools.takewhile(lambda turn: turn <= last, (turn for turn in turns if turn >= start))
