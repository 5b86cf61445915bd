"""O: how a scheduler is, and what its watchdogs bark at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.schedules.health import (
    PATIENCE,
    Cycle,
    Sample,
    ScheduleHealth,
    Signal,
    WatchdogReport,
    Watchdogs,
    health,
    problems,
    summary,
)

DOCUMENT_LINE = (
    "Scheduler health | health=HEALTHY | [agents registered=500 active=futures=45 scripts=11] "
    "[backlog ready=10 oldest_overdue=0s capacity_per_cycle=50] [permits 55/100 (55.0%)] "
    "[cleanup zombies_cleaned=2 orphans_cleaned=0] queue_depth=5"
)


def test_o1_the_summary_is_the_documents_line():
    sample = Sample(
        registered=500, running=45, scripts=11, ready=10, capacity_per_cycle=50, permits=100, free=55,
        zombies_cleaned=2, queue_depth=5, shortest_interval_seconds=30,
    )  # fmt: skip
    assert summary(sample) == DOCUMENT_LINE


def test_o2_without_a_limit_there_is_no_share_of_permits():
    assert "[permits unbounded]" in summary(Sample(running=3))


@pytest.mark.parametrize(
    ("sample", "state"),
    [
        (Sample(), ScheduleHealth.HEALTHY),
        (Sample(oldest_overdue_seconds=30, shortest_interval_seconds=30), ScheduleHealth.HEALTHY),
        (Sample(oldest_overdue_seconds=30.5, shortest_interval_seconds=30), ScheduleHealth.DEGRADED),
        (Sample(oldest_overdue_seconds=0.6, shortest_interval_seconds=0.5), ScheduleHealth.DEGRADED),
        (Sample(oldest_overdue_seconds=1e6), ScheduleHealth.HEALTHY),  # nothing enabled here: somebody else's
        (Sample(overlapping=1), ScheduleHealth.DEGRADED),
        (
            Sample(ready=10_000, shortest_interval_seconds=60, oldest_overdue_seconds=5),
            ScheduleHealth.HEALTHY,
        ),
    ],
)
def test_o3_it_is_degraded_when_late_by_an_interval_or_when_the_sets_overlap(sample, state):
    assert health(sample) is state
    assert bool(problems(sample)) is (state is ScheduleHealth.DEGRADED)
    assert f"health={state}" in summary(sample)


LEAK = Cycle(permits=100, free=0, running=0, backlog=5)
SKEW = Cycle(permits=100, free=95, running=5, backlog=50, acquired=9)
STUCK = Cycle(permits=100, free=50, running=50, backlog=5)
STALL = Cycle(permits=100, free=50, running=50, breaker_closed=False)
FINE = Cycle(permits=100, free=50, running=50, backlog=0, acquired=10)


@pytest.mark.parametrize(
    ("cycle", "signals"),
    [
        (FINE, set()),
        (LEAK, {Signal.PERMIT_LEAK_SUSPECT}),
        (Cycle(permits=1000, free=9, backlog=1), {Signal.PERMIT_LEAK_SUSPECT, Signal.ZERO_PROGRESS}),
        (Cycle(permits=1000, free=10, backlog=1, acquired=1), set()),
        (Cycle(permits=100, free=0, running=1, backlog=5), set()),
        (Cycle(permits=100, free=0, running=0, backlog=0), set()),
        (SKEW, {Signal.CAPACITY_SKEW}),
        (Cycle(permits=100, free=95, backlog=50, acquired=10), set()),
        (Cycle(permits=100, free=90, backlog=50, acquired=1), set()),
        (Cycle(permits=100, free=95, backlog=0, acquired=0), set()),
        (STUCK, {Signal.ZERO_PROGRESS}),
        (Cycle(permits=100, free=50, backlog=5, acquired=1), set()),
        (Cycle(permits=None, backlog=5), {Signal.ZERO_PROGRESS}),
        (STALL, {Signal.REDIS_STALL}),
        (Cycle(permits=100, free=50, backlog=5, breaker_closed=False), {Signal.REDIS_STALL}),
    ],
)
def test_o4_each_watchdog_barks_at_its_own_after_three_cycles(cycle, signals):
    dogs = Watchdogs()
    assert [dogs.look(cycle).now for _ in range(PATIENCE - 1)] == [frozenset()] * (PATIENCE - 1)
    assert dogs.look(cycle) == WatchdogReport(frozenset(signals), frozenset(signals), frozenset())
    assert dogs.look(cycle) == WatchdogReport(frozenset(signals))
    assert dogs.look(FINE) == WatchdogReport(ended=frozenset(signals))


def test_o5_a_good_cycle_in_between_starts_the_count_again():
    dogs = Watchdogs()
    for cycle in (LEAK, LEAK, FINE, LEAK, LEAK):
        assert not dogs.look(cycle).now
    assert dogs.look(LEAK).began == {Signal.PERMIT_LEAK_SUSPECT}


@given(cycles=st.lists(st.sampled_from([FINE, LEAK, SKEW, STUCK, STALL]), max_size=40))
def test_o6_who_barks_is_told_by_the_last_three_cycles_alone(cycles):
    dogs, barking = Watchdogs(), WatchdogReport()
    known: set[Signal] = set()
    for cycle in cycles:
        barking = dogs.look(cycle)
        known = (known | barking.began) - barking.ended
        assert known == barking.now
    fresh, told = Watchdogs(), WatchdogReport()
    for cycle in cycles[-PATIENCE:]:
        told = fresh.look(cycle)
    assert barking.now == told.now
