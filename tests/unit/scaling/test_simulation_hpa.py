"""The HPA's decisions, computed by hand from its rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_simulator.hpa import Hpa, greatest, proposal
from holdfast_simulator.spec import Behavior, Direction, Limit, Select

KUBERNETES = Behavior()  # written down, but all as it is by default


@pytest.mark.parametrize(
    ("total", "target", "replicas", "wanted"),
    [
        (100, 10, 9, 10),  # 1.11: more than 10 % off
        (99, 10, 9, 9),  # 1.1: just within
        (90, 10, 10, 10),  # 0.9: just within
        (89, 10, 10, 9),  # 0.89
        (7, 3, 1, 3),  # ceil(2.33)
        (6, 3, 1, 2),
        (6.001, 3, 1, 3),
        (0.5, 3, 1, 1),
        (0, 3, 5, 0),  # min comes later
        (3, 3, 1, 1),
        (3.3, 3, 1, 1),  # 1.1 of one pod: stays
        (3.31, 3, 1, 2),
        (1000, 1, 1000, 1000),
        (1101, 1, 1000, 1101),
    ],
)
def test_a_metric_asks_for_its_total_by_its_target_unless_that_is_within_tolerance(
    total, target, replicas, wanted
):
    assert proposal(total, target, replicas) == wanted


def test_a_lag_of_minus_one_asks_for_everything():
    assert proposal(-1, 5, 2, most=40) == 40


def test_of_several_metrics_the_greatest_counts_never_the_sum():
    assert greatest([20, 30], [10, 5], 1) == 6
    assert greatest([30, 30], [10, 10], 1) == 3


def test_a_metric_that_failed_lets_others_add_but_not_take():
    assert greatest([None, 50], [10, 10], 3) == 5
    assert greatest([None, 10], [10, 10], 3) is None
    assert greatest([None], [10], 3) is None


def steps(hpa: Hpa, replicas: int, values: list[float | None], every: float = 15.0) -> list[int]:
    seen = []
    for at, value in enumerate(values):
        replicas = hpa.sync(at * every, [value], replicas)
        seen.append(replicas)
    return seen


def test_up_doubles_or_adds_four_whichever_is_more():
    hpa = Hpa([1], least=1, most=100, behavior=KUBERNETES)
    assert steps(hpa, 1, [100] * 7) == [5, 10, 20, 40, 80, 100, 100]


def test_without_any_behaviour_the_old_rule_holds_which_takes_one_to_four():
    assert steps(Hpa([1], least=1, most=100), 1, [100] * 7) == [4, 8, 16, 32, 64, 100, 100]


def test_down_waits_until_the_window_has_seen_nothing_higher():
    hpa = Hpa([1], least=1, most=100, behavior=KUBERNETES)
    seen = steps(hpa, 10, [10, *[2] * 21])
    assert seen[:20] == [10] * 20  # the 10 of second 0 is in the window until second 300
    assert seen[20:] == [2, 2]


def test_a_peak_within_the_window_keeps_what_it_wanted():
    hpa = Hpa([1], least=1, most=100, behavior=KUBERNETES)
    seen = steps(hpa, 10, [10, *[2] * 9, 6, *[2] * 21])
    assert seen[19] == 10
    assert seen[20:30] == [6] * 10  # second 300 to 435: the peak of second 150 counts
    assert seen[30] == 2


def behavior(*, up: Direction | None = None, down: Direction | None = None) -> Behavior:
    return Behavior(scale_up=up or Direction(), scale_down=down or Direction(stabilization_window_seconds=0))


def pods(value: int, period: int) -> Limit:
    return Limit(type="Pods", value=value, period_seconds=period)


def percent(value: int, period: int) -> Limit:
    return Limit(type="Percent", value=value, period_seconds=period)


@pytest.mark.parametrize(
    ("rules", "first", "demand", "seen"),
    [
        # Half a minute: 16 -> 8 at once, then 4 when the minute is over.
        (behavior(down=Direction(stabilization_window_seconds=0, policies=(percent(50, 60),))), 16, 1,
         [8, 8, 8, 8, 4, 4, 4, 4, 2]),
        # Two pods every half minute.
        (behavior(down=Direction(stabilization_window_seconds=0, policies=(pods(2, 30),))), 9, 1,
         [7, 7, 5, 5, 3, 3, 1]),
        # Down by the limit that takes more, or less.
        (behavior(down=Direction(stabilization_window_seconds=0, policies=(pods(2, 15), percent(50, 15)))),
         20, 1, [10, 5, 2, 1]),
        (behavior(down=Direction(stabilization_window_seconds=0, select_policy=Select.MIN,
                                 policies=(pods(2, 15), percent(50, 15)))), 9, 1, [7, 5, 3, 1]),
        # Never down.
        (behavior(down=Direction(select_policy=Select.DISABLED)), 9, 1, [9, 9, 9]),
        # Up by the limit that adds less, rounded up.
        (behavior(up=Direction(select_policy=Select.MIN, policies=(pods(2, 15), percent(10, 15)))), 11, 99,
         [13, 15, 17]),
        (behavior(up=Direction(policies=(percent(10, 15),))), 5, 99, [6, 7, 8]),
        # Never up.
        (behavior(up=Direction(select_policy=Select.DISABLED)), 3, 99, [3, 3]),
        # A period that is longer than a sync counts what was added in it.
        (behavior(up=Direction(policies=(pods(3, 60),))), 1, 99, [4, 4, 4, 4, 7]),
    ],
)  # fmt: skip
def test_limits_count_what_changed_in_their_period(rules, first, demand, seen):
    assert steps(Hpa([1], least=1, most=100, behavior=rules), first, [demand] * len(seen)) == seen


def test_a_window_for_up_takes_the_least_that_was_wanted_in_it():
    calm = behavior(up=Direction(stabilization_window_seconds=60))
    hpa = Hpa([1], least=1, most=100, behavior=calm)
    assert steps(hpa, 2, [2, 50, 2, 2, 2]) == [2] * 5  # one spike does nothing
    assert steps(Hpa([1], least=1, most=100, behavior=calm), 2, [2, 6, 6, 6, 6, 6]) == [2, 2, 2, 2, 6, 6]


def test_a_tolerance_of_its_own_replaces_the_ten_percent():
    wide = Behavior(scale_up=Direction(tolerance=0.5), scale_down=Direction(tolerance=0.0))
    assert steps(Hpa([10], least=1, most=9, behavior=wide), 2, [30]) == [2]
    assert steps(Hpa([10], least=1, most=9, behavior=wide), 2, [31]) == [4]


def test_it_stays_between_min_and_max_and_out_of_zero():
    hpa = Hpa([1], least=2, most=5, behavior=KUBERNETES)
    assert hpa.sync(0, [100], 0) == 0
    assert hpa.sync(15, [100], 9) == 5
    assert hpa.sync(30, [0], 1) == 2


DEMANDS = st.lists(st.floats(0, 1000), min_size=1, max_size=60)


@given(demands=DEMANDS, first=st.integers(1, 50), least=st.integers(1, 5), span=st.integers(0, 60))
def test_it_never_leaves_its_bounds(demands, first, least, span):
    hpa = Hpa([3], least=least, most=least + span, behavior=KUBERNETES)
    assert all(least <= n <= least + span for n in steps(hpa, first, demands)[:])


@given(past=DEMANDS, first=st.integers(1, 50), less=st.floats(0, 1000), more=st.floats(0, 1000))
def test_more_demand_never_wants_fewer(past, first, less, more):
    answers = []
    for last in sorted((less, more)):
        hpa = Hpa([3], least=1, most=80, behavior=KUBERNETES)
        answers.append(steps(hpa, first, [*past, last])[-1])
    assert answers == sorted(answers)
