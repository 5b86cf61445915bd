"""E: cadence and scores, on a clock that the test moves."""

from __future__ import annotations

import itertools
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Lost, Succeeded, TimedOut, Yielded
from holdfast.config.scheduling import ExceptionalSettings, SchedulerSettings, ZombieCleanupSettings
from holdfast.schedules import Cron, Every, Once, Schedule
from holdfast.schedules.cadence import Next, next_run, skipped_turn
from holdfast.schedules.fire_times import fire_times, first_run, window
from holdfast.schedules.zombies import Overrun

NOW = 1_775_000_000.0


def make(trigger, **fields) -> Schedule:
    return Schedule(name="s", agent="a", trigger=trigger, **fields)


def after(schedule: Schedule, outcome=None, **given) -> Next:
    facts = {"ready": NOW, "acquired": NOW, "ended": NOW, "streak": 0, "runs": 1} | given
    outcome = Succeeded(None) if outcome is None else outcome
    return next_run(schedule, outcome=outcome, settings=SchedulerSettings(), random=lambda: 0.5, **facts)


def simulate(
    schedule: Schedule, start: float, end: float, *, lateness: float = 0.004, takes: float = 0.05
) -> list[float]:
    """When the schedule is started between two times, by a scheduler that is always a little late."""
    started: list[float] = []
    at = first_run(schedule, start)
    while at is not None and at < end:
        acquired = at + lateness
        started.append(acquired)
        ended = acquired + takes
        at = after(schedule, ready=at, acquired=acquired, ended=ended, runs=len(started)).at
    return started


def test_e1_success_is_due_an_interval_after_it_was_acquired():
    found = after(make(Every(seconds=60)), ready=NOW - 5, acquired=NOW, ended=NOW + 20)
    assert found == Next(NOW + 60, 0, 0, "turn")


def test_e2_from_completion_is_due_an_interval_after_the_end():
    assert after(make(Every(seconds=60, since="completion")), ended=NOW + 90).at == NOW + 150


def test_e3_missed_turns_become_one_immediate_run():
    assert after(make(Every(seconds=10)), ended=NOW + 35) == Next(NOW + 35, 0, 2, "coalesced")
    assert after(make(Cron(expression="*/10 * * * * *")), ended=NOW + 35).at == NOW + 35


def test_e4_scores_are_rounded_up_to_a_millisecond_and_never_twice():
    at = after(make(Every(seconds=0.0123)), acquired=NOW + 0.0001, ended=NOW + 0.0001).at
    assert at == pytest.approx(NOW + 0.013, abs=1e-6)
    assert at >= NOW + 0.0001 + 0.0123
    assert after(make(Every(seconds=1)), Yielded("x"), acquired=at, ended=at).at == at


def test_e5_intervals_below_a_second_are_kept():
    started = simulate(make(Every(seconds=0.25)), NOW, NOW + 60, lateness=0, takes=0.01)
    assert len(started) == 240


def test_e6_skipped_turns_are_left_out():
    assert after(make(Every(seconds=10), misfire="skip"), ended=NOW + 35) == Next(NOW + 40, 0, 3, "turn")


def test_e7_turns_are_caught_up_in_order_up_to_the_most():
    schedule = make(Every(seconds=10), misfire="catch_up", catch_up_most=3)
    ready, due = NOW, []
    while (found := after(schedule, ready=ready, acquired=NOW + 65, ended=NOW + 65)).reason == "catch_up":
        ready = found.at
        due.append(ready - NOW)
    assert due == [40, 50, 60]
    assert found.at == NOW + 70
    assert after(schedule, ended=NOW + 65).missed == 3


def test_e8_a_cron_expression_catches_its_last_turns_up_even_after_a_day():
    schedule = make(Cron(expression="* * * * * *"), misfire="catch_up", catch_up_most=5)
    found = after(schedule, ready=NOW - 86400, acquired=NOW, ended=NOW)
    assert (found.at, found.reason) == (NOW - 4, "catch_up")


def test_e9_a_turn_that_was_missed_is_not_run_if_the_policy_is_to_skip():
    schedule = make(Every(seconds=10), misfire="skip")
    assert skipped_turn(schedule, ready=NOW, acquired=NOW + 9, streak=0) is None
    assert skipped_turn(schedule, ready=NOW, acquired=NOW + 25, streak=4) == Next(NOW + 35, 4, 3, "skipped")
    assert skipped_turn(make(Every(seconds=10)), ready=NOW, acquired=NOW + 25, streak=0) is None


@pytest.mark.parametrize(
    ("outcome", "at", "streak", "reason"),
    [
        (Succeeded(1), 60, 0, "turn"),
        (Cancelled("by hand"), 60, 3, "turn"),
        (Yielded("stopping"), 5, 3, "given_back"),
        (Lost(), 5, 3, "given_back"),
        (TimedOut(300), 35, 4, "error_interval"),
        (Interrupted(1, b"null"), 35, 4, "error_interval"),
        (Failed(Failure(FailureClass.UNKNOWN, "x")), 35, 4, "error_interval"),
    ],
)
def test_e10_every_way_to_end_has_its_next_run(outcome, at, streak, reason):
    found = after(make(Every(seconds=60), error_seconds=30), outcome, ended=NOW + 5, streak=3)
    assert (found.at, found.streak, found.reason) == (NOW + at, streak, reason)


def test_e11_a_manual_run_moves_neither_the_cadence_nor_the_streak():
    schedule = make(Every(seconds=60))
    for outcome in (Succeeded(1), TimedOut(3)):
        found = after(
            schedule, outcome, ready=NOW + 40, acquired=NOW, ended=NOW + 5, streak=2, triggered=True
        )
        assert found == Next(NOW + 40, 2, 0, "triggered")


def test_e12_one_moment_comes_once():
    schedule = make(Once(at=NOW + 5))
    assert first_run(schedule, NOW) == NOW + 5
    assert first_run(schedule, NOW + 60) == NOW + 5
    assert first_run(msgspec.structs.replace(schedule, misfire="skip"), NOW + 60) is None
    ran = {"ready": NOW + 5, "acquired": NOW + 6, "ended": NOW + 8}
    assert after(schedule, **ran) == Next(None, 0, 0, "done")
    assert after(schedule, TimedOut(1), **ran).at is None
    assert after(msgspec.structs.replace(schedule, error_seconds=30), TimedOut(1), **ran).at == NOW + 38


def test_e13_start_end_and_most_runs_are_kept():
    schedule = make(Every(seconds=10), starts_at=NOW + 100, ends_at=NOW + 125)
    assert [round(t - NOW) for t in simulate(schedule, NOW, NOW + 1000)] == [100, 110, 120]
    assert len(simulate(make(Every(seconds=10), max_runs=4), NOW, NOW + 1000)) == 4
    assert after(schedule, acquired=NOW + 120, ended=NOW + 121) == Next(None, 0, 12, "end")
    assert after(make(Every(seconds=1), max_runs=3), runs=3).reason == "max_runs"
    assert first_run(make(Every(seconds=1), ends_at=NOW - 1), NOW) is None


def test_e14_new_schedules_are_spread_but_named_times_are_not():
    assert first_run(make(Every(seconds=60)), NOW, jitter=7.5) == NOW + 7.5
    assert first_run(make(Cron(expression="* * * * *")), NOW + 1, jitter=7.5) == NOW + 40
    assert first_run(make(Once(at=NOW + 1)), NOW, jitter=7.5) == NOW + 1


def test_e15_next_times_and_windows_are_those_of_the_cadence():
    cron = make(Cron(expression="0 2 * * *", zone="Europe/Paris"))
    times = fire_times(cron, datetime(2026, 10, 24, tzinfo=ZoneInfo("Europe/Paris")).timestamp(), 3)
    assert [datetime.fromtimestamp(t, ZoneInfo("Europe/Paris")).isoformat() for t in times] == [
        "2026-10-24T02:00:00+02:00",
        "2026-10-25T02:00:00+02:00",
        "2026-10-26T02:00:00+01:00",
    ]
    assert window(cron, times[0], times[2], 10) == times[:2]
    assert fire_times(make(Every(seconds=20)), NOW, 3) == [NOW + 20, NOW + 40, NOW + 60]
    assert fire_times(make(Once(at=NOW + 1)), NOW, 3) == [NOW + 1]


def test_e16_it_is_paused_after_so_many_failures_in_a_row():
    schedule = make(Every(seconds=10), pause_after_failures=3)
    assert [after(schedule, TimedOut(1), streak=streak).pause for streak in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not after(schedule, streak=9).pause


# Two days of 2026 on which the clocks are changed, in zones of different kinds.
CHANGES = [
    ("America/New_York", "2026-03-08", "2026-11-01"),
    ("Europe/Berlin", "2026-03-29", "2026-10-25"),
    ("Europe/London", "2026-03-29", "2026-10-25"),
    ("Australia/Lord_Howe", "2026-10-04", "2026-04-05"),
    ("Antarctica/Troll", "2026-03-29", "2026-10-25"),
]
DAYS = [(zone, day) for zone, *days in CHANGES for day in days]


def midnight(day: str, zone: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(("zone", "day"), DAYS)
def test_e17_a_two_hour_interval_does_not_notice_the_clocks(zone, day):
    start = midnight(day, zone) - 6 * 3600
    started = simulate(make(Every(seconds=7200)), start, start + 48 * 3600, lateness=0)
    assert started == [start + 7200 * n for n in range(24)]


@pytest.mark.parametrize(("zone", "day"), DAYS)
def test_e18_twelve_named_times_are_twelve_runs_on_every_day(zone, day):
    schedule = make(Cron(expression="0 0 0,2,4,6,8,10,12,14,16,18,20,22 * * *", zone=zone))
    start = midnight(day, zone)
    end = (
        datetime.fromtimestamp(start + 30 * 3600, ZoneInfo(zone))
        .replace(hour=0, minute=0, fold=0)
        .timestamp()
    )
    started = simulate(schedule, start, end)
    assert len(started) == 12
    gaps = [round(b - a) for a, b in itertools.pairwise(started)]
    assert all(0 < gap <= 4 * 3600 for gap in gaps)
    assert sum(gap == 7200 for gap in gaps) >= 9


@pytest.mark.parametrize(("zone", "day"), DAYS)
@pytest.mark.parametrize("trigger", [Every(seconds=10), Cron(expression="*/10 * * * * *")])
def test_e19_two_hours_around_the_change_are_720_runs_ten_seconds_apart(zone, day, trigger):
    if isinstance(trigger, Cron):
        trigger = msgspec.structs.replace(trigger, zone=zone)
    for hour in range(0, 4, 2):
        start = midnight(day, zone) + hour * 3600
        started = simulate(make(trigger), start, start + 7200, lateness=0)
        assert started == [start + 10 * n for n in range(720)]


@pytest.mark.parametrize(("zone", "day"), DAYS)
def test_e20_an_hourly_expression_stays_hourly(zone, day):
    started = simulate(
        make(Cron(expression="0 * * * *", zone=zone)), midnight(day, zone), midnight(day, zone) + 20 * 3600
    )
    gaps = {round(b - a) for a, b in itertools.pairwise(started)}
    assert gaps <= ({3600} if zone != "Australia/Lord_Howe" else {1800, 3600, 5400})


def overdue(deadlines: dict[str, float], now: float) -> set[str]:
    overrun = Overrun.of(
        ZombieCleanupSettings(
            threshold_ms=30_000,
            exceptional_agents=ExceptionalSettings(pattern="slow/.*", threshold_ms=3_600_000),
        )
    )
    return {name for name, deadline in deadlines.items() if overrun.left(name, deadline, now) <= 0}


def test_r8_whether_a_run_is_overdue_is_asked_of_the_clock_of_redis():
    deadlines = {
        "a": NOW - 31,
        "b": NOW - 29,
        "slow/a": NOW - 31,
        "slow/b": NOW - 3601,
        "not/slow/b": NOW - 31,
    }
    expected = {"a", "slow/b", "not/slow/b"}
    assert overdue(deadlines, NOW) == expected
    # The mistake: this machine's clock is an hour ahead, or behind, and the scan believes it.
    assert overdue(deadlines, NOW + 3600) != expected
    assert overdue(deadlines, NOW - 3600) != expected
