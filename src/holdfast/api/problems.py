"""Errors as ``application/problem+json`` (RFC 9457): what went wrong, and what the caller can do about it."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from holdfast.api.shapes import Fault, Problem
from holdfast.errors import (
    ConfigError,
    Conflict,
    EventsExpired,
    HoldfastError,
    HostUnavailable,
    InputError,
    NoHost,
    NotFound,
    PayloadTooLarge,
    ProcessFailed,
    QueueFull,
    QueuePaused,
    RedisUnavailable,
    Refused,
    StoreUnavailable,
    UnknownAgent,
)
from holdfast.redis.client import TROUBLE
from holdfast.redis.edge import answering
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MEDIA_TYPE: Final = "application/problem+json"
_URN: Final = "urn:holdfast:problem:"

_REDIS_OUTAGES: Final = redis_outages("requests to the API", "they are answered with 503 and Retry-After")

_log = get_logger(__name__)

_KINDS: Final[tuple[tuple[type[Exception], int, str, str], ...]] = (
    (UnknownAgent, 404, "unknown-agent", "Nobody here runs this agent"),
    (PayloadTooLarge, 413, "too-large", "The message is too large"),
    (InputError, 422, "invalid", "The request can't be accepted"),
    (QueueFull, 429, "queue-full", "The queue is full"),
    (QueuePaused, 429, "queue-paused", "The queue takes no new runs now"),
    (RedisUnavailable, 503, "redis-unavailable", "Redis does not answer"),
    (NoHost, 503, "no-host", "No host takes this agent now"),
    (HostUnavailable, 503, "host-unavailable", "The agent's host does not answer"),
    (Refused, 503, "unavailable", "Not now"),
    (ProcessFailed, 422, "agent-failed", "The agent did not start"),
    # guard: events-expired-status
    (EventsExpired, 410, "events-expired", "The events are not kept any more"),
    (NotFound, 404, "not-found", "There is no such thing"),
    (Conflict, 409, "conflict", "Its state does not allow this"),
)
"""The most specific first."""
_OUR_OWN: Final = (RedisUnavailable, StoreUnavailable, NoHost, HostUnavailable)
"""Errors that name hosts of ours."""
_PASSWORD_RETRY_SECONDS: Final = 5.0
_DEFECT: Final = (500, "internal", "Something went wrong here")

_PLAIN: Final[Mapping[int, tuple[str, str]]] = {
    400: ("bad-request", "The request can't be read"),
    401: ("unauthorized", "A key is needed"),
    403: ("forbidden", "This caller may not do this"),
    404: ("no-such-path", "There is no such path"),
    405: ("wrong-method", "The path exists, but not with this method"),
    408: ("too-slow", "The request did not arrive in time"),
    410: ("moved", "This is at another path now"),
    413: ("too-large", "The body is too large"),
    431: ("head-too-large", "The head of the request is too large"),
    501: ("not-installed", "A part that this needs is not installed here"),
}


def answer(exc: Exception, *, request_id: str = "", redis_url: str = "", candid: bool = False) -> Response:
    """Return what a caller is told of an exception; only a ``candid`` answer names our own hosts."""
    if isinstance(exc, TROUBLE):
        exc = _translated(exc, redis_url)
    headers = {"Retry-After": f"{retry_after(exc)}"} if isinstance(exc, Refused) else {}
    problem = problem_of(exc, request_id=request_id, candid=candid)
    if isinstance(exc, HTTPException):
        headers.update(exc.headers or {})
    if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("request failed", error=problem.detail, exc_info=exc)
    return Response(
        msgspec.json.encode(problem), status_code=problem.status, headers=headers, media_type=MEDIA_TYPE
    )


def retry_after(exc: Exception) -> int:
    """When to come back, in whole seconds; 0 if that would not help."""
    return max(1, math.ceil(exc.retry_after)) if isinstance(exc, Refused) else 0


def problem_of(exc: Exception, *, request_id: str, candid: bool) -> Problem:
    """Describe an exception."""
    if isinstance(exc, HoldfastError):
        status, slug, title = _kind(exc)
        if isinstance(exc, _OUR_OWN) or status == HTTPStatus.INTERNAL_SERVER_ERROR:
            # One request of many in an outage is no line: the store reports its own.
            is_outage = _REDIS_OUTAGES.failed(exc) or isinstance(exc, StoreUnavailable)
            _log.log(_level(is_outage), "a request had no answer", status=status, error=str(exc))
            # guard: server-address-hidden
            return _told(
                status, slug, title, str(exc) if candid else _discreet(status, request_id, exc), request_id
            )
        # A traceback is of the operator's paths and code, and for them; its last line says what.
        detail = _last_words(str(exc)) if isinstance(exc, ProcessFailed) and not candid else str(exc)
        return _told(status, slug, title, detail, request_id)
    if isinstance(exc, RequestValidationError):
        return _invalid(cast("Sequence[Mapping[str, Any]]", exc.errors()), request_id)
    if isinstance(exc, HTTPException):
        slug, title = _PLAIN.get(exc.status_code, ("http", HTTPStatus(exc.status_code).phrase))
        return _told(exc.status_code, slug, title, _detail(exc), request_id)
    return _told(*_DEFECT, _discreet(_DEFECT[0], request_id), request_id)


def _discreet(status: int, request_id: str, exc: Exception | None = None) -> str:
    """Say what to do without saying where our servers are: that is nobody's business but the operator's."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"this is a defect of ours: the log has it under request_id {request_id}"
    if isinstance(exc, NoHost | HostUnavailable):
        return f"no host does this now: try again later; the log has why under request_id {request_id}"
    told = "what this needs (Redis, or the database) does not answer now: try again after Retry-After seconds"
    return f"{told}; the log has when that began, and why"


def _level(is_outage: bool) -> int:
    return logging.DEBUG if is_outage else logging.WARNING


def _last_words(text: str) -> str:
    """The first line and the last one with words: a group of exceptions is drawn, and ends with its frame."""
    first, *rest = text.strip().splitlines() or [""]
    last = next((words for line in reversed(rest) if (words := line.strip(" |+-"))), "")
    return f"{first}: {last}" if last else first


def _kind(exc: Exception) -> tuple[int, str, str]:
    return next(
        ((status, slug, title) for kind, status, slug, title in _KINDS if isinstance(exc, kind)), _DEFECT
    )


def _told(status: int, slug: str, title: str, detail: str, request_id: str) -> Problem:
    return Problem(type=_URN + slug, title=title, status=status, detail=detail, request_id=request_id)


def _translated(exc: Exception, redis_url: str) -> Exception:
    try:
        with answering(redis_url):
            raise exc
    except ConfigError as refused:  # a password that was changed while we work: the operator's to mend
        return RedisUnavailable(str(refused), retry_after=_PASSWORD_RETRY_SECONDS)
    except HoldfastError as translated:
        return translated


def _detail(exc: HTTPException) -> str:
    if exc.status_code == HTTPStatus.NOT_FOUND and exc.detail == HTTPStatus.NOT_FOUND.phrase:
        return "nothing is at this path: GET /openapi.json lists what there is"
    if exc.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"this path allows {(exc.headers or {}).get('Allow', 'other methods')}"
    return str(exc.detail)


def _wrong(error: Mapping[str, Any]) -> str:
    """What is wrong, with the value that is."""
    given: Any = error.get("input")
    shown = f", got {str(given)[:80]!r}" if isinstance(given, str | int | float) else ""
    return f"{error.get('msg', '')}{shown}"


def _invalid(errors: Sequence[Mapping[str, Any]], request_id: str) -> Problem:
    faults = tuple(
        Fault(".".join(str(part) for part in error.get("loc", ())), _wrong(error)) for error in errors
    )
    detail = "; ".join(f"{fault.where}: {fault.what}" for fault in faults[:5]) or "the request is not valid"
    return Problem(
        type=_URN + "invalid",
        title="The request can't be accepted",
        status=422,
        detail=detail,
        request_id=request_id,
        errors=faults,
    )
