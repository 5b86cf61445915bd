"""From the outcome of a turn to what Redis is told: how it ended and when it is due again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Succeeded, TimedOut
from holdfast.schedules.cadence import Next, next_run
from holdfast.schedules.completion import Done

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agents.outcome import Outcome
    from holdfast.config import SchedulerSettings
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.schedule import Schedule


def verdict(
    run: Acquired,
    schedule: Schedule,
    outcome: Outcome,
    *,
    ended: float,
    settings: SchedulerSettings,
    random: Callable[[], float],
) -> tuple[Done, Next]:
    """Return the end of a turn and why its next one is when it is."""
    following = next_run(
        schedule,
        ready=run.ready,
        acquired=run.acquired_at,
        ended=ended,
        outcome=outcome,
        streak=run.streak,
        runs=run.runs + (0 if run.triggered else 1),
        settings=settings,
        random=random,
        triggered=run.triggered,
    )
    word, error = described(outcome)
    return (
        Done(
            run.name,
            run.fence,
            following.at,
            streak=following.streak,
            outcome=word,
            error=error,
            duration_ms=max(ended - run.acquired_at, 0.0) * 1000,
            pause=f"{following.streak} failures in a row" if following.pause else "",
        ),
        following,
    )


def described(outcome: Outcome) -> tuple[str, str]:
    """Return an outcome as a word, and what went wrong if something did."""
    match outcome:
        case Succeeded():
            return "succeeded", ""
        case Failed(failure=failure):
            return "failed", failure.message
        case TimedOut(after_seconds=seconds):
            return "timed_out", f"no end after {seconds:g} s"
        case Cancelled(reason=reason):
            return "cancelled", reason
        case Interrupted():
            return "failed", "it asks a question, and nobody answers a schedule"
        case _:
            return "given_back", ""
