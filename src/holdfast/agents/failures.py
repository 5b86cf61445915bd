"""From an exception to a failure, and from a failure to a delay: one table for runs, schedules and hosts.

The most specific rule for the outermost exception wins; its cause is asked only if no rule knows it.
"""

from __future__ import annotations

import random as _random
import time
from bdb import BdbQuit
from enum import StrEnum
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast.agents import evidence
from holdfast.config import duration_seconds
from holdfast.errors import (
    ConfigError,
    GiveUp,
    InputError,
    MalformedMessage,
    RedisUnavailable,
    Refused,
    RetryLater,
    StepMismatch,
    StoreUnavailable,
    ThreadTaken,
    UnknownAgent,
)
from holdfast.reliability.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.config import BackoffSettings


class FailureClass(StrEnum):
    """What kind of failure it was, which decides when (and whether) to try again."""

    FORBIDDEN = "forbidden"
    THROTTLED = "throttled"
    TRANSIENT = "transient"
    SERVER = "server"
    INVALID = "invalid"
    UNKNOWN_AGENT = "unknown_agent"
    CRASHED = "crashed"
    POISON = "poison"
    MALFORMED = "malformed"
    PROGRAMMING_ERROR = "programming_error"
    UNKNOWN = "unknown"


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt failed; ``exact``: ``retry_after`` is the agent's own wish, not a floor."""

    kind: FailureClass
    message: str
    retry_after: float | None = None
    traceback: str = ""
    exact: bool = False

    @classmethod
    def because(cls, kind: FailureClass, message: str, traceback: str = "") -> Failure:
        """Make a failure that no exception stands behind."""
        return cls(kind, evidence.bounded(message), traceback=traceback[-evidence.TRACEBACK_BYTES :])


FINAL = frozenset({FailureClass.INVALID, FailureClass.MALFORMED, FailureClass.POISON})

# In a group, the leaf that has to wait longest decides.
_WORST_FIRST = (
    FailureClass.INVALID,
    FailureClass.MALFORMED,
    FailureClass.POISON,
    FailureClass.FORBIDDEN,
    FailureClass.THROTTLED,
    FailureClass.UNKNOWN_AGENT,
    FailureClass.CRASHED,
    FailureClass.UNKNOWN,
    FailureClass.SERVER,
    FailureClass.TRANSIENT,
)

_OWN_TYPES: tuple[tuple[type[BaseException], FailureClass], ...] = (
    (GiveUp, FailureClass.INVALID),
    (RetryLater, FailureClass.TRANSIENT),
    (UnknownAgent, FailureClass.UNKNOWN_AGENT),
    (MalformedMessage, FailureClass.MALFORMED),
    (InputError, FailureClass.INVALID),
    (StepMismatch, FailureClass.INVALID),
    (ThreadTaken, FailureClass.TRANSIENT),
    (RedisUnavailable, FailureClass.TRANSIENT),
    (StoreUnavailable, FailureClass.TRANSIENT),
    (Refused, FailureClass.THROTTLED),
)

_STATUSES: Mapping[int, FailureClass] = {
    401: FailureClass.FORBIDDEN,
    402: FailureClass.FORBIDDEN,
    403: FailureClass.FORBIDDEN,
    407: FailureClass.FORBIDDEN,
    408: FailureClass.TRANSIENT,
    409: FailureClass.TRANSIENT,
    421: FailureClass.TRANSIENT,
    423: FailureClass.TRANSIENT,
    425: FailureClass.TRANSIENT,
    429: FailureClass.THROTTLED,
    529: FailureClass.THROTTLED,  # a model provider's "overloaded"
}

# Libraries whose errors carry no status, known by the names of their classes so that none has to be imported.
_NAMES: Mapping[str, FailureClass] = {
    "AccessDenied": FailureClass.FORBIDDEN,
    "AccessDeniedException": FailureClass.FORBIDDEN,
    "AuthenticationError": FailureClass.FORBIDDEN,
    "Forbidden": FailureClass.FORBIDDEN,
    "NoCredentialsError": FailureClass.FORBIDDEN,
    "PermissionDenied": FailureClass.FORBIDDEN,
    "PermissionDeniedError": FailureClass.FORBIDDEN,
    "Unauthorized": FailureClass.FORBIDDEN,
    "RateLimitError": FailureClass.THROTTLED,
    "ResourceExhausted": FailureClass.THROTTLED,
    "ThrottlingException": FailureClass.THROTTLED,
    "TooManyRequests": FailureClass.THROTTLED,
    "InternalServerError": FailureClass.SERVER,
    "ServiceUnavailable": FailureClass.SERVER,
    "APIConnectionError": FailureClass.TRANSIENT,  # openai, anthropic
    "ClientConnectionError": FailureClass.TRANSIENT,  # aiohttp
    "ConnectionError": FailureClass.TRANSIENT,  # redis-py's is not the builtin
    "HTTPClientError": FailureClass.TRANSIENT,  # botocore
    "OperationalError": FailureClass.TRANSIENT,  # psycopg, sqlite3, SQLAlchemy
    "TimeoutError": FailureClass.TRANSIENT,
    "TimeoutException": FailureClass.TRANSIENT,  # httpx
    "TransportError": FailureClass.TRANSIENT,  # httpx, google-auth
}

# OSError comes last: half of the HTTP libraries derive their status errors from it.
_BUILTINS: tuple[tuple[type[BaseException], FailureClass], ...] = (
    (PermissionError, FailureClass.FORBIDDEN),
    (FileNotFoundError, FailureClass.UNKNOWN),
    (FileExistsError, FailureClass.UNKNOWN),
    (IsADirectoryError, FailureClass.UNKNOWN),
    (NotADirectoryError, FailureClass.UNKNOWN),
    (MemoryError, FailureClass.THROTTLED),
    (EOFError, FailureClass.TRANSIENT),
    (OSError, FailureClass.TRANSIENT),
)

# Only these classes themselves: what a library or an agent derives from them says something about data.
_PROGRAMMING_ERRORS = frozenset(
    {
        AssertionError,
        AttributeError,
        BdbQuit,  # a breakpoint() where there is no terminal
        ImportError,
        KeyError,
        ModuleNotFoundError,
        NameError,
        TypeError,
        UnboundLocalError,
    }
)


def classify(exc: BaseException, *, now: Callable[[], float] = time.time, by_agent: bool = False) -> Failure:
    """Turn an exception into a Failure of bounded size; whatever it is, this does not raise.

    ``by_agent``: it comes out of an agent's code, where a KeyError is most likely a mistake in that code.
    """
    try:
        verdict = _judge(exc, now())
        if by_agent and verdict.kind is FailureClass.UNKNOWN and _is_programming_error(exc):
            verdict = _Verdict(FailureClass.PROGRAMMING_ERROR)
    except Exception:  # an attribute of the exception that raises when it is looked at
        verdict = _Verdict(FailureClass.UNKNOWN, None)
    # An input that does not fit its model: the message says which field, and all frames are ours.
    refused = isinstance(exc, InputError) and evidence.raised_before_the_agent(exc)
    traceback = "" if refused else evidence.traceback_of(exc)
    return Failure(verdict.kind, evidence.message_of(exc), verdict.wait, traceback, verdict.exact)


def retry_delay(
    failure: Failure,
    attempt: int,
    backoff: BackoffSettings,
    *,
    retry_programming_errors: bool = True,
    random: Callable[[], float] = _random.random,
) -> float | None:
    """Return the seconds to wait after the ``attempt``-th try failed (the first is 1), None for no retry."""
    if failure.kind in FINAL:
        return None
    # Only of the first attempt: a later one may meet what came from outside, or a worker of another version.
    if failure.kind is FailureClass.PROGRAMMING_ERROR and attempt == 1 and not retry_programming_errors:
        return None
    asked = failure.retry_after or 0.0
    if failure.exact:
        return asked
    delay = max(asked, _backoff(failure.kind, attempt, backoff))
    # Jitter only lengthens, and comes after the cap: a Retry-After stays a floor, a herd at the cap spreads.
    return delay * (1.0 + backoff.jitter * random())


def _backoff(kind: FailureClass, attempt: int, backoff: BackoffSettings) -> float:
    if kind is FailureClass.FORBIDDEN:
        return float(backoff.forbidden_seconds)
    if kind in {FailureClass.TRANSIENT, FailureClass.SERVER}:
        attempt -= backoff.immediate_retries
    if attempt < 1:
        return 0.0
    return backoff_seconds(
        attempt,
        backoff.base_seconds,
        float(backoff.cap_seconds),
        factor=backoff.multiplier,
    )


class _Verdict(msgspec.Struct, frozen=True):
    kind: FailureClass
    wait: float | None = None
    exact: bool = False


def _judge(exc: BaseException, now: float, *, named: bool = True, open_groups: bool = True) -> _Verdict:
    """Go down the chain to the first link that says something; groups inside groups' chains stay closed."""
    wait: float | None = None
    for link, explicit in evidence.links(exc):
        explicit = explicit and named  # noqa: PLW2901 - a leaf of an unnamed group is unnamed too
        group = _group(link) if open_groups else None
        verdict = _verdict(link, now) if group is None else _worst(group, now, named=explicit)
        wait = verdict.wait if wait is None else wait
        # An error met on the way, that nobody named as the cause, must not end a run for good.
        if verdict.kind is not FailureClass.UNKNOWN and (explicit or verdict.kind not in FINAL):
            return _Verdict(verdict.kind, wait, verdict.exact)
    return _Verdict(FailureClass.UNKNOWN, wait)


def _is_programming_error(exc: BaseException) -> bool:
    """Whether it is one, or a group of nothing else; one that was given another meaning is none."""
    group = _group(exc)
    leaves = [exc] if group is None else evidence.leaves(group)
    return all(type(leaf) in _PROGRAMMING_ERRORS for leaf in leaves)


def _verdict(exc: BaseException, now: float) -> _Verdict:
    if isinstance(exc, RetryLater):
        wait = _own_wish(exc)
        return _Verdict(_match(exc), wait, exact=wait is not None)
    return _Verdict(_match(exc), evidence.retry_after(exc, now))


LONGEST_WISH_SECONDS = 365 * 86400


def _own_wish(exc: RetryLater) -> float | None:
    """Return the delay that an agent names; one that can't be read leaves it to the backoff."""
    try:
        return None if exc.after is None else min(duration_seconds(exc.after), LONGEST_WISH_SECONDS)
    except (ConfigError, TypeError, ValueError):
        return None


def _group(exc: BaseException) -> BaseExceptionGroup[BaseException] | None:
    return cast("BaseExceptionGroup[BaseException]", exc) if isinstance(exc, BaseExceptionGroup) else None


def _worst(group: BaseExceptionGroup[BaseException], now: float, *, named: bool) -> _Verdict:
    verdicts = [_judge(leaf, now, named=named, open_groups=False) for leaf in evidence.leaves(group)]
    return min(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.kind))


def _match(exc: BaseException) -> FailureClass:
    """Look one exception up, most specific first: our own types, HTTP status, class name, builtin types."""
    for own, kind in _OWN_TYPES:
        if isinstance(exc, own):
            return kind
    status = evidence.http_status(exc)
    if status is not None:  # guard: http-status-before-type
        return _STATUSES.get(status, FailureClass.SERVER if status >= 500 else FailureClass.INVALID)
    for ancestor in type(exc).__mro__:
        if ancestor.__name__ in _NAMES:
            return _NAMES[ancestor.__name__]
    for builtin, kind in _BUILTINS:
        if isinstance(exc, builtin):
            return kind
    # Bad JSON, failed validation: what a model wrote may be right the next time, so none is final.
    return FailureClass.UNKNOWN
