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

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    HostUnavailable,
    NoHost,
    ProcessFailed,
    RedisUnavailable,
    Refused,
    StoreUnavailable,
)
from holdfast.redis.client import TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.redis.translate import translate_errors
from holdfast.telemetry.logs import get_logger
from holdfast.views.problems import INTERNAL, INVALID, MEDIA_TYPE, NOT_INSTALLED, URN, Fault, Problem, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_REDIS_OUTAGES: Final = redis_outages("requests to the API", "they are answered with 503 and Retry-After")

_log = get_logger(__name__)

_OUR_OWN: Final = (RedisUnavailable, StoreUnavailable, NoHost, HostUnavailable)
"""Errors that name hosts of ours."""
_PASSWORD_RETRY_SECONDS: Final = 5.0

_PLAIN: Final[Mapping[int, tuple[str, str]]] = {
    400: ("bad-request", "The request can't be read"),
    401: ("unauthorized", "A key is needed"),
    403: ("forbidden", "This caller may not do this"),
    404: ("no-such-path", "No such path"),
    405: ("wrong-method", "This path does not take this method"),
    408: ("too-slow", "The request did not arrive in time"),
    410: ("moved", "Moved to another path"),
    413: ("too-large", "The body is too large"),
    431: ("head-too-large", "The head of the request is too large"),
    501: (NOT_INSTALLED.slug, NOT_INSTALLED.title),
}


def answer(exc: Exception, *, request_id: str = "", redis_url: str = "", candid: bool = False) -> Response:
    """Return the response to an exception; only a ``candid`` one names our own hosts."""
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
        return kind_of(exc).problem(_detail_of(exc, request_id, candid=candid), request_id=request_id)
    if isinstance(exc, RequestValidationError):
        return _invalid(cast("Sequence[Mapping[str, Any]]", exc.errors()), request_id)
    if isinstance(exc, HTTPException):
        slug, title = _PLAIN.get(exc.status_code, ("http", HTTPStatus(exc.status_code).phrase))
        return Problem(
            type=URN + slug, title=title, status=exc.status_code, detail=_detail(exc), request_id=request_id
        )
    return INTERNAL.problem(_discreet(INTERNAL.status, request_id), request_id=request_id)


def _detail_of(exc: HoldfastError, request_id: str, *, candid: bool) -> str:
    status = kind_of(exc).status
    if isinstance(exc, _OUR_OWN) or status == HTTPStatus.INTERNAL_SERVER_ERROR:
        if status != HTTPStatus.INTERNAL_SERVER_ERROR:  # which is logged with its traceback
            _log_dependency(exc, status)
        # guard: server-address-hidden
        return str(exc) if candid else _discreet(status, request_id, exc)
    # A traceback shows the operator's paths and code: other callers get its last line.
    return _last_words(str(exc)) if isinstance(exc, ProcessFailed) and not candid else str(exc)


def _discreet(status: int, request_id: str, exc: Exception | None = None) -> str:
    """Describe a failure without the addresses of our servers, which only operators may read."""
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"this is a defect of Holdfast: the log has it under request_id {request_id}"
    if isinstance(exc, NoHost | HostUnavailable):
        return f"no host does this now: try again later; the log has why under request_id {request_id}"
    return (
        "what this needs (Redis, or the database) does not answer now: try again after Retry-After seconds; "
        "the log has when that began, and why"
    )


def _log_dependency(exc: Exception, status: int) -> None:
    """Log a dependency that failed; in an outage, whose own lines say more, only at debug."""
    is_outage = _REDIS_OUTAGES.failed(exc) or isinstance(exc, StoreUnavailable)
    level = logging.DEBUG if is_outage else logging.WARNING
    _log.log(level, "request refused: a dependency failed", status=status, error=str(exc))


def _last_words(text: str) -> str:
    """The first line and the last one with words: a group of exceptions is drawn, and ends with its frame."""
    first, *rest = text.strip().splitlines() or [""]
    last = next((words for line in reversed(rest) if (words := line.strip(" |+-"))), "")
    return f"{first}: {last}" if last else first


def _translated(exc: Exception, redis_url: str) -> Exception:
    try:
        with translate_errors(redis_url):
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
    return INVALID.problem(detail, request_id=request_id, errors=faults)
