"""Errors and their problems (RFC 9457): one table, for the API that answers and the client that raises."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from holdfast.errors import (
    AccessDenied,
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
    UnknownAgent,
)

MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:holdfast:problem:"


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a request: where, and what."""

    where: str
    what: str


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem, as RFC 9457 has it; ``request_id`` finds the request in the logs."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str = ""
    errors: tuple[Fault, ...] = ()


class Kind(NamedTuple):
    """An error class and its problem."""

    error: type[HoldfastError]
    status: int
    slug: str
    title: str

    def problem(self, detail: str, *, request_id: str = "", errors: tuple[Fault, ...] = ()) -> Problem:
        """Describe one error of this kind."""
        return Problem(
            type=URN + self.slug,
            title=self.title,
            status=self.status,
            detail=detail,
            request_id=request_id,
            errors=errors,
        )


KINDS: Final = (
    Kind(UnknownAgent, 404, "unknown-agent", "No worker runs this agent"),
    Kind(PayloadTooLarge, 413, "too-large", "The message is too large"),
    Kind(InputError, 422, "invalid", "The request is not valid"),
    Kind(QueueFull, 429, "queue-full", "The queue is full"),
    Kind(QueuePaused, 429, "queue-paused", "The queue takes no new runs now"),
    Kind(RedisUnavailable, 503, "redis-unavailable", "Redis does not answer"),
    Kind(NoHost, 503, "no-host", "No host takes this agent now"),
    Kind(HostUnavailable, 503, "host-unavailable", "The agent's host does not answer"),
    Kind(Refused, 503, "unavailable", "Not available now"),
    Kind(ProcessFailed, 422, "agent-failed", "The agent did not start"),
    # guard: events-expired-status
    Kind(EventsExpired, 410, "events-expired", "The events are not kept any more"),
    Kind(AccessDenied, 403, "forbidden", "The caller may not do this"),
    Kind(NotFound, 404, "not-found", "Not found"),
    Kind(Conflict, 409, "conflict", "Conflicts with the current state"),
)
"""The most specific first."""

INVALID: Final = next(kind for kind in KINDS if kind.error is InputError)
INTERNAL: Final = Kind(HoldfastError, 500, "internal", "Internal error")
NOT_INSTALLED: Final = Kind(ConfigError, 501, "not-installed", "A part that this needs is not installed here")

_BY_SLUG: Final = {kind.slug: kind.error for kind in (*KINDS, NOT_INSTALLED)}


def kind_of(exc: HoldfastError) -> Kind:
    """Return the most specific kind of an error."""
    return next((kind for kind in KINDS if isinstance(exc, kind.error)), INTERNAL)


def error_class_of(problem_type: str) -> type[HoldfastError] | None:
    """Return the error that a problem of this type was made of, if it is one of ours."""
    return _BY_SLUG.get(problem_type.removeprefix(URN))
