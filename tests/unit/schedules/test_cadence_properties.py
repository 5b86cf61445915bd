"""What is true of every next run, whatever the schedule and however the run went."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Cancelled, Failed, Succeeded, TimedOut, Yielded
from holdfast.config.scheduling import (
    FailureBackoffSettings,
    JitterSettings,
    SchedulerSettings,
    ThrottledSettings,
)
from holdfast.errors import InputError
from holdfast.schedules import Cron, Every, Schedule
from holdfast.schedules.cadence import Next, next_run
from holdfast.schedules.fire_times import fire_times, first_run, period, window

NOW = 1_775_000_000.0
EPS = 1e-6  # what a float of epoch seconds can't tell apart
TICK = 0.0011  # a score is a whole millisecond, rounded up
quick = settings(deadline=None, max_examples=200)

everies = st.builds(
    Every,
    seconds=st.floats(0.001, 10_000).map(lambda s: round(s, 3)),
    since=st.sampled_from(["start", "completion"]),
)
crons = st.builds(
    Cron,
    expression=st.sampled_from(
        ["*/5 * * * * *", "* * * * *", "*/7 * * * *", "0 */2 * * *", "30 2 * * *", "0 0 * * MON"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
schedules = st.builds(
    Schedule,
    name=st.just("s"),
    agent=st.just("a"),
    trigger=everies | crons,
    misfire=st.sampled_from(["coalesce", "skip", "catch_up"]),
    catch_up_most=st.integers(1, 20),
    error_seconds=st.none() | st.floats(0, 1000),
)
failures = st.builds(
    Failure,
    kind=st.sampled_from(list(FailureClass)),
    message=st.just("x"),
    retry_after=st.none() | st.floats(0, 5000),
    exact=st.booleans(),
)
outcomes = (
    st.builds(Succeeded, result=st.none())
    | st.builds(Failed, failure=failures)
    | st.builds(TimedOut, after_seconds=st.just(3.0))
    | st.builds(Cancelled, reason=st.just("x"))
    | st.builds(Yielded, reason=st.just("x"))
)
scheduler_settings = st.builds(
    SchedulerSettings,
    jitter=st.builds(JitterSettings, failure_backoff_ratio=st.floats(0, 1)),
    failure_backoff=st.builds(
        FailureBackoffSettings,
        enabled=st.booleans(),
        max_immediate_retries=st.integers(0, 5),
        throttled=st.builds(
            ThrottledSettings,
            base_ms=st.integers(0, 60_000),
            multiplier=st.floats(1, 100),
            cap_ms=st.integers(60_000, 600_000),
        ),
    ),
)
delays = st.floats(0, 20_000)


def after(schedule: Schedule, outcome=None, **given) -> Next:
    facts = {"ready": NOW, "acquired": NOW, "ended": NOW, "streak": 0, "runs": 1} | given
    dice = facts.pop("dice", 0.5)
    scheduler = facts.pop("settings", SchedulerSettings())
    outcome = Succeeded(None) if outcome is None else outcome
    return next_run(schedule, outcome=outcome, settings=scheduler, random=lambda: dice, **facts)


def test_a_turn_at_the_very_end_of_a_run_is_the_one_that_follows():
    """The last digits of a time are lost in epoch seconds: it was counted as no turn, and -1 as missed."""
    schedule = Schedule(name="s", agent="a", trigger=Every(seconds=0.001))
    found = after(schedule, Succeeded(result=None), acquired=NOW, ended=NOW + 0.001)
    assert (found.missed, found.reason) == (0, "coalesced")


@quick
@given(
    schedule=schedules,
    outcome=outcomes,
    late=delays,
    took=delays,
    streak=st.integers(0, 2000),
    scheduler=scheduler_settings,
    dice=st.floats(0, 1),
)
def test_a_next_run_is_never_in_the_past_unless_it_is_caught_up(
    schedule, outcome, late, took, streak, scheduler, dice
):
    acquired = NOW + late
    found = after(
        schedule,
        outcome,
        acquired=acquired,
        ended=acquired + took,
        streak=streak,
        settings=scheduler,
        dice=dice,
    )
    assert found.at is not None
    assert found.missed >= 0
    if found.reason == "catch_up":
        assert NOW < found.at <= acquired + took + TICK
    else:
        assert found.at >= acquired + took - EPS
    assert found.at == pytest.approx(math.ceil(found.at * 1000 - 0.001) / 1000, abs=1e-6)


@quick
@given(schedule=schedules, late=delays, took=delays)
def test_success_ends_a_streak_and_a_failure_prolongs_it(schedule, late, took):
    times = {"acquired": NOW + late, "ended": NOW + late + took, "streak": 7}
    assert after(schedule, **times).streak == 0
    assert after(schedule, TimedOut(1.0), **times).streak == 8
    assert after(schedule, Yielded("stopping"), **times).streak == 7
    assert after(schedule, Cancelled("by hand"), **times).streak == 7


@quick
@given(seconds=st.floats(0.01, 1000), took=delays)
def test_missed_turns_become_one_run_that_is_due_at_once(seconds, took):
    schedule = Schedule(name="s", agent="a", trigger=Every(seconds=seconds))
    found = after(schedule, ended=NOW + took)
    if took < seconds * 0.999:
        assert found.at == pytest.approx(NOW + seconds, abs=TICK)
        assert (found.missed, found.reason) == (0, "turn")
    elif took > seconds * 1.001:
        assert found.at == pytest.approx(NOW + took, abs=TICK)
        assert found.reason == "coalesced"
        assert found.missed == pytest.approx(took / seconds - 1, abs=1.01)


@quick
@given(schedule=schedules, took=delays, late=delays)
def test_skipping_never_runs_at_once(schedule, took, late):
    schedule = msgspec.structs.replace(schedule, misfire="skip")
    found = after(schedule, acquired=NOW + late, ended=NOW + late + took)
    assert found.at > NOW + late + took - EPS
    assert found.reason == "turn"


@quick
@given(schedule=schedules, away=st.floats(1, 100_000), most=st.integers(1, 20))
def test_no_more_than_the_most_turns_are_caught_up(schedule, away, most):
    schedule = msgspec.structs.replace(schedule, misfire="catch_up", catch_up_most=most)
    assume(not isinstance(schedule.trigger, Every) or schedule.trigger.since == "start")
    now, ready, runs = NOW + away, NOW, 0
    while True:
        found = after(schedule, ready=ready, acquired=now, ended=now)
        assert found.at > ready - TICK
        if found.at > now:
            break
        ready, runs = found.at, runs + 1
        assert runs <= most + 1  # one more may come due by the rounding of its score
    turns = len(fire_times(schedule, NOW, most + 2))
    assert runs <= turns


@quick
@given(schedule=schedules, durations=st.lists(st.floats(0, 300), min_size=2, max_size=20))
def test_a_schedule_goes_on_for_ever_and_forwards(schedule, durations):
    assume(schedule.misfire != "catch_up")
    at, clock = first_run(schedule, NOW), NOW
    for took in durations:
        acquired = max(at, clock) + 0.002
        clock = acquired + took
        following = after(schedule, ready=at, acquired=acquired, ended=clock).at
        assert following > at
        assert following >= clock - EPS
        at = following


@quick
@given(
    kind=st.sampled_from(list(FailureClass)),
    streak=st.integers(1, 5000),
    scheduler=scheduler_settings,
    dice=st.floats(0, 1),
)
def test_a_wait_stays_below_its_cap_and_the_jitter(kind, streak, scheduler, dice):
    schedule = Schedule(name="s", agent="a", trigger=Every(seconds=60), error_seconds=60)
    found = after(schedule, Failed(Failure(kind, "x")), streak=streak - 1, settings=scheduler, dice=dice)
    longest = {
        FailureClass.FORBIDDEN: 1800.0,
        FailureClass.THROTTLED: scheduler.failure_backoff.throttled.cap_ms / 1000,
    }
    cap = longest.get(kind, 60.0) if scheduler.failure_backoff.enabled else 60.0
    ratio = scheduler.jitter.failure_backoff_ratio
    assert found.at - NOW <= cap * (1 + ratio) + TICK
    if found.reason in {"forbidden", "error_interval"}:
        assert found.at - NOW >= cap * (1 - ratio) - TICK


@quick
@given(schedule=schedules, n=st.integers(0, 30))
def test_the_next_times_come_in_order_and_after_now(schedule, n):
    times = fire_times(schedule, NOW, n)
    assert len(times) == n
    assert all(later > earlier for earlier, later in zip([NOW, *times], times, strict=False))


@quick
@given(
    trigger=st.builds(Every, seconds=st.floats(60, 10_000))
    | crons.filter(lambda c: not c.expression.startswith("*/5")),
    cuts=st.lists(st.floats(0, 200_000), min_size=3, max_size=3, unique=True).map(sorted),
    starts=st.sampled_from([0.0, NOW - 1000.5, NOW + 5000]),
)
def test_however_a_window_is_cut_each_turn_is_in_one_piece(trigger, cuts, starts):
    schedule = Schedule(name="s", agent="a", trigger=trigger, starts_at=starts)
    start, middle, end = (round(NOW + cut, 3) for cut in cuts)
    assume(start < middle < end)
    pieces = window(schedule, start, middle, 10_000) + window(schedule, middle, end, 10_000)
    assert pieces == window(schedule, start, end, 10_000)
    assert all(start - 0.01 <= turn < end for turn in pieces)


def test_of_a_large_window_come_the_first_turns_and_an_empty_one_is_refused():
    schedule = Schedule(name="s", agent="a", trigger=Every(seconds=0.25))
    assert window(schedule, NOW, NOW + 86400, 3) == [NOW, NOW + 0.25, NOW + 0.5]
    with pytest.raises(InputError, match="must end after it begins"):
        window(schedule, NOW, NOW, 3)


def test_a_period_is_the_time_between_two_turns():
    def of(trigger):
        return period(Schedule(name="s", agent="a", trigger=trigger), NOW)

    assert of(Every(seconds=0.5)) == 0.5
    assert of(Cron(expression="*/10 * * * * *")) == 10
    assert of(Cron(expression="0 3 * * *")) == 86400
