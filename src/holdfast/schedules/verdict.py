"""From the outcome of a turn to what Redis is told: how it ended and when it is due again. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Succeeded, TimedOut
from holdfast.schedules.cadence import Next, counted, next_run
from holdfast.schedules.completion import Done
from holdfast.schedules.history import fault_of, past_turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agents.outcome import Outcome
    from holdfast.config import SchedulerSettings
    from holdfast.schedules.running import Turn


def verdict(
    turn: Turn,
    outcome: Outcome,
    *,
    ended: float,
    settings: SchedulerSettings,
    random: Callable[[], float],
) -> tuple[Done, Next]:
    """Return the end of a turn and why its next one is when it is."""
    run, schedule = turn.run, turn.schedule
    following = next_run(
        schedule,
        # Turns that were placed beside it are not its own to plan: the next comes after the last of them.
        ready=max(run.ready, turn.beside),
        acquired=max(run.acquired_at, turn.beside),  # guard: beside-turns-planned
        ended=ended,
        outcome=outcome,
        streak=run.streak,
        # One in doubt counts: if it was not placed, it is the next turn, whatever is planned here.
        runs=run.runs + turn.placed + (turn.doubtful is not None) + (0 if run.triggered else 1),
        settings=settings,
        random=random,
        triggered=run.triggered,
    )
    word, error = described(outcome)
    duration_ms = max(ended - run.acquired_at, 0.0) * 1000
    if turn.beside and not run.beside and word in {"succeeded", "cancelled"}:
        # Those it was late for are left out, too: nobody has placed them, and what follows lies behind them.
        owed = counted(schedule, run.ready, run.acquired_at)
        # guard: owed-turns-counted
        following = msgspec.structs.replace(following, missed=following.missed + owed)
    return (
        Done(
            run.name,
            run.fence,
            # A turn by itself ends with its run: its schedule's next turn comes all the same.
            None if schedule.source == "turn" else following.at,
            streak=following.streak,
            outcome=word,
            error=error,
            duration_ms=duration_ms,
            pause_after=0 if following.reason == "max_runs" else schedule.pause_after_failures,
            doubtful=turn.doubtful,
            history=_history(turn, outcome, duration_ms),
        ),
        following,
    )


def _history(turn: Turn, outcome: Outcome, duration_ms: float) -> bytes:
    word, error = described(outcome)
    if word == "succeeded" and turn.schedule.target:
        where = {"queue": turn.schedule.target, "run_id": turn.run_id}
        return past_turn(turn.run, turn.schedule, "submitted", duration_ms, **where)
    return past_turn(turn.run, turn.schedule, word, duration_ms, **fault_of(outcome, error))


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
