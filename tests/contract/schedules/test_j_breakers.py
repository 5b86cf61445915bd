"""J: the two circuit breakers, on a clock that the test moves."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from holdfast.config import BreakerSettings, CircuitBreakerSettings
from holdfast.errors import RedisUnavailable
from holdfast.redis.breaker import AWAY
from holdfast.reliability.breaker import Breaker, BreakerState
from holdfast.schedules.breakers import (
    PROBES,
    acquisition_breaker,
    acquisition_policy,
    redis_breaker,
    redis_policy,
)

DEFAULT = CircuitBreakerSettings()


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def fail(breaker: Breaker, times: int = 1, exc: Exception | None = None) -> None:
    for _ in range(times):
        with pytest.raises((RedisConnectionError, ResponseError)), breaker.guard():
            raise exc or RedisConnectionError("away")


def succeed(breaker: Breaker) -> None:
    with breaker.guard():
        pass


def refused(breaker: Breaker) -> bool:
    try:
        succeed(breaker)
    except RedisUnavailable:
        return True
    return False


def opened(breaker: Breaker, times: int) -> Breaker:
    fail(breaker, times)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_j1_the_breaker_of_acquisition_has_the_numbers_of_the_settings():
    assert acquisition_policy(DEFAULT) == BreakerSettings(
        failure_threshold=5,
        window_seconds=10,
        cooldown_seconds=30,
        half_open_probes=PROBES,
        half_open_seconds=5,
    )


@pytest.mark.parametrize(
    ("given", "threshold", "window", "cooldown", "half_open"),
    [
        ({}, 3, 5, 21, 3),
        ({"failure_threshold": 9, "failure_window_ms": 2000}, 7, 2, 21, 3),
        ({"failure_threshold": 1, "cooldown_ms": 1000}, 3, 5, 0.7, 3),
        ({"failure_threshold": 6, "half_open_duration_ms": 10_000}, 4, 5, 21, 6),
    ],
)
def test_j2_the_breaker_of_redis_is_quicker(given, threshold, window, cooldown, half_open):
    policy = redis_policy(CircuitBreakerSettings(**given))
    assert (policy.failure_threshold, policy.window_seconds) == (threshold, window)
    assert policy.cooldown_seconds == pytest.approx(cooldown)
    assert policy.half_open_seconds == pytest.approx(half_open)


def test_j3_it_trips_on_failures_within_the_window():
    hands = Hands()
    breaker = redis_breaker(DEFAULT, hands)
    for _ in range(2):
        fail(breaker)
        succeed(breaker)
        hands.time += 2
    fail(breaker)
    assert breaker.state is BreakerState.OPEN
    scattered = redis_breaker(DEFAULT, hands)
    for _ in range(10):
        fail(scattered)
        succeed(scattered)
        hands.time += 2.6
    assert scattered.state is BreakerState.CLOSED


def test_j4_it_trips_on_failures_in_a_row_however_far_apart():
    hands = Hands()
    breaker = acquisition_breaker(DEFAULT, hands)
    for _ in range(5):
        assert breaker.state is BreakerState.CLOSED
        fail(breaker)
        hands.time += 20
    assert breaker.state is BreakerState.OPEN


def test_j5_whatever_goes_wrong_counts_for_acquisition_but_only_absence_for_redis():
    acquisition, redis = acquisition_breaker(DEFAULT, Hands()), redis_breaker(DEFAULT, Hands())
    fail(acquisition, 5, ResponseError("a broken script"))
    fail(redis, 5, ResponseError("a broken script"))
    assert (acquisition.state, redis.state) == (BreakerState.OPEN, BreakerState.CLOSED)


def test_j6_one_success_closes_and_one_failure_opens_again():
    hands = Hands()
    breaker = opened(acquisition_breaker(DEFAULT, hands), 5)
    hands.time += 29.9
    assert refused(breaker)
    hands.time += 0.1
    fail(breaker)
    assert breaker.state is BreakerState.OPEN
    hands.time += 30
    succeed(breaker)
    assert breaker.state is BreakerState.CLOSED
    assert (breaker.trips, breaker.blocked, breaker.recoveries) == (2, 1, 1)


def test_j7_a_few_probes_at_a_time_are_let_through():
    hands = Hands()
    breaker = opened(acquisition_breaker(DEFAULT, hands), 5)
    hands.time += 30
    with contextlib.ExitStack() as probes:
        for _ in range(PROBES):
            probes.enter_context(breaker.guard())
        assert refused(breaker)


def test_j8_probes_that_stay_silent_open_it_again_and_later_others_are_tried():
    hands = Hands()
    breaker = opened(acquisition_breaker(DEFAULT, hands), 5)
    hands.time += 30
    silent = contextlib.ExitStack()
    for _ in range(PROBES):
        silent.enter_context(breaker.guard())
    hands.time += 5
    assert breaker.state is BreakerState.OPEN
    assert breaker.retry_after == pytest.approx(30)
    assert refused(breaker)
    hands.time += 30
    assert (breaker.state, breaker.retry_after) == (BreakerState.HALF_OPEN, 0)
    succeed(breaker)
    assert breaker.state is BreakerState.CLOSED
    silent.close()  # an answer from before the change says nothing about now
    assert breaker.state is BreakerState.CLOSED


def test_j9_half_open_lasts_until_somebody_tries():
    hands = Hands()
    breaker = opened(acquisition_breaker(DEFAULT, hands), 5)
    hands.time += 3600
    assert breaker.state is BreakerState.HALF_OPEN
    succeed(breaker)
    assert breaker.state is BreakerState.CLOSED


def test_j10_switched_off_it_never_opens():
    off = CircuitBreakerSettings(enabled=False)
    for breaker in (acquisition_breaker(off), redis_breaker(off)):
        fail(breaker, 50)
        assert breaker.state is BreakerState.CLOSED


class Eaten(Breaker):
    """The mistake (R14): asking whether a call may be made uses up a probe."""

    @property
    def state(self) -> BreakerState:
        found = super().state
        if found is BreakerState.HALF_OPEN:
            self._probing += 1
        return found


def check_that_looking_is_free(breaker: Breaker, hands: Hands) -> None:
    fail(breaker, 5)
    hands.time += 30
    for _ in range(100):  # cycles with nothing to do
        assert breaker.state is BreakerState.HALF_OPEN
        assert breaker.retry_after == 0
    succeed(breaker)
    assert breaker.state is BreakerState.CLOSED


def test_r14_checks_without_a_call_consume_no_probe():
    hands = Hands()
    check_that_looking_is_free(acquisition_breaker(DEFAULT, hands), hands)


def test_r14_the_same_check_finds_the_mistake():
    hands = Hands()
    eaten = Eaten(
        acquisition_policy(DEFAULT),
        hands,
        is_failure=lambda _: True,
        refusal=lambda _: RedisUnavailable("open"),
    )
    with pytest.raises((AssertionError, RedisUnavailable)):
        check_that_looking_is_free(eaten, hands)


STEPS = st.lists(
    st.sampled_from(["fail", "ok", "look"]) | st.floats(0, 40).map(lambda s: f"wait {s}"), max_size=60
)


@settings(deadline=None)
@given(steps=STEPS)
def test_j11_whatever_happens_it_recovers_once_redis_is_back(steps):
    hands = Hands()
    breaker = redis_breaker(DEFAULT, hands)
    for step in steps:
        match step.split():
            case ["wait", seconds]:
                hands.time += float(seconds)
            case ["look"]:
                assert breaker.state in BreakerState
            case [word]:
                with contextlib.suppress(RedisUnavailable, RedisConnectionError), breaker.guard():
                    if word == "fail":
                        raise RedisConnectionError("away")
    hands.time += 21.001
    succeed(breaker)
    assert breaker.state is BreakerState.CLOSED


def test_j20_a_redis_that_answers_ends_the_cooldown_and_probes_decide():
    hands = Hands()
    breaker = opened(acquisition_breaker(DEFAULT, hands), DEFAULT.failure_threshold)
    breaker.end_cooldown()
    assert breaker.state is BreakerState.HALF_OPEN
    fail(breaker)
    assert breaker.state is BreakerState.OPEN
    breaker.end_cooldown()
    succeed(breaker)
    assert breaker.state is BreakerState.CLOSED
    breaker.end_cooldown()
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize(
    ("exc", "away"),
    [
        (RedisConnectionError("away"), True),
        (ResponseError("WRONGTYPE"), False),
        (ReadOnlyError("a replica"), False),
        (OutOfMemoryError("full"), False),
    ],
)
def test_j21_it_knows_whether_the_absence_of_redis_has_opened_it(exc, away):
    breaker = acquisition_breaker(DEFAULT, Hands())
    assert breaker.cause == ""
    fail(breaker, DEFAULT.failure_threshold, exc)
    assert (breaker.cause == AWAY) is away
