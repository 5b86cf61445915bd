"""H: from what an agent raised to the wait before its schedule's next run."""

from __future__ import annotations

import urllib.error
from email.message import Message

import httpx
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from holdfast.agents import failures
from holdfast.agents.failures import FailureClass, classify
from holdfast.agents.outcome import Failed, Succeeded
from holdfast.config.scheduling import (
    FailureBackoffSettings,
    JitterSettings,
    SchedulerSettings,
    ThrottledSettings,
)
from holdfast.errors import GiveUp, RetryLater
from holdfast.schedules import Cron, Every, Schedule
from holdfast.schedules.cadence import Next, next_run

NOW = 1_775_000_000.0
SCHEDULE = Schedule(name="s", agent="a", trigger=Every(seconds=60), error_seconds=45)
EVEN = JitterSettings(failure_backoff_ratio=0)
ON = SchedulerSettings(
    jitter=EVEN, failure_backoff=FailureBackoffSettings(enabled=True, max_immediate_retries=2)
)
OFF = SchedulerSettings(jitter=EVEN)


def http(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://example")
    return httpx.HTTPStatusError(
        "x", request=request, response=httpx.Response(status, headers=headers, request=request)
    )


class AccessDenied(Exception):
    """What a cloud's library raises."""


class ClientError(Exception):
    """What botocore raises: the status is deep inside."""

    def __init__(self, status: int) -> None:
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class StatusError(OSError):
    """What requests and urllib raise: a status, in an error of input and output."""

    def __init__(self, status: int) -> None:
        self.code = status


def caused(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


def after(
    exc: Exception,
    streak: int = 1,
    settings: SchedulerSettings = ON,
    schedule: Schedule = SCHEDULE,
    dice: float = 0.5,
) -> Next:
    outcome = Failed(classify(exc, now=lambda: NOW))
    return next_run(
        schedule,
        ready=NOW,
        acquired=NOW,
        ended=NOW,
        outcome=outcome,
        streak=streak - 1,
        runs=1,
        settings=settings,
        random=lambda: dice,
    )


def wait(exc: Exception, streak: int = 1, **given) -> float:
    at = after(exc, streak, **given).at
    assert at is not None
    return round(at - NOW, 3)


FORBIDDEN, THROTTLED, TRANSIENT, SERVER, UNKNOWN = (
    FailureClass.FORBIDDEN,
    FailureClass.THROTTLED,
    FailureClass.TRANSIENT,
    FailureClass.SERVER,
    FailureClass.UNKNOWN,
)
RAISED = [
    (http(403), FORBIDDEN),
    (AccessDenied(), FORBIDDEN),
    (ClientError(403), FORBIDDEN),
    (StatusError(403), FORBIDDEN),
    (PermissionError(), FORBIDDEN),
    (http(429), THROTTLED),
    (StatusError(429), THROTTLED),
    (ClientError(429), THROTTLED),
    (MemoryError(), THROTTLED),
    (type("RateLimitError", (Exception,), {})(), THROTTLED),
    (TimeoutError(), TRANSIENT),
    (ConnectionResetError(), TRANSIENT),
    (OSError("broken pipe"), TRANSIENT),
    (httpx.ConnectTimeout("x"), TRANSIENT),
    (httpx.ReadTimeout("x"), TRANSIENT),
    (RedisConnectionError("x"), TRANSIENT),
    (urllib.error.URLError("x"), TRANSIENT),
    (http(500), SERVER),
    (http(503), SERVER),
    (StatusError(502), SERVER),
    (urllib.error.HTTPError("http://x", 503, "x", Message(), None), SERVER),
    (ValueError("x"), UNKNOWN),
    (caused(RuntimeError("while refreshing"), http(403)), FORBIDDEN),
    (caused(RuntimeError("a"), caused(RuntimeError("b"), StatusError(429))), THROTTLED),
    (caused(ValueError("a"), TimeoutError()), TRANSIENT),
]


def check_classes() -> None:
    for exc, kind in RAISED:
        assert classify(exc).kind is kind, repr(exc)


def test_h1_every_failure_has_its_class():
    check_classes()


def test_r7_an_http_error_keeps_its_status_although_it_is_an_error_of_input_and_output(monkeypatch):
    check_classes()
    # The mistake: the general class is asked first, so every error with a status becomes transient.
    specific = failures._match
    monkeypatch.setattr(
        failures, "_match", lambda exc: TRANSIENT if isinstance(exc, OSError) else specific(exc)
    )
    with pytest.raises(AssertionError, match="StatusError"):
        check_classes()


@pytest.mark.parametrize(
    ("exc", "waits"),
    [
        (http(403), [1800, 1800, 1800, 1800]),
        (http(429), [30, 60, 120, 240, 480, 600, 600]),
        (MemoryError(), [30, 60]),
        (TimeoutError(), [0, 0, 45, 45]),
        (http(503), [0, 0, 45, 45]),
        (ValueError("x"), [45, 45, 45]),
        (GiveUp("x"), [45, 45, 45]),
        (http(404), [45, 45]),
    ],
    ids=repr,
)
def test_h2_each_class_has_its_waits_by_the_length_of_the_streak(exc, waits):
    assert [wait(exc, streak) for streak in range(1, len(waits) + 1)] == waits


@pytest.mark.parametrize(("exc", "kind"), RAISED, ids=repr)
def test_h3_without_failure_backoff_it_is_always_the_error_interval(exc, kind):
    assert [wait(exc, streak, settings=OFF) for streak in (1, 2, 9)] == [45, 45, 45]


def test_h4_without_an_error_interval_it_is_the_interval_or_the_next_time():
    every = Schedule(name="s", agent="a", trigger=Every(seconds=60))
    cron = Schedule(name="s", agent="a", trigger=Cron(expression="* * * * *"))
    assert wait(ValueError(), schedule=every) == 60
    assert wait(ValueError(), schedule=cron) == 40
    assert wait(http(403), schedule=cron) == 1800


@pytest.mark.parametrize(("dice", "low"), [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)])
def test_h5_jitter_comes_after_the_cap_and_on_every_wait(dice, low):
    backoff = FailureBackoffSettings(enabled=True, max_immediate_retries=1)
    settings = SchedulerSettings(failure_backoff=backoff)
    assert wait(http(429), 99, settings=settings, dice=dice) == pytest.approx(600 * low)
    assert wait(http(403), settings=settings, dice=dice) == pytest.approx(1800 * low)
    assert wait(ValueError(), settings=settings, dice=dice) == pytest.approx(45 * low)
    assert wait(ValueError(), settings=SchedulerSettings(), dice=dice) == pytest.approx(45 * low)
    assert wait(TimeoutError(), settings=settings, dice=dice) == 0


def test_h6_a_retry_after_is_a_floor_also_above_the_cap_and_below_the_jitter():
    jittery = SchedulerSettings(failure_backoff=FailureBackoffSettings(enabled=True))
    assert wait(http(429, **{"retry-after": "100"})) == 100
    assert wait(http(429, **{"retry-after": "3"})) == 30
    assert wait(http(429, **{"retry-after": "7200"}), 50) == 7200
    assert wait(http(503, **{"retry-after": "7"})) == 7
    assert wait(http(429, **{"retry-after": "100"}), settings=jittery, dice=0.0) == 100
    assert wait(http(429, **{"retry-after": "100"}), settings=jittery, dice=1.0) == 110
    assert wait(http(429, **{"retry-after": "100"}), settings=OFF) == 45


def test_h7_what_the_agent_itself_asks_for_always_counts():
    for settings in (ON, OFF):
        assert wait(RetryLater("x", after="10s"), 9, settings=settings) == 10
    assert wait(RetryLater("x"), 9, settings=OFF) == 45
    assert wait(RetryLater("x", after="10s"), settings=SchedulerSettings(), dice=0.99) == 10


def test_h8_the_streak_counts_failures_of_any_class_and_ends_with_a_success():
    assert after(http(403), 4).streak == 4
    outcome = Succeeded(None)
    found = next_run(
        SCHEDULE,
        ready=NOW,
        acquired=NOW,
        ended=NOW,
        outcome=outcome,
        streak=4,
        runs=1,
        settings=ON,
        random=lambda: 0.5,
    )
    assert (found.streak, found.at) == (0, NOW + 60)


def test_h9_a_streak_of_years_does_not_overflow():
    throttled = ThrottledSettings(base_ms=1, multiplier=100.0, cap_ms=600_000)
    backoff = FailureBackoffSettings(enabled=True, throttled=throttled)
    assert wait(http(429), 100_000, settings=SchedulerSettings(jitter=EVEN, failure_backoff=backoff)) == 600
