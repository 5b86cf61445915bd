"""When a schedule runs next, after a success or a failure. Pure: times, streak and dice are arguments.

Invariant: a next run is never before the acquisition of the last one, except for turns that are caught up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Lost, Succeeded, TimedOut, Yielded
from holdfast.reliability.backoff import backoff_seconds
from holdfast.schedules.fire_times import count, fire_after, latest, rounded_up, within
from holdfast.schedules.overlap import POLICIES
from holdfast.schedules.trigger import Every, Once

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agents.outcome import Outcome
    from holdfast.config import SchedulerSettings
    from holdfast.schedules.schedule import Schedule

_AT_ONCE: Final = frozenset({FailureClass.TRANSIENT, FailureClass.SERVER})

INTERRUPTED: Final = "interrupt() is not supported in scheduled runs"
_Turn: TypeAlias = tuple[float | None, int, str]
"""The next turn, how many are left out before it, and why this one."""


class Next(msgspec.Struct, frozen=True):
    """When to run again (None: never), the failures in a row, the turns that were left out, and why."""

    at: float | None
    streak: int
    missed: int
    reason: str
    pause: bool = False
    """Whether it has failed so often in a row that it is to be paused."""


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
        # A manual run leaves the schedule's turn where it was, and its streak too.
        return _limited(schedule, runs, Next(ready, streak, 0, "triggered"))
    if isinstance(outcome, Yielded | Lost):
        return Next(rounded_up(ended), streak, 0, "given_back")
    failure = _failure(outcome)
    if failure is None:
        at, missed, reason = _turn(schedule, ready, acquired, ended)
        kept = streak if isinstance(outcome, Cancelled) else 0
        return _limited(schedule, runs, Next(at, kept, missed, reason))
    wait = wait_after(failure, streak + 1, schedule, settings, random=random)
    at = ended + wait.seconds if wait.seconds is not None else fire_after(schedule, ended)
    if wait.seconds is None and POLICIES[schedule.overlap].waiting(schedule, acquired, ended):
        at = ended
    pause = 0 < schedule.pause_after_failures <= streak + 1
    return _limited(schedule, runs, Next(at, streak + 1, 0, wait.reason, pause))


def skipped_turn(schedule: Schedule, *, ready: float, acquired: float, streak: int) -> Next | None:
    """Return what follows a turn that is not run, because it is missed and the policy is ``skip``."""
    if schedule.misfire != "skip" or isinstance(schedule.trigger, Once):
        return None
    later = fire_after(schedule, ready)
    if later is None or later > acquired:
        return None
    at, missed, _ = _turn(schedule, ready, acquired, acquired)
    return Next(within(schedule, at), streak, missed + 1, "skipped")


def _failure(outcome: Outcome) -> Failure | None:
    """Return the failure that an outcome is; None if it is none."""
    match outcome:
        case Failed(failure=failure):
            return failure
        case TimedOut(after_seconds=seconds):
            return Failure.because(FailureClass.UNKNOWN, f"no end after {seconds:g} s")
        case Interrupted():
            return Failure.because(FailureClass.UNKNOWN, INTERRUPTED)
        case Succeeded() | Cancelled() | Yielded() | Lost():
            return None


def _limited(schedule: Schedule, runs: int, found: Next) -> Next:
    if 0 < schedule.max_runs <= runs:
        return Next(None, found.streak, found.missed, "max_runs")
    at = within(schedule, found.at)
    reason = "end" if at is None and found.at is not None else found.reason
    return Next(at, found.streak, found.missed, reason, found.pause)


# -- after a success: turns that were missed, by the policy of the schedule


def _turn(schedule: Schedule, ready: float, acquired: float, ended: float) -> _Turn:
    """Return the turn after one that was run, how many were left out, and why this one."""
    trigger = schedule.trigger
    if isinstance(trigger, Once):
        return None, 0, "done"
    if isinstance(trigger, Every) and trigger.since == "completion":
        return ended + trigger.seconds, 0, "turn"
    waited = POLICIES[schedule.overlap].waiting(schedule, acquired, ended)  # guard: buffered-turn
    missed = count(schedule, ready, acquired) if waited else 0
    if waited and not (missed and schedule.misfire == "catch_up"):
        return ended, missed + waited - 1, "buffered"
    match schedule.misfire:
        case "coalesce":
            return _coalesced(schedule, ready, acquired, ended)
        case "skip":
            return _skipped(schedule, ready, acquired, ended)
        case "catch_up":
            return _caught_up(schedule, ready, ended)


def _coalesced(schedule: Schedule, ready: float, acquired: float, ended: float) -> _Turn:
    at = fire_after(schedule, acquired)  # guard: missed-turns-policy
    missed = count(schedule, ready, acquired)
    if at is None or at > ended:
        return at, missed, "done" if at is None else "turn"
    # The last digits of a time are lost in epoch seconds: a turn has passed, whatever the division returns.
    return ended, missed + max(1, count(schedule, acquired, ended)) - 1, "coalesced"


def _skipped(schedule: Schedule, ready: float, acquired: float, ended: float) -> _Turn:
    missed, passed = count(schedule, ready, acquired), count(schedule, acquired, ended)
    if isinstance(schedule.trigger, Every):
        at = acquired + (passed + 1) * schedule.trigger.seconds
        # The last digits of a time are lost in epoch seconds: the very end of a run is no turn after it.
        return at if at > ended else at + schedule.trigger.seconds, missed + passed, "turn"
    at = fire_after(schedule, ended)
    return at, missed + passed, "done" if at is None else "turn"


def _caught_up(schedule: Schedule, ready: float, ended: float) -> _Turn:
    """Return the first of the last owed turns: the others follow, one after the other."""
    owed, most = count(schedule, ready, ended), schedule.catch_up_most
    if not owed:
        at = fire_after(schedule, ready)
        return at, 0, "done" if at is None else "turn"
    if isinstance(schedule.trigger, Every):
        left_out = max(0, owed - most)
        return ready + (left_out + 1) * schedule.trigger.seconds, left_out, "catch_up"
    last = latest(schedule, ready, ended, most)
    return last[0], owed - len(last), "catch_up"


# -- after a failure: the wait by its class and the streak


@dataclass(frozen=True, slots=True)
class Wait:
    """How long to wait; None is until the schedule's next turn, which is what has no error interval does."""

    seconds: float | None
    reason: str


def error_interval(schedule: Schedule) -> float | None:
    """Return the wait after a failure that has no wait of its own."""
    if schedule.error_seconds is not None:
        return schedule.error_seconds
    return schedule.trigger.seconds if isinstance(schedule.trigger, Every) else None


def wait_after(
    failure: Failure,
    streak: int,
    schedule: Schedule,
    settings: SchedulerSettings,
    *,
    random: Callable[[], float],
) -> Wait:
    """Return the wait after the ``streak``-th failure in a row (the first is 1)."""
    wait = _wait(failure, streak, schedule, settings)
    if not wait.seconds or (failure.exact and failure.retry_after is not None):
        return wait
    ratio = settings.jitter.failure_backoff_ratio
    # After the cap, so that a herd at the cap spreads; never below what the other side asked for.
    jittered = wait.seconds * (1.0 + ratio * (2.0 * random() - 1.0))
    return Wait(max(jittered, _asked(failure, settings)), wait.reason)


def _wait(failure: Failure, streak: int, schedule: Schedule, settings: SchedulerSettings) -> Wait:
    asked = _asked(failure, settings)
    if failure.exact and failure.retry_after is not None:
        return Wait(asked, "asked")
    own = _own(failure.kind, streak, schedule, settings)
    return Wait(asked, "asked") if asked > (own.seconds or 0.0) else own


def _own(kind: FailureClass, streak: int, schedule: Schedule, settings: SchedulerSettings) -> Wait:
    """Return the wait by the class of a failure, without a Retry-After."""
    backoff, interval = settings.failure_backoff, Wait(error_interval(schedule), "error_interval")
    if not backoff.enabled:
        return interval
    if kind is FailureClass.FORBIDDEN:
        return Wait(backoff.permanent_forbidden_backoff_ms / 1000, "forbidden")
    if kind is FailureClass.THROTTLED:
        return Wait(_throttled_seconds(streak, settings), "throttled")
    if kind in _AT_ONCE and streak <= backoff.max_immediate_retries:
        return Wait(0.0, "retry")
    return interval


def _throttled_seconds(streak: int, settings: SchedulerSettings) -> float:
    throttled = settings.failure_backoff.throttled
    return backoff_seconds(
        streak,
        throttled.base_ms / 1000,
        throttled.cap_ms / 1000,
        factor=throttled.multiplier,
    )


def _asked(failure: Failure, settings: SchedulerSettings) -> float:
    """Return the Retry-After of the failure, or the wait that the agent itself asked for."""
    # Without failure backoff the Retry-After of a reply does not count; the agent's own wait always does.
    honoured = failure.exact or settings.failure_backoff.enabled
    return (failure.retry_after or 0.0) if honoured else 0.0
