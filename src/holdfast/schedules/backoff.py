"""From a failure to the wait before a schedule's next run. Pure: the streak and the dice are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.agents.failures import Failure, FailureClass
from holdfast.reliability.backoff import backoff_seconds
from holdfast.schedules.trigger import Every

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import SchedulerSettings
    from holdfast.schedules.schedule import Schedule

_AT_ONCE = frozenset({FailureClass.TRANSIENT, FailureClass.SERVER})


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
    """Return the wait by the kind of a failure, without what anybody asked for."""
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
    """Return the wait that the other side, or the agent itself, asked for."""
    # Without failure backoff an answer's Retry-After is not read; an agent's own wish always counts.
    honoured = failure.exact or settings.failure_backoff.enabled
    return (failure.retry_after or 0.0) if honoured else 0.0
