"""The circuit breaker, as a pure machine under a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from holdfast.config import BreakerSettings
from holdfast.errors import RedisUnavailable
from holdfast.redis.breaker import breaker_for_redis
from holdfast.reliability.breaker import Breaker, BreakerState

SETTINGS = BreakerSettings(failure_threshold=3, window_seconds=10, cooldown_seconds=5, half_open_probes=2)


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Bench:
    """A breaker, its clock, and the ways a call can end."""

    def __init__(self, settings: BreakerSettings = SETTINGS) -> None:
        self.hands = Hands()
        self.breaker = breaker_for_redis(settings, self.hands)

    def do(self, step: str) -> None:
        kind, _, amount = step.partition(" ")
        match kind:
            case "ok":
                with self.breaker.guard():
                    pass
            case "fail":
                self.end_with(RedisConnectionError("away"))
            case "wrong":
                self.end_with(ResponseError("WRONGTYPE"))
            case "cancelled":
                self.end_with(asyncio.CancelledError())
            case "refused":
                with pytest.raises(RedisUnavailable), self.breaker.guard():
                    pytest.fail("a call was made")
            case "wait":
                self.hands.time += float(amount)
            case "look":
                for _ in range(10):
                    assert self.breaker.state
                    assert self.breaker.retry_after >= 0

    def end_with(self, exc: BaseException) -> None:
        with pytest.raises(type(exc)), self.breaker.guard():
            raise exc


@pytest.mark.parametrize(
    ("story", "state"),
    [
        ("", BreakerState.CLOSED),
        ("fail, fail", BreakerState.CLOSED),
        ("fail, fail, fail", BreakerState.OPEN),
        ("fail, fail, fail, refused, refused", BreakerState.OPEN),
        ("fail, ok, fail, ok, fail", BreakerState.OPEN),
        ("fail, ok, wait 6, fail, ok, wait 6, fail", BreakerState.CLOSED),
        ("fail, wait 20, fail, wait 20, fail", BreakerState.OPEN),
        ("wrong, wrong, wrong, wrong", BreakerState.CLOSED),
        ("cancelled, cancelled, cancelled, cancelled", BreakerState.CLOSED),
        ("fail, fail, fail, wait 4.9, refused", BreakerState.OPEN),
        ("fail, fail, fail, wait 5", BreakerState.HALF_OPEN),
        ("fail, fail, fail, wait 5, look", BreakerState.HALF_OPEN),
        ("fail, fail, fail, wait 5, look, look, look, ok", BreakerState.CLOSED),
        ("fail, fail, fail, wait 5, wrong", BreakerState.CLOSED),
        ("fail, fail, fail, wait 5, fail", BreakerState.OPEN),
        ("fail, fail, fail, wait 5, fail, refused, wait 5, ok", BreakerState.CLOSED),
        ("fail, fail, fail, wait 5, cancelled, cancelled, cancelled", BreakerState.HALF_OPEN),
        ("fail, fail, fail, wait 5, ok, fail, fail", BreakerState.CLOSED),
        ("fail, fail, fail, wait 5, ok, fail, fail, fail", BreakerState.OPEN),
    ],
)
def test_a_story_ends_in_its_state(story: str, state: BreakerState):
    bench = Bench()
    for step in filter(None, story.split(", ")):
        bench.do(step)
    assert bench.breaker.state is state


def test_looking_consumes_no_probe():
    """The mistake (R14): health checks that ask "may I?" eat the probes, and the breaker never closes."""
    bench = Bench()
    for step in ("fail", "fail", "fail", "wait 5"):
        bench.do(step)
    for _ in range(100):
        assert bench.breaker.state is BreakerState.HALF_OPEN
        assert bench.breaker.retry_after == 0
    bench.do("ok")
    assert bench.breaker.state is BreakerState.CLOSED


def test_half_open_lets_only_its_probes_through():
    bench = Bench()
    for step in ("fail", "fail", "fail", "wait 5"):
        bench.do(step)
    with contextlib.ExitStack() as probes:
        probes.enter_context(bench.breaker.guard())
        probes.enter_context(bench.breaker.guard())
        bench.do("refused")
        assert bench.breaker.retry_after > 0
    assert bench.breaker.state is BreakerState.CLOSED


def test_a_probe_that_was_cancelled_is_given_back():
    """The mistake: a cancelled probe keeps its place, and after two of them nobody may ever ask again."""
    bench = Bench()
    for step in ("fail", "fail", "fail", "wait 5", *["cancelled"] * 10):
        bench.do(step)
    bench.do("ok")


def test_a_call_from_before_the_opening_does_not_close_it():
    bench = Bench()
    with bench.breaker.guard():
        for step in ("fail", "fail", "fail"):
            bench.do(step)
    assert bench.breaker.state is BreakerState.OPEN


def test_a_late_failure_does_not_reopen_what_a_probe_has_closed():
    bench = Bench()
    slow = bench.breaker.guard()
    for step in ("fail", "fail", "fail", "wait 5"):
        bench.do(step)
    slow.__enter__()
    bench.do("ok")
    with pytest.raises(RedisConnectionError):
        slow.__exit__(RedisConnectionError, RedisConnectionError("late"), None) or _raise()
    assert bench.breaker.state is BreakerState.CLOSED


def _raise() -> None:
    raise RedisConnectionError("late")


def test_the_refusal_says_when_to_come_back():
    bench = Bench()
    for step in ("fail", "fail", "fail", "wait 2"):
        bench.do(step)
    with pytest.raises(RedisUnavailable) as refused, bench.breaker.guard():
        pass
    assert refused.value.retry_after == pytest.approx(3)
    assert str(refused.value) == "Redis has failed 3 times; the next try is in 3.0 s (redis.breaker)."


class ReceiverDownError(Exception):
    """What a breaker around another server raises."""


def test_a_breaker_around_another_server_raises_that_servers_error():
    """Fails if the breaker of a webhook's receiver says that Redis has failed."""
    breaker = Breaker(
        SETTINGS,
        Hands(),
        is_failure=lambda exc: isinstance(exc, TimeoutError),
        refusal=lambda open_breaker: ReceiverDownError(f"down for {open_breaker.retry_after:g} s"),
    )
    for each in (breaker, breaker.twin()):
        for _ in range(3):
            with pytest.raises(TimeoutError), each.guard():
                raise TimeoutError
        with pytest.raises(ReceiverDownError, match=r"^down for 5 s$"), each.guard():
            pytest.fail("a call was made")
        assert each.cause == ""


STEPS = st.one_of(
    st.sampled_from(["ok", "fail", "wrong", "cancelled", "look"]),
    st.floats(0, 12).map(lambda seconds: f"wait {seconds}"),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 4), st.integers(1, 3))
def test_whatever_happens_it_recovers_and_never_calls_while_open(
    steps: list[str], threshold: int, probes: int
):
    bench = Bench(
        BreakerSettings(
            failure_threshold=threshold, window_seconds=10, cooldown_seconds=5, half_open_probes=probes
        )
    )
    failures = 0
    for step in steps:
        calls = step in ("ok", "fail", "wrong", "cancelled")
        before = bench.breaker.state
        if calls and before is BreakerState.OPEN:
            bench.do("refused")
            assert bench.breaker.state is BreakerState.OPEN
            continue
        bench.do(step)
        failures = failures + 1 if step == "fail" else failures
        if failures < threshold:
            assert bench.breaker.state is BreakerState.CLOSED
        if step == "fail" and before is BreakerState.HALF_OPEN:
            assert bench.breaker.state is BreakerState.OPEN
    bench.do("wait 5")
    bench.do("ok")
    assert bench.breaker.state is BreakerState.CLOSED


@given(st.lists(STEPS, max_size=40))
def test_looking_never_changes_the_story(steps: list[str]):
    watched, alone = Bench(), Bench()
    for step in steps:
        for bench in (watched, alone):
            if bench.breaker.state is BreakerState.OPEN and step in ("ok", "fail", "wrong", "cancelled"):
                bench.do("refused")
            else:
                bench.do(step)
        watched.do("look")
        assert watched.breaker.state is alone.breaker.state


def test_gauges_show_more_the_less_is_let_through():
    assert {state.value: state.level for state in BreakerState} == {"closed": 0, "half_open": 1, "open": 2}
