"""E: two hours of a scheduler on a clock that the test moves, across a change of the clocks, in spring and in autumn.

Every schedule goes the way it goes in the loop: acquired when due and not before, passed over if it is missed and
its policy says so, run for a while, and planned again. In between the scheduler is away, or a run is slow.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from holdfast.agents.outcome import Succeeded
from holdfast.config import SchedulerSettings
from holdfast.schedules import Cron, Every, Schedule
from holdfast.schedules.cadence import next_run, skipped_turn
from holdfast.schedules.fire_times import first_run

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = "2026-03-29T01:00", "2026-10-25T02:00"
"""One hour before the change on both days; in autumn it is the first of two hours that begin so."""
HOURS = 2 * 3600.0
AWAY = (1795.0, 2410.0)
"""Ten minutes in which no scheduler lives, and eleven turns of a schedule that has one a minute."""


@dataclass
class Simulation:
    """One scheduler, a little late for everything, and everything that it ran."""

    start: float
    lateness: float = 0.0
    takes: Callable[[str, float], float] = lambda name, at: 0.01
    away: tuple[float, float] | None = None
    ran: dict[str, list[float]] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)

    def run(self, *schedules: Schedule) -> None:
        due = [(first_run(one, self.start), n) for n, one in enumerate(schedules)]
        heapq.heapify(due)
        runs, end = [0] * len(schedules), self.start + HOURS
        while due and due[0][0] < end:
            ready, n = heapq.heappop(due)
            schedule = schedules[n]
            self.ran.setdefault(schedule.name, [])
            at = self._turn(schedule, ready, runs, n)
            if at is not None:
                assert at > ready or schedule.misfire == "coalesce", "a turn comes after the one before it"
                heapq.heappush(due, (at, n))

    def _turn(self, schedule: Schedule, ready: float, runs: list[int], n: int) -> float | None:
        acquired = self._acquired(ready)
        late = skipped_turn(schedule, ready=ready, acquired=acquired, streak=0)
        if late is not None:
            self._miss(schedule, late.missed)
            return late.at
        runs[n] += 1
        self.ran[schedule.name].append(acquired - self.start)
        found = next_run(
            schedule,
            ready=ready,
            acquired=acquired,
            ended=acquired + self.takes(schedule.name, acquired - self.start),
            outcome=Succeeded(None),
            streak=0,
            runs=runs[n],
            settings=SchedulerSettings(),
            random=lambda: 0.5,
        )
        self._miss(schedule, found.missed)
        return found.at

    def _acquired(self, ready: float) -> float:
        at = ready + self.lateness
        if self.away and self.start + self.away[0] <= at < self.start + self.away[1]:
            return self.start + self.away[1]
        return at

    def _miss(self, schedule: Schedule, count: int) -> None:
        self.missed[schedule.name] = self.missed.get(schedule.name, 0) + count

    def gaps(self, name: str) -> set[float]:
        return {round(b - a, 3) for a, b in itertools.pairwise(self.ran[name])}

    def shown(self, name: str) -> list[str]:
        """When it ran, by the clocks on the wall."""
        zone = ZoneInfo(BERLIN)
        return [f"{datetime.fromtimestamp(self.start + at, zone):%H:%M%z}" for at in self.ran[name]]


def begin(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()


def cron(name: str, expression: str, **options) -> Schedule:
    return Schedule(name=name, agent="a", trigger=Cron(expression=expression, zone=BERLIN), **options)


def every(name: str, seconds: float, **options) -> Schedule:
    return Schedule(name=name, agent="a", trigger=Every(seconds=seconds), **options)


@pytest.mark.parametrize("day", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_e21_two_hours_across_the_change_lose_no_turn_and_double_none(day):
    simulation = Simulation(begin(day))
    simulation.run(
        every("interval", 30),
        every("quick", 0.25),
        cron("ten-seconds", "*/10 * * * * *"),
        cron("minute", "* * * * *"),
        cron("half-hour", "*/30 * * * *"),
    )
    assert {name: len(ran) for name, ran in simulation.ran.items()} == {
        "interval": 240,
        "quick": 28_800,
        "ten-seconds": 720,
        "minute": 120,
        "half-hour": 4,
    }
    assert [simulation.gaps(name) for name in simulation.ran] == [{30}, {0.25}, {10}, {60}, {1800}]
    assert sum(simulation.missed.values()) == 0


@pytest.mark.parametrize(
    ("day", "named", "hourly"),
    [
        # The clocks go from 02:00 to 03:00: what was named within runs as soon as they have.
        (SPRING, ["03:00+0200"], ["01:00+0100", "03:00+0200"]),
        # The clocks show 02:00 to 03:00 twice: what is named within runs the first time.
        (AUTUMN, ["02:30+0200"], ["02:00+0200", "02:00+0100"]),
    ],
    ids=["spring", "autumn"],
)
def test_e22_a_named_time_runs_once_and_an_hourly_one_every_hour(day, named, hourly):
    simulation = Simulation(begin(day))
    simulation.run(cron("named", "30 2 * * *"), cron("hourly", "0 * * * *"))
    assert simulation.shown("named") == named
    assert simulation.shown("hourly") == hourly


@pytest.mark.parametrize("day", [SPRING, AUTUMN], ids=["spring", "autumn"])
@pytest.mark.parametrize(
    ("misfire", "most", "at_once", "missed"),
    [("coalesce", 10, 1, 10), ("skip", 10, 0, 11), ("catch_up", 10, 11, 0), ("catch_up", 4, 5, 6)],
)
def test_e23_after_ten_minutes_away_it_goes_on_as_the_misfire_policy_says(
    day, misfire, most, at_once, missed
):
    simulation = Simulation(begin(day), away=AWAY)
    simulation.run(cron("minute", "* * * * *", misfire=misfire, catch_up_most=most))
    ran = simulation.ran["minute"]
    assert ran[:30] == [60.0 * n for n in range(30)]
    assert ran[30 : 30 + at_once] == [AWAY[1]] * at_once
    assert ran[30 + at_once :] == [60.0 * n for n in range(41, 120)]
    assert simulation.missed["minute"] == missed


@pytest.mark.parametrize("day", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_e24_one_slow_run_shifts_what_its_policies_say_and_nothing_else(day):
    """A run of 95 s in the middle: three of its turns come meanwhile."""
    simulation = Simulation(begin(day), takes=lambda name, at: 95.0 if at == 3600.0 else 0.01)
    options = {
        "skip": {"misfire": "skip"},
        "buffer": {"misfire": "skip", "overlap": "buffer"},
        "coalesce": {},
    }
    simulation.run(*(cron(name, "*/30 * * * * *", **given) for name, given in options.items()))
    following = {name: min(at for at in ran if at > 3600) for name, ran in simulation.ran.items()}
    assert following == {"skip": 3720, "buffer": 3695, "coalesce": 3695}
    assert simulation.missed == {"skip": 3, "buffer": 2, "coalesce": 2}


@pytest.mark.parametrize("day", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_e25_a_scheduler_that_is_always_late_keeps_the_cadence_of_the_clocks(day):
    simulation = Simulation(begin(day), lateness=0.4)
    simulation.run(cron("ten-seconds", "*/10 * * * * *"), every("completion", 10))
    assert len(simulation.ran["ten-seconds"]) == 720
    assert simulation.gaps("ten-seconds") == {10.0}
    assert simulation.gaps("completion") == {10.4}, "an interval counts from when it was acquired"
