"""From depth to workers: the weight of age, the demand, the number wanted, and its damper."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import QueueSettings
from holdfast.config.scaling import ScalingSettings
from holdfast.runs.queue import Depth
from holdfast.scaling.depth import need_of
from holdfast.scaling.policy import Damper, demand, slots_of, weight, workers_wanted

SCALING = ScalingSettings(target_wait_seconds=30, age_weight=3, max_workers=8)

counts = st.integers(0, 10_000)
ages = st.floats(0, 1e6)
scalings = st.builds(
    ScalingSettings,
    target_wait_seconds=st.floats(0.1, 1e4),
    age_weight=st.floats(1, 100),
    min_workers=st.integers(0, 5),
    max_workers=st.integers(5, 500),
)


def depth(undelivered=0, pending=0, due=0, oldest=0.0, *, paused=False) -> Depth:
    return Depth(undelivered, pending, 7, due, 3, oldest, 1, paused)


@pytest.mark.parametrize(("age", "expected"), [(0, 1), (30, 1), (45, 2), (60, 3), (1e9, 3)])
def test_age_begins_to_weigh_at_the_target_and_most_at_twice_of_it(age, expected):
    assert weight(age, SCALING) == pytest.approx(expected)


@given(ages, ages, scalings)
def test_weight_only_grows_and_stays_within_its_cap(one, other, scaling):
    young, old = sorted((one, other))
    assert 1 <= weight(young, scaling) <= weight(old, scaling) <= scaling.age_weight + 1e-9


@given(counts, counts, counts, ages, scalings, st.integers(1, 100))
def test_demand_is_zero_only_when_nothing_is_left_and_no_worker_is_wanted_without_a_run(
    undelivered, pending, due, age, scaling, slots
):
    wanting = demand(depth(undelivered, pending, due, age), scaling, slots)
    runs = undelivered + pending + due
    assert (wanting == 0) == (runs == 0)
    assert runs <= wanting < runs + slots
    assert math.ceil(wanting / slots) == math.ceil(runs / slots)


@pytest.mark.parametrize(("runs", "workers"), [(24, 8), (6, 2), (12, 4), (200, 67)])
def test_old_runs_bring_no_worker_that_none_of_them_can_use(runs, workers):
    """Pods that start slowly let runs get old. Fails if each then counts twice: 16 workers came for 24 runs."""
    scaling = ScalingSettings(max_workers=1000)
    assert workers_wanted(demand(depth(runs, oldest=1e6), scaling, 3), 3, scaling) == workers


def test_an_old_run_fills_its_worker_so_that_the_hpa_does_not_tolerate_its_wait():
    """15 slots and 16 runs are a ratio of 1.07, which the HPA lets be; with the weight it is 1.2."""
    assert demand(depth(1, 15), SCALING, 3) == 16
    assert demand(depth(1, 15, oldest=1e6), SCALING, 3) == 18


def test_work_in_flight_is_never_weighted():
    assert demand(depth(pending=4, due=1, oldest=1e6), SCALING, 3) == 5


def test_nobody_is_wanted_for_what_waits_in_a_paused_queue():
    assert demand(depth(100, 3, 5, 1e6, paused=True), SCALING, 3) == 3


@pytest.mark.parametrize(
    ("wanting", "slots", "expected"),
    [(0, 3, 0), (0.001, 3, 1), (3, 3, 1), (3.001, 3, 2), (3 * (0.1 + 0.2), 0.3 * 3, 1), (1e9, 3, 8)],
)
def test_workers_are_as_many_as_their_slots_hold_the_demand(wanting, slots, expected):
    assert workers_wanted(wanting, slots, SCALING) == expected


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.integers(1, 100), scalings)
def test_more_demand_never_wants_fewer_and_bounds_hold(one, other, slots, scaling):
    less, more = sorted((one, other))
    few, many = (workers_wanted(each, slots, scaling) for each in (less, more))
    assert scaling.min_workers <= few <= many <= scaling.max_workers


@pytest.mark.parametrize(("least", "expected"), [(0, 1), (3, 3)])
def test_a_type_that_is_not_scaled_has_as_many_as_its_min_whatever_waits(least, expected):
    fixed = ScalingSettings(enabled=False, min_workers=least)
    assert [workers_wanted(wanting, 3, fixed) for wanting in (0, 5, 1e6)] == [expected] * 3


def test_a_worker_holds_no_more_than_max_pending():
    assert slots_of(QueueSettings(slots=10, max_pending=4)) == 4


def test_a_need_says_what_it_is_made_of():
    need = need_of(QueueSettings(slots=2, scaling=SCALING), depth(4, 2, 1, 45))
    assert (need.depth, need.undelivered, need.in_flight, need.due, need.wanted) == (8, 4, 2, 1, 4)


def test_the_damper_goes_up_at_once_and_down_after_a_while():
    damper = Damper(60)
    told = [damper.follow(now, wanted) for now, wanted in [(0, 2), (1, 5), (30, 1), (61, 1), (61.1, 1)]]
    assert told == [2, 5, 5, 5, 1]


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(0, 20)), min_size=1), st.floats(0, 100))
def test_the_damper_holds_the_most_that_was_wanted_within_its_window(steps, window):
    damper, now, seen = Damper(window), 0.0, []
    for pause, wanted in steps:
        now += pause
        seen.append((now, wanted))
        assert damper.follow(now, wanted) == max(each for at, each in seen if at >= now - window)
