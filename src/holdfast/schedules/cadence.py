"""When a schedule runs next. No clock and no dice inside: times are arguments, epoch seconds of Redis.

Invariant: a next run is never before the acquisition of the last one, except for turns that are caught up.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Lost, Succeeded, TimedOut, Yielded
from holdfast.errors import InputError
from holdfast.schedules.backoff import wait_after
from holdfast.schedules.trigger import Cron, Every, Once
from holdfast.schedules.wallclock import next_fire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.agents.outcome import Outcome
    from holdfast.config import SchedulerSettings
    from holdfast.schedules.schedule import Schedule

MOST_COUNTED: Final = 1000
"""Missed turns of a cron expression are counted up to here: more are as bad."""
_INSTANT: Final = 0.001
_SLACK: Final = 1e-6

_Turn: TypeAlias = tuple[float | None, int, str]


class Next(msgspec.Struct, frozen=True):
    """When to run again (None: never), the failures in a row, the turns that were left out, and why."""

    at: float | None
    streak: int
    missed: int
    reason: str
    pause: bool = False
    """Whether it has failed so often in a row that it is to be paused."""


def first_run(schedule: Schedule, now: float, jitter: float = 0.0) -> float | None:
    """Return when a new schedule is due first; ``jitter`` seconds later if it is an interval."""
    trigger = schedule.trigger
    if isinstance(trigger, Every):
        at = max(now, schedule.starts_at) + jitter
    elif isinstance(trigger, Once):
        at = None if trigger.at < now and schedule.misfire == "skip" else trigger.at
    else:
        at = _turn_after(schedule, now - _INSTANT)
    return _within(schedule, at)


def next_run(
    schedule: Schedule,
    *,
    ready: float,
    acquired: float,
    ended: float,
    outcome: Outcome,
    streak: int,
    runs: int,
    settings: SchedulerSettings,
    random: Callable[[], float],
    triggered: bool = False,
) -> Next:
    """Return what follows a run that was due at ``ready``, the ``runs``-th (this one included)."""
    ended = max(ended, acquired)
    if triggered:
        # Somebody wanted it now: its turn stays where it was, and so does what is known of its turns.
        return _limited(schedule, runs, Next(ready, streak, 0, "triggered"))
    if isinstance(outcome, Yielded | Lost):
        return Next(_score(ended), streak, 0, "given_back")
    failure = _failure(outcome)
    if failure is None:
        at, missed, reason = _turn(schedule, ready, acquired, ended)
        kept = streak if isinstance(outcome, Cancelled) else 0
        return _limited(schedule, runs, Next(at, kept, missed, reason))
    wait = wait_after(failure, streak + 1, schedule, settings, random=random)
    at = ended + wait.seconds if wait.seconds is not None else _turn_after(schedule, ended)
    if wait.seconds is None and schedule.overlap == "buffer" and _count(schedule, acquired, ended):
        at = ended
    pause = 0 < schedule.pause_after_failures <= streak + 1
    return _limited(schedule, runs, Next(at, streak + 1, 0, wait.reason, pause))


def skipped_turn(schedule: Schedule, *, ready: float, acquired: float, streak: int) -> Next | None:
    """Return what follows a turn that is not run, because it is missed and the policy is ``skip``."""
    if schedule.misfire != "skip" or isinstance(schedule.trigger, Once):
        return None
    later = _turn_after(schedule, ready)
    if later is None or later > acquired:
        return None
    at, missed, _ = _turn(schedule, ready, acquired, acquired)
    return Next(_within(schedule, at), streak, missed + 1, "skipped")


def fire_times(schedule: Schedule, after: float, n: int) -> list[float]:
    """Return the next ``n`` turns after ``after``, as if every run took no time."""
    return list(itertools.islice(_turns(schedule, after), n))


def window(schedule: Schedule, start: float, end: float, most: int) -> list[float]:
    """Return the first ``most`` turns in [start, end), the same ones however a time is cut into windows."""
    if not start < end:
        raise InputError(f"the window must end after it begins, got {start:g} to {end:g}")
    turns = (
        _grid(schedule, start) if isinstance(schedule.trigger, Every) else _turns(schedule, start - _INSTANT)
    )
    return list(itertools.takewhile(lambda turn: turn < end, itertools.islice(turns, most)))


def counted(schedule: Schedule, after: float, until: float) -> int:
    """Count the turns in (after, until], those of a cron expression up to a bound."""
    return _count(schedule, after, until)


def last_due(schedule: Schedule, at: float, now: float) -> tuple[float, int]:
    """Return the last turn from the turn ``at`` on that is due at ``now``, and how many it leaves out."""
    trigger = schedule.trigger
    if now <= at or isinstance(trigger, Once):  # guard: missed-turns-computed
        return at, 0
    if isinstance(trigger, Every):
        left_out = _count(schedule, at, min(now, schedule.ends_at or math.inf))
        return at + left_out * trigger.seconds, left_out
    latest = _latest(schedule, at, now, 1)
    return (latest[-1], _count(schedule, at, now)) if latest else (at, 0)


def period(schedule: Schedule, after: float) -> float | None:
    """Return the seconds between two turns, as they come after ``after``; None if there is only one."""
    if isinstance(schedule.trigger, Every):
        return schedule.trigger.seconds
    turns = fire_times(schedule, after, 2)
    return turns[1] - turns[0] if len(turns) == 2 else None


def _failure(outcome: Outcome) -> Failure | None:
    """Return the failure that an outcome is; None if it is none."""
    match outcome:
        case Failed(failure=failure):
            return failure
        case TimedOut(after_seconds=seconds):
            return Failure.because(FailureClass.UNKNOWN, f"no end after {seconds:g} s")
        case Interrupted():
            return Failure.because(FailureClass.UNKNOWN, "it asks a question, and nobody answers a schedule")
        case Succeeded() | Cancelled() | Yielded() | Lost():
            return None


def _limited(schedule: Schedule, runs: int, found: Next) -> Next:
    if 0 < schedule.max_runs <= runs:
        return Next(None, found.streak, found.missed, "max_runs")
    at = _within(schedule, found.at)
    reason = "end" if at is None and found.at is not None else found.reason
    return Next(at, found.streak, found.missed, reason, found.pause)


def _within(schedule: Schedule, at: float | None) -> float | None:
    if at is None or 0 < schedule.ends_at < at:
        return None
    return _score(max(at, schedule.starts_at))


def _score(at: float) -> float:
    """Round up to a whole millisecond: a score never lies before the time that was meant."""
    return math.ceil(round(at * 1000, 3)) / 1000


def _turn_after(schedule: Schedule, after: float) -> float | None:
    """Return the first turn after a time, as if the last one had been at that time."""
    match schedule.trigger:
        case Every(seconds=seconds):
            return schedule.starts_at if after < schedule.starts_at else after + seconds
        case Cron(expression=expression, zone=zone):
            return next_fire(expression, zone, max(after, schedule.starts_at - _INSTANT))
        case Once(at=at):
            return at if at > after else None


def _turns(schedule: Schedule, after: float) -> Iterator[float]:
    turn = _turn_after(schedule, after)
    while turn is not None and not 0 < schedule.ends_at < turn:
        yield turn
        turn = _turn_after(schedule, turn)


def _grid(schedule: Schedule, start: float) -> Iterator[float]:
    """Turns of an interval counted from its beginning, or from 1970: each has its place in any window."""
    assert isinstance(schedule.trigger, Every)
    seconds, origin = schedule.trigger.seconds, schedule.starts_at
    first = max(0, math.ceil((start - origin) / seconds) - 1)  # one early: the division may round
    turns = (origin + number * seconds for number in itertools.count(first))
    last = schedule.ends_at or math.inf
    return itertools.takewhile(lambda turn: turn <= last, (turn for turn in turns if turn >= start))


def _turn(schedule: Schedule, ready: float, acquired: float, ended: float) -> _Turn:
    """Return the turn after one that was run, how many were left out, and why this one."""
    trigger = schedule.trigger
    if isinstance(trigger, Once):
        return None, 0, "done"
    if isinstance(trigger, Every) and trigger.since == "completion":
        return ended + trigger.seconds, 0, "turn"
    # guard: buffered-turn
    if schedule.overlap == "buffer" and (turn := _buffered(schedule, ready, acquired, ended)):
        return turn
    match schedule.misfire:
        case "coalesce":
            return _coalesced(schedule, ready, acquired, ended)
        case "skip":
            return _skipped(schedule, ready, acquired, ended)
        case "catch_up":
            return _caught_up(schedule, ready, ended)


def _buffered(schedule: Schedule, ready: float, acquired: float, ended: float) -> _Turn | None:
    """Return the one turn that waited for the end of this run, whatever the policy for missed ones is."""
    waited = _count(schedule, acquired, ended)
    missed = _count(schedule, ready, acquired)
    if not waited or (missed and schedule.misfire == "catch_up"):
        return None
    return ended, missed + waited - 1, "buffered"


def _coalesced(schedule: Schedule, ready: float, acquired: float, ended: float) -> _Turn:
    at = _turn_after(schedule, acquired)  # guard: missed-turns-policy
    missed = _count(schedule, ready, acquired)
    if at is None or at > ended:
        return at, missed, "done" if at is None else "turn"
    # The last digits of a time are lost in epoch seconds: a turn has passed, whatever the division says.
    return ended, missed + max(1, _count(schedule, acquired, ended)) - 1, "coalesced"


def _skipped(schedule: Schedule, ready: float, acquired: float, ended: float) -> _Turn:
    missed, passed = _count(schedule, ready, acquired), _count(schedule, acquired, ended)
    if isinstance(schedule.trigger, Every):
        at = acquired + (passed + 1) * schedule.trigger.seconds
        # The last digits of a time are lost in epoch seconds: the very end of a run is no turn after it.
        return at if at > ended else at + schedule.trigger.seconds, missed + passed, "turn"
    at = _turn_after(schedule, ended)
    return at, missed + passed, "done" if at is None else "turn"


def _caught_up(schedule: Schedule, ready: float, ended: float) -> _Turn:
    """Return the first of the last owed turns: the others follow, one after the other."""
    owed, most = _count(schedule, ready, ended), schedule.catch_up_most
    if not owed:
        at = _turn_after(schedule, ready)
        return at, 0, "done" if at is None else "turn"
    if isinstance(schedule.trigger, Every):
        left_out = max(0, owed - most)
        return ready + (left_out + 1) * schedule.trigger.seconds, left_out, "catch_up"
    latest = _latest(schedule, ready, ended, most)
    return latest[0], owed - len(latest), "catch_up"


def _count(schedule: Schedule, after: float, until: float) -> int:
    """Count the turns in (after, until]."""
    if until <= after:
        return 0
    if isinstance(schedule.trigger, Every):
        return math.floor((until - after) / schedule.trigger.seconds + _SLACK)
    return sum(1 for _ in itertools.islice(_until(schedule, after, until), MOST_COUNTED))


def _latest(schedule: Schedule, after: float, until: float, most: int) -> list[float]:
    """Return the last turns in (after, until], looking back further and further until there are enough."""
    span = 1.0
    while True:
        start = max(after, until - span)
        found = list(_until(schedule, start, until))
        if len(found) >= most or start == after:
            return found[-most:]
        span *= 2


def _until(schedule: Schedule, after: float, until: float) -> Iterator[float]:
    for turn in _turns(schedule, after):
        if turn > until:
            return
        yield turn
