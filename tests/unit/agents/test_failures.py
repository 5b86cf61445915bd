from __future__ import annotations

import asyncio
import errno
import json
import socket
import urllib.error
from bdb import BdbQuit
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    AppError,
    GiveUp,
    HoldfastError,
    InputError,
    PayloadTooLarge,
    QueueFull,
    RedisUnavailable,
    RetryLater,
    UnknownAgent,
)
from holdfast.agents.failures import FINAL, Failure, FailureClass, classify, retry_delay
from holdfast.config import BackoffSettings
from holdfast.errors import MalformedMessage

K = FailureClass


class Response:
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status
        self.headers = headers or {}


class HttpError(OSError):
    """Like requests' HTTPError: an OSError whose response tells more."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"{status} from upstream")
        self.response = Response(status, headers)


class ApiStatusError(Exception):
    """Like the errors of model providers."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.code = code


class BotoError(Exception):
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__("An error occurred")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}}


class RateLimitError(Exception):
    pass


class TransportError(Exception):
    pass


class ConnectTimeout(TransportError):
    pass


def redis_style_connection_error() -> Exception:
    return type("ConnectionError", (Exception,), {})("gone")


def caused(outer: BaseException, cause: BaseException) -> BaseException:
    outer.__cause__ = cause
    return outer


def met_on_the_way(outer: BaseException, context: BaseException) -> BaseException:
    outer.__context__ = context
    return outer


TABLE: list[tuple[BaseException, FailureClass]] = [
    # our own
    (GiveUp("no such customer"), K.INVALID),
    (RetryLater(after=5), K.TRANSIENT),
    (UnknownAgent("x"), K.UNKNOWN_AGENT),
    (MalformedMessage("x"), K.MALFORMED),
    (InputError("x"), K.INVALID),
    (PayloadTooLarge("x"), K.INVALID),
    (RedisUnavailable("x"), K.TRANSIENT),
    (QueueFull("x"), K.THROTTLED),
    (AppError("x"), K.UNKNOWN),
    (HoldfastError("x"), K.UNKNOWN),
    # HTTP, also where the class is an OSError (R7)
    (HttpError(401), K.FORBIDDEN),
    (HttpError(403), K.FORBIDDEN),
    (HttpError(404), K.INVALID),
    (HttpError(408), K.TRANSIENT),
    (HttpError(409), K.TRANSIENT),
    (HttpError(422), K.INVALID),
    (HttpError(429), K.THROTTLED),
    (HttpError(500), K.SERVER),
    (HttpError(503), K.SERVER),
    (ApiStatusError(529), K.THROTTLED),
    (ApiStatusError(429, code="rate_limit_exceeded"), K.THROTTLED),
    (ApiStatusError(200), K.UNKNOWN),
    (BotoError(429), K.THROTTLED),
    (BotoError(403), K.FORBIDDEN),
    (urllib.error.HTTPError("http://x", 403, "no", Message(), None), K.FORBIDDEN),
    # by name
    (RateLimitError("slow down"), K.THROTTLED),
    (ConnectTimeout("x"), K.TRANSIENT),
    (redis_style_connection_error(), K.TRANSIENT),
    # builtins
    (PermissionError("x"), K.FORBIDDEN),
    (FileNotFoundError("x"), K.UNKNOWN),
    (MemoryError(), K.THROTTLED),
    (TimeoutError("x"), K.TRANSIENT),
    (asyncio.IncompleteReadError(b"", 3), K.TRANSIENT),
    (ConnectionResetError("x"), K.TRANSIENT),
    (socket.gaierror("x"), K.TRANSIENT),
    (OSError(errno.EIO, "x"), K.TRANSIENT),
    (urllib.error.URLError("refused"), K.TRANSIENT),
    (json.JSONDecodeError("x", "{", 0), K.UNKNOWN),
    (RecursionError("x"), K.UNKNOWN),
    (ValueError("x"), K.UNKNOWN),
    (KeyError("x"), K.UNKNOWN),
    (SystemExit(1), K.UNKNOWN),
    (KeyboardInterrupt(), K.UNKNOWN),
    (asyncio.CancelledError(), K.UNKNOWN),
    # causes
    (caused(ValueError("bad answer"), HttpError(503)), K.SERVER),
    (caused(ValueError("bad answer"), caused(KeyError("x"), RateLimitError("x"))), K.THROTTLED),
    (caused(HttpError(403), ConnectionResetError("x")), K.FORBIDDEN),
    (caused(FileNotFoundError("cache"), ConnectionResetError("x")), K.TRANSIENT),
    (caused(RuntimeError("x"), GiveUp("x")), K.INVALID),
    (met_on_the_way(RuntimeError("x"), ConnectionResetError("x")), K.TRANSIENT),
    (met_on_the_way(RuntimeError("x"), HttpError(404)), K.UNKNOWN),
    (met_on_the_way(RuntimeError("x"), GiveUp("x")), K.UNKNOWN),
    (caused(RuntimeError("x"), ExceptionGroup("two", [HttpError(503), HttpError(403)])), K.FORBIDDEN),
    (met_on_the_way(RuntimeError("x"), ExceptionGroup("one", [GiveUp("x")])), K.UNKNOWN),
    # groups
    (ExceptionGroup("one", [ConnectionResetError("x")]), K.TRANSIENT),
    (ExceptionGroup("two", [ConnectionResetError("x"), HttpError(429)]), K.THROTTLED),
    (ExceptionGroup("deep", [ExceptionGroup("in", [KeyError("x")]), HttpError(500)]), K.UNKNOWN),
    (ExceptionGroup("final", [HttpError(429), GiveUp("x")]), K.INVALID),
]


@pytest.mark.parametrize(("exc", "kind"), TABLE, ids=lambda value: repr(value)[:60])
def test_an_exception_has_its_class(exc, kind):
    assert classify(exc).kind is kind


PROGRAMMING = [
    (KeyError("x"), K.PROGRAMMING_ERROR),
    (TypeError("x"), K.PROGRAMMING_ERROR),
    (AttributeError("x"), K.PROGRAMMING_ERROR),
    (AssertionError("x"), K.PROGRAMMING_ERROR),
    (NameError("x"), K.PROGRAMMING_ERROR),
    (UnboundLocalError("x"), K.PROGRAMMING_ERROR),
    (ImportError("x"), K.PROGRAMMING_ERROR),
    (ModuleNotFoundError("x"), K.PROGRAMMING_ERROR),
    (caused(KeyError("x"), ValueError("y")), K.PROGRAMMING_ERROR),
    (met_on_the_way(KeyError("x"), ValueError("y")), K.PROGRAMMING_ERROR),
    (ExceptionGroup("one", [KeyError("x")]), K.PROGRAMMING_ERROR),
    (ExceptionGroup("two", [KeyError("x"), TypeError("y")]), K.PROGRAMMING_ERROR),
    # Something from outside is behind it, or somebody has given it another meaning.
    (met_on_the_way(KeyError("x"), ConnectionResetError("y")), K.TRANSIENT),
    (caused(TypeError("x"), HttpError(503)), K.SERVER),
    (caused(ValueError("x"), KeyError("y")), K.UNKNOWN),
    (met_on_the_way(RuntimeError("x"), KeyError("y")), K.UNKNOWN),
    (type("NoSuchUser", (KeyError,), {})("x"), K.UNKNOWN),
    (ExceptionGroup("two", [KeyError("x"), ValueError("y")]), K.UNKNOWN),
    (ExceptionGroup("two", [KeyError("x"), HttpError(500)]), K.UNKNOWN),
    (ExceptionGroup("two", [KeyError("x"), HttpError(429)]), K.THROTTLED),
    (caused(RuntimeError("x"), ExceptionGroup("one", [KeyError("y")])), K.UNKNOWN),
    (ValueError("x"), K.UNKNOWN),
    (RecursionError("x"), K.UNKNOWN),
    (BdbQuit(), K.PROGRAMMING_ERROR),
]


@pytest.mark.parametrize(("exc", "kind"), PROGRAMMING, ids=lambda value: repr(value)[:60])
def test_a_programming_error_of_an_agent_has_a_class_of_its_own(exc, kind):
    assert classify(exc, by_agent=True).kind is kind
    assert classify(exc).kind is (K.UNKNOWN if kind is K.PROGRAMMING_ERROR else kind)


@pytest.mark.parametrize(
    ("attempt", "retried", "waits"), [(1, False, False), (1, True, True), (2, False, True)]
)
def test_a_programming_error_is_not_tried_again_after_a_first_attempt(attempt, retried, waits):
    failure = Failure(K.PROGRAMMING_ERROR, "KeyError: 'x'")
    delay = retry_delay(failure, attempt, BackoffSettings(), retry_programming_errors=retried)
    assert (delay is not None) is waits


def test_from_none_hides_what_was_met_on_the_way():
    exc = met_on_the_way(RuntimeError("x"), ConnectionResetError("x"))
    exc.__suppress_context__ = True
    assert classify(exc).kind is K.UNKNOWN


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("1"), KeyError("2")
    first.__cause__, second.__cause__ = second, first
    assert classify(first).kind is K.UNKNOWN


def test_a_group_that_its_own_leaf_names_as_cause_ends():
    leaf = ValueError("leaf")
    group = ExceptionGroup("group", [leaf])
    leaf.__cause__ = group
    assert classify(group).kind is K.UNKNOWN
    assert classify(leaf).kind is K.UNKNOWN


@pytest.mark.parametrize(
    ("exc", "seconds"),
    [
        (RetryLater(after=7), 7),
        (RetryLater(), None),
        (RetryLater(after="5m"), 300),
        (RetryLater(after=timedelta(hours=1)), 3600),
        (RetryLater(after="when it rains"), None),
        (RetryLater(after=-3), None),
        (RetryLater(after=float("inf")), None),
        (QueueFull("x", retry_after=2.5), 2.5),
        (HttpError(429, {"Retry-After": "12"}), 12),
        (HttpError(503, {"retry-after": "3"}), 3),
        (HttpError(429, {"retry-after-ms": "1500", "retry-after": "2"}), 1.5),
        (HttpError(429, {"Retry-After": "99999999"}), 86_400),
        (HttpError(429, {"Retry-After": "soon"}), None),
        (
            HttpError(429, {"Retry-After": format_datetime(datetime.fromtimestamp(1030, UTC), usegmt=True)}),
            30,
        ),
        (HttpError(429, {"Retry-After": format_datetime(datetime.fromtimestamp(900, UTC), usegmt=True)}), 0),
        (BotoError(429, {"retry-after": "4"}), 4),
        (caused(RuntimeError("x"), HttpError(429, {"Retry-After": "9"})), 9),
        (ExceptionGroup("g", [KeyError("x"), HttpError(429, {"Retry-After": "9"})]), 9),
        (HttpError(429), None),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_retry_after_is_found_wherever_libraries_put_it(exc, seconds):
    assert classify(exc, now=lambda: 1000.0).retry_after == seconds


def test_a_timedelta_is_a_retry_after_too():
    exc = RuntimeError("x")
    exc.retry_after = timedelta(minutes=1)  # type: ignore[attr-defined]
    assert classify(exc).retry_after == 60


def test_an_exception_that_breaks_on_every_touch_is_still_classified():
    class Hostile(Exception):
        def __str__(self):
            raise RuntimeError("no")

        def __repr__(self):
            raise RuntimeError("no")

        @property
        def status_code(self):
            raise RuntimeError("no")

        response = headers = retry_after = code = status_code

    failure = classify(Hostile())
    assert failure.kind is K.UNKNOWN
    assert failure.message.startswith("Hostile: ")
    assert "RuntimeError" in failure.message


def test_an_exception_that_answers_everything_with_nonsense_is_unknown():
    class Anything:
        def __getattr__(self, name):
            return Anything()

        def __call__(self, *args):
            return Anything()

    class Yes(Exception):
        def __getattr__(self, name):
            return Anything()

    failure = classify(Yes("x"))
    assert (failure.kind, failure.message, failure.retry_after) == (K.UNKNOWN, "Yes: x", None)


def test_message_and_traceback_are_bounded_and_always_valid_text():
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("é" * 100_000 + "\ud800")

    try:
        deep(100)
    except ValueError as exc:
        failure = classify(exc)
    assert failure.message.startswith("ValueError: éé")
    assert len(failure.message.encode()) <= 1024
    assert 0 < len(failure.traceback.encode()) <= 4096


def test_the_traceback_keeps_its_last_whole_lines():
    def rock_bottom() -> None:
        raise ValueError("the last line")

    def deep(n: int) -> None:
        deep(n - 1) if n else rock_bottom()

    try:
        deep(60)
    except ValueError as exc:
        lines = classify(exc).traceback.splitlines()
    assert lines[-1] == "ValueError: the last line"
    assert any("in rock_bottom" in line for line in lines)
    assert not any("in test_the_traceback" in line for line in lines)


DEFAULT = BackoffSettings()
EXPECTED = [
    # kind, attempt, delay with the defaults (1 s doubling to 300 s, one immediate retry) and no jitter
    (K.UNKNOWN, 1, 1.0),
    (K.UNKNOWN, 2, 2.0),
    (K.UNKNOWN, 9, 256.0),
    (K.UNKNOWN, 10, 300.0),
    (K.UNKNOWN, 100_000, 300.0),
    (K.THROTTLED, 1, 1.0),
    (K.THROTTLED, 4, 8.0),
    (K.TRANSIENT, 1, 0.0),
    (K.TRANSIENT, 2, 1.0),
    (K.SERVER, 1, 0.0),
    (K.SERVER, 3, 2.0),
    (K.FORBIDDEN, 1, 600.0),
    (K.FORBIDDEN, 7, 600.0),
    (K.UNKNOWN_AGENT, 3, 4.0),
    (K.INVALID, 1, None),
    (K.MALFORMED, 1, None),
    (K.POISON, 1, None),
]


@pytest.mark.parametrize(("kind", "attempt", "delay"), EXPECTED)
def test_a_failure_waits_by_its_class(kind, attempt, delay):
    assert retry_delay(Failure(kind, ""), attempt, DEFAULT, random=lambda: 0.0) == delay


def test_every_class_has_a_delay_or_is_final():
    for kind in FailureClass:
        assert (retry_delay(Failure(kind, ""), 1, DEFAULT) is None) == (kind in FINAL)


def test_an_agent_that_names_its_delay_gets_exactly_that():
    failure = classify(RetryLater(after=5))
    for roll in (0.0, 0.5, 0.99):
        assert retry_delay(failure, 9, DEFAULT, random=lambda: roll) == 5.0  # noqa: B023 - called at once


def test_an_agent_that_names_no_delay_gets_the_backoff():
    failure = classify(RetryLater())
    assert retry_delay(failure, 3, DEFAULT, random=lambda: 0.0) == 2.0


backoffs = st.builds(
    BackoffSettings,
    base_seconds=st.floats(0, 1000),
    multiplier=st.floats(1, 100),
    cap_seconds=st.floats(0, 10_000),
    jitter=st.floats(0, 1),
    immediate_retries=st.integers(0, 5),
)
backed_off = st.sampled_from([K.THROTTLED, K.TRANSIENT, K.SERVER, K.UNKNOWN, K.UNKNOWN_AGENT])
attempts = st.integers(1, 5000)
rolls = st.floats(0, 1, exclude_max=True)


@given(backed_off, attempts, backoffs, rolls)
def test_a_delay_is_never_above_the_cap_with_its_jitter(kind, attempt, backoff, roll):
    delay = retry_delay(Failure(kind, ""), attempt, backoff, random=lambda: roll)
    assert delay is not None
    assert 0 <= delay <= backoff.cap_seconds * (1 + backoff.jitter)


@given(st.sampled_from(sorted(set(K) - FINAL)), attempts, backoffs, rolls, st.floats(0, 1e6), st.booleans())
def test_a_retry_after_is_a_floor(kind, attempt, backoff, roll, asked, exact):
    delay = retry_delay(Failure(kind, "", asked, exact=exact), attempt, backoff, random=lambda: roll)
    assert delay is not None
    assert delay >= asked


@given(backed_off, attempts, backoffs)
def test_a_later_attempt_never_waits_less_apart_from_jitter(kind, attempt, backoff):
    failure = Failure(kind, "")
    now = retry_delay(failure, attempt, backoff, random=lambda: 0.0)
    later = retry_delay(failure, attempt + 1, backoff, random=lambda: 0.0)
    assert now is not None
    assert later is not None
    assert now <= later
