"""The operator's decisions: 0 to 1 and N to 0, the cooldown, activation, fallback; and the local autoscaler."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.scaling import ScalingSettings
from holdfast_simulator.rules import Fixed, Keda, Local, Scaler
from holdfast_simulator.spec import (
    Behavior,
    Direction,
    Fallback,
    FallbackBehavior,
    KedaSpec,
    Trigger,
)

QUICK = Behavior(scale_down=Direction(stabilization_window_seconds=0))


def spec(*, target: float = 3, activation: float = 0, push: bool = False, **given) -> KedaSpec:
    trigger = Trigger(target=target, activation=activation, push=push)
    return KedaSpec(**{"polling_interval": 5, "cooldown_period": 60, "triggers": (trigger,), **given})


def drive(scaler: Scaler, demand, until: float, replicas: int | None = None) -> dict[float, int]:
    """Ask whenever it wants to be asked; returns every change with its time."""
    replicas = scaler.first if replicas is None else replicas
    changes = {0.0: replicas}
    while scaler.next_at <= until:
        now = scaler.next_at
        value = demand(now)
        wanted = scaler.step(now, value if isinstance(value, list) else [value], replicas)
        if wanted != replicas:
            changes[now] = replicas = wanted
    return changes


def test_work_wakes_it_at_the_next_poll_and_the_hpa_does_the_rest():
    changes = drive(Keda(spec(behavior=QUICK)), lambda now: 30 if now > 1 else 0, 60)
    assert changes == {0.0: 0, 5.0: 1, 15.0: 5, 30.0: 10}


def test_activation_is_strictly_more_than_its_threshold():
    assert drive(Keda(spec(activation=4)), lambda now: 4, 30) == {0.0: 0}
    assert drive(Keda(spec(activation=4, target=9)), lambda now: 4.01, 30) == {0.0: 1}


def test_the_hpa_goes_up_even_below_the_activation_but_the_operator_then_ends_all():
    keda = Keda(spec(activation=20, cooldown_period=40, behavior=QUICK))
    changes = drive(keda, lambda now: 21 if now < 20 else 18, 100)
    assert changes == {0.0: 5, 15.0: 7, 30.0: 6, 60.0: 0}


def test_the_last_step_to_zero_waits_for_the_cooldown_and_jumps():
    # Without demand the HPA would keep one; a window keeps it at ten, and the operator takes all ten.
    slow = Behavior(scale_down=Direction(stabilization_window_seconds=600))
    changes = drive(Keda(spec(behavior=slow)), lambda now: 30 if now <= 100 else 0, 300)
    assert changes == {0.0: 5, 15.0: 10, 165.0: 0}  # last active at 100, so not before 160 is over


def test_the_cooldown_delays_no_other_step_down():
    keda = Keda(spec(min_replica_count=1, cooldown_period=100_000, behavior=QUICK))
    changes = drive(keda, lambda now: 30 if now < 60 else 0, 90)
    assert changes[60.0] == 1


def test_a_minimum_is_kept_and_reached_again():
    keda = Keda(spec(min_replica_count=2, behavior=QUICK))
    assert drive(keda, lambda now: 0, 400, replicas=1) == {0.0: 2}
    assert Keda(spec(min_replica_count=2)).first == 2


def test_idle_replicas_go_to_the_minimum_with_work_and_back_without():
    keda = Keda(spec(min_replica_count=3, idle_replica_count=0, behavior=QUICK))
    changes = drive(keda, lambda now: 1 if 10 <= now <= 20 else 0, 200)
    assert changes == {0.0: 0, 10.0: 3, 85.0: 0}


def test_a_push_wakes_at_once_and_a_poll_does_not():
    assert Keda(spec(push=True)).wake(1.0, [1], 0) == 1
    assert Keda(spec(push=True, min_replica_count=3, idle_replica_count=0)).wake(1.0, [1], 0) == 3
    assert Keda(spec()).wake(1.0, [1], 0) == 0


def test_a_push_wakes_only_above_its_own_activation():
    assert Keda(spec(push=True, activation=5)).wake(1.0, [5], 0) == 0
    assert Keda(spec(push=True, activation=5)).wake(1.0, [5.01], 0) == 1
    polled_beside = (Trigger(target=3), Trigger(target=3, activation=5, push=True))
    assert Keda(spec(triggers=polled_beside)).wake(1.0, [3, 3], 0) == 0


def test_a_scaler_that_can_not_ask_pushes_nothing():
    assert Keda(spec(push=True)).wake(1.0, [None], 0) == 0
    assert Local(ScalingSettings(max_workers=8), slots=3).wake(1.0, [None], 0) == 0
    assert Local(ScalingSettings(max_workers=8), slots=3).wake(1.0, [1], 0) == 1


def test_several_triggers_count_by_the_greatest():
    two = (Trigger(target=3), Trigger(target=10))
    keda = Keda(spec(triggers=two, behavior=QUICK))
    assert list(drive(keda, lambda now: [6, 100], 40).values()) == [5, 10]


# -- a metric that fails


def failing(now: float) -> float | None:
    return 30 if now < 100 else None


def test_without_a_fallback_a_silent_metric_changes_nothing():
    changes = drive(Keda(spec(behavior=QUICK)), failing, 300)
    assert changes == {0.0: 5, 15.0: 10}


def test_a_fallback_to_zero_ends_all_after_the_cooldown():
    changes = drive(
        Keda(spec(fallback=Fallback(failure_threshold=2, replicas=0), behavior=QUICK)), failing, 300
    )
    assert changes == {0.0: 5, 15.0: 10, 105.0: 1, 160.0: 0}


def test_the_fallback_keeps_what_there_is_if_that_is_more():
    fallback = Fallback(failure_threshold=2, replicas=4, behavior=FallbackBehavior.IF_HIGHER)
    changes = drive(Keda(spec(fallback=fallback, behavior=QUICK)), failing, 2000)
    assert changes == {0.0: 5, 15.0: 10}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [(FallbackBehavior.STATIC, 4), (FallbackBehavior.IF_LOWER, 4), (FallbackBehavior.CURRENT, 10)],
)
def test_the_fallback_counts_once_the_metric_failed_more_often_than_its_threshold(kind, wanted):
    fallback = Fallback(failure_threshold=2, replicas=4, behavior=kind)
    changes = drive(Keda(spec(fallback=fallback, behavior=QUICK)), failing, 400)
    # The operator's polls and the HPA's questions count: it has failed three times when the HPA asks at 105.
    assert changes == ({0.0: 5, 15.0: 10, 105.0: 4} if wanted == 4 else {0.0: 5, 15.0: 10})


def silent_from_20(now: float) -> float | None:
    return 0 if now < 20 else None


def test_the_fallback_wakes_from_zero_whether_there_is_work_or_not():
    """KEDA 2.19 and later; seen with 2.20.2: an idle system has one worker 26 s after the api has gone."""
    fallback = Fallback(failure_threshold=3, replicas=1, behavior=FallbackBehavior.IF_HIGHER)
    assert drive(Keda(spec(fallback=fallback)), silent_from_20, 300) == {0.0: 0, 35.0: 1}
    more = Fallback(failure_threshold=3, replicas=4, behavior=FallbackBehavior.IF_HIGHER)
    assert drive(Keda(spec(fallback=more)), silent_from_20, 300) == {0.0: 0, 35.0: 1, 45.0: 4}


def test_a_fallback_to_zero_wakes_nobody():
    changes = drive(Keda(spec(fallback=Fallback(failure_threshold=3, replicas=0))), silent_from_20, 300)
    assert changes == {0.0: 0}


def test_a_push_scaler_that_can_not_ask_redis_is_a_failure_as_any_other():
    """Seen with KEDA 2.20.2: Redis away and the scalers up, the fallback counts after 9.8 s."""
    fallback = Fallback(failure_threshold=2, replicas=12, behavior=FallbackBehavior.IF_HIGHER)
    polled, pushed = (Keda(spec(push=push, fallback=fallback, behavior=QUICK)) for push in (False, True))
    changes = drive(pushed, failing, 300)
    assert changes == drive(polled, failing, 300) == {0.0: 5, 15.0: 10, 105.0: 12}


def test_an_answer_in_between_begins_the_count_anew():
    fallback = Fallback(failure_threshold=2, replicas=3)
    flaky = {105.0: None, 120.0: 30, 135.0: None}
    keda = Keda(spec(fallback=fallback, behavior=QUICK))
    changes = drive(keda, lambda now: flaky.get(now, 30), 200)
    assert changes == {0.0: 5, 15.0: 10}


# -- time


def test_one_that_was_late_goes_on_from_then():
    keda = Keda(spec())
    assert keda.step(0, [9], 0) == 3
    assert keda.next_at == 5
    keda.step(47, [9], 3)
    assert keda.next_at == 52
    assert keda.step(50, [0], 3) == 3  # nobody's turn


def test_a_step_before_its_time_changes_nothing():
    keda = Keda(spec(), started=100)
    assert keda.step(50, [99], 0) == 0


@given(
    demands=st.lists(st.none() | st.floats(0, 500), min_size=1, max_size=80),
    least=st.integers(0, 5),
    span=st.integers(1, 40),
)
def test_keda_never_goes_above_max_nor_below_min(demands, least, span):
    fallback = Fallback(failure_threshold=1, replicas=7, behavior=FallbackBehavior.IF_HIGHER)
    keda = Keda(spec(min_replica_count=least, max_replica_count=least + span, fallback=fallback))
    seen = drive(keda, lambda now: demands[int(now / 5) % len(demands)], 5 * len(demands))
    assert all(least <= replicas <= least + span for replicas in seen.values())


# -- the others


def test_the_local_autoscaler_is_quick_up_and_slow_down():
    scaling = ScalingSettings(max_workers=8, down_seconds=30)
    changes = drive(Local(scaling, slots=3), lambda now: 12 if 5 <= now < 10 else 0, 60)
    assert changes == {0.0: 0, 5.0: 4, 40.0: 0}  # wanted last at 9: until 39 that counts


def test_the_local_autoscaler_changes_nothing_without_an_answer():
    scaling = ScalingSettings(max_workers=8, down_seconds=1)
    assert drive(Local(scaling, slots=3), lambda now: 12 if now < 5 else None, 60) == {0.0: 4}


def test_fixed_is_fixed():
    fixed = Fixed(4)
    assert (fixed.first, fixed.step(0, [], 4), fixed.wake(0, [], 4)) == (4, 4, 4)
