"""The request that a sink writes for an event, the receiver's response, and the verdict on the event."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.reliability.retry_after import read_retry_after

if TYPE_CHECKING:
    from holdfast.events.event import Event
    from holdfast.events.relay.run_facts import RunFacts

_WORTH_RETRYING: Final = frozenset({408, 409, 425, 429})
_EVENTS_FAULT: Final = frozenset({400, 413, 415, 422})
_GONE: Final = 410
_RETRY_AFTER_MOST_SECONDS: Final = 3600.0
_OVERLOADED: Final = frozenset({429, 502, 503, 504})


class SinkRequest(msgspec.Struct, frozen=True):
    """One POST; ``guarded`` if its URL is a submitter's and must not lead to a private network."""

    url: str
    headers: dict[str, str]
    body: bytes
    guarded: bool = True


class Sink(Protocol):
    """A kind of receiver; writes the requests to it."""

    name: str
    ours: bool
    """Whether the operator configured the receiver; if not, the submitter of the run did."""

    def request(self, run: RunFacts, event: Event, sequence: int, address: str) -> SinkRequest:
        """Write the request for one event; always the same except for its time."""
        ...


class ResponseMeaning(enum.StrEnum):
    """What a response means for the event.

    ::

        2xx                                          delivered
        408 409 425 429, 5xx, no response             retry: until give_up_seconds
        400 413 415 422                              refused: the event is at fault, a few tries
        3xx and other 4xx                            rejected: the receiver or the access to it is at fault
        an address that must not be called, no URL   impossible: given up at once
    """

    DELIVERED = "delivered"
    RETRY = "retry"
    REFUSED = "refused"
    REJECTED = "rejected"
    IMPOSSIBLE = "impossible"


class SinkResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The receiver's response: a status, or 0 and the error."""

    status: int = 0
    error: str = ""
    kind: str = "status"
    """Why it failed, for metrics: status, timeout, connection, address, breaker, busy, sink."""
    retry_after: float = 0.0

    @property
    def verdict(self) -> ResponseMeaning:
        """The verdict on the event."""
        if 200 <= self.status < 300:
            return ResponseMeaning.DELIVERED
        if self.kind == "address":
            return ResponseMeaning.IMPOSSIBLE
        if self.status in _EVENTS_FAULT:
            return ResponseMeaning.REFUSED
        if 300 <= self.status < 500 and self.status not in _WORTH_RETRYING:
            return ResponseMeaning.REJECTED
        return ResponseMeaning.RETRY

    @property
    def gone(self) -> bool:
        """Whether the receiver will never accept events at this address again (410)."""
        return self.status == _GONE

    @property
    def is_about_the_receiver(self) -> bool:
        """Whether the failure is of the receiver as a whole, rather than of this event."""
        return self.kind in {"timeout", "connection"} or self.status in _OVERLOADED

    @property
    def failure_kind(self) -> str:
        """Why it failed, as metrics count it: the ``kind``, or ``rejected``."""
        return "rejected" if self.verdict is ResponseMeaning.REJECTED else self.kind

    @property
    def reason(self) -> str:
        """Why the event was not accepted, in a sentence."""
        if self.kind != "status":
            return self.error or self.kind
        return f"the receiver answered {self.status}" + (f": {self.error}" if self.error else "")


def retry_after_of(header: str, now: float | None = None) -> float:
    """Return a Retry-After header as seconds from now: 0 if there is none, an hour at most."""
    return min(read_retry_after(header, now) or 0.0, _RETRY_AFTER_MOST_SECONDS)
