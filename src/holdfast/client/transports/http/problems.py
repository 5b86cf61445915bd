"""Errors of the HTTP API become the errors that the same call over Redis would have raised."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from holdfast.errors import AccessDenied, ApiUnavailable, ConfigError, HoldfastError, PayloadTooLarge, Refused
from holdfast.reliability.retry_after import read_retry_after
from holdfast.views.problems import error_class_of

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

SETTING: Final = "api_url (client.url, HOLDFAST_API_URL)"
_KEY: Final = "check api_key (client.key, HOLDFAST_API_KEY)"
_DEFAULT_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 3600.0


class _Problem(msgspec.Struct):
    """The part of a problem (RFC 9457) that a client reads."""

    type: str = ""
    detail: str = ""


_problem = msgspec.json.Decoder(_Problem)


def error_of(url: str, status: int, headers: Mapping[str, str], body: bytes) -> HoldfastError:
    """Return the error of a response: by its problem's type or, from a proxy, by its status."""
    problem = _read(body)
    error, detail = error_class_of(problem.type), problem.detail
    if error is not None and issubclass(error, Refused):
        return error(detail, retry_after=retry_after(headers))
    if error is not None:
        return error(detail)
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return AccessDenied(f"the API at {url} said no: {detail or HTTPStatus(status).phrase}; {_KEY}")
    return _of_status(url, status, headers, detail)


def _of_status(url: str, status: int, headers: Mapping[str, str], detail: str) -> HoldfastError:
    said = f"the API at {url} answered {status}{f': {detail}' if detail else ''}"
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return PayloadTooLarge(f"{said}; store large data elsewhere and send a reference")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Refused(said, retry_after=retry_after(headers))
    if status == HTTPStatus.REQUEST_TIMEOUT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiUnavailable(said, retry_after=retry_after(headers))
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return ConfigError(
            f"{said}, a redirect to {headers.get('Location', '?')[:200]}: {SETTING} must be that"
        )
    if status == HTTPStatus.NOT_FOUND:
        return ConfigError(f"{said}: there is no API of Holdfast there, check {SETTING}")
    return HoldfastError(said)


def not_ours(url: str, what: object) -> ConfigError:
    """Return the error that says that somebody else answers at this URL."""
    return ConfigError(f"what answers at {url} is no API of Holdfast ({what}): check {SETTING}")


def read(url: str, body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Read an answer, or say that it can't be the API's."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise not_ours(url, exc) from exc


def retry_after(headers: Mapping[str, str]) -> float:
    """Return how many seconds the API asks to wait; one if it does not say so, or not readably."""
    seconds = read_retry_after(headers.get("Retry-After", ""))
    return _DEFAULT_PAUSE_SECONDS if seconds is None else min(seconds, _LONGEST_PAUSE_SECONDS)


def _read(body: bytes) -> _Problem:
    try:
        return _problem.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Problem()
