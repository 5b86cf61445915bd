"""Decides by a receiver's response whether an event is delivered, tried again later, or given up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.events.sinks.request import ResponseMeaning
from holdfast.reliability.backoff import backoff_seconds

if TYPE_CHECKING:
    from holdfast.config import RelaySettings
    from holdfast.events.relay.outbox import OutboxEntry, PendingEvent
    from holdfast.events.sinks.request import SinkResponse

REFUSALS_MOST: Final = 3
"""How often one event may be refused before it is given up: sending it again rarely changes the response."""
REJECTIONS_MOST: Final = 20
"""How often a receiver of a submitter may reject an event: about 13 minutes with the default pauses."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has accepted the event."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """The event is sent again after a pause; it counts as failed, refused, rejected, or only released."""

    seconds: float
    counts_as: str


@dataclass(frozen=True, slots=True)
class GiveUpEvent:
    """The event is stored as undelivered; the run's next event begins with ``rejections``."""

    reason: str
    rejections: int


Decision: TypeAlias = Delivered | TryAgain | GiveUpEvent


class RetryPolicy:
    """Decides about the events of one sink."""

    def __init__(self, settings: RelaySettings, *, ours: bool) -> None:
        self._settings = settings
        self._ours = ours

    def decide(self, response: SinkResponse, entry: OutboxEntry, event: PendingEvent) -> Decision:
        """Return the decision about an event after this response."""
        if response.verdict is ResponseMeaning.DELIVERED:
            return Delivered()
        if response.kind == "busy":
            return TryAgain(response.retry_after, "released")
        rejected = response.verdict is ResponseMeaning.REJECTED
        reason = given_up(
            response,
            ours=self._ours,
            refusals=entry.rejections if rejected else entry.refusals,
            event_at=event.event.at,
            failing_since=entry.failing_since,
            now=entry.now,
            give_up_seconds=self._settings.give_up_seconds,
        )
        if reason:
            # A receiver that rejects everything gets fewer tries for each of the run's next events.
            return GiveUpEvent(reason, entry.rejections if rejected and not self._ours else 0)
        seconds = pause_seconds(self._settings, response, tries=entry.tries, refusals=entry.refusals)
        refused = counts_as_refusal(response, ours=self._ours)
        return TryAgain(seconds, response.verdict.value if refused else "failed")


def pause_seconds(settings: RelaySettings, response: SinkResponse, *, tries: int, refusals: int) -> float:
    """Return the pause after this response and so many failures before; Retry-After is honoured."""
    before = refusals if response.verdict is ResponseMeaning.REFUSED else tries
    pause = backoff_seconds(before + 1, settings.retry_first_seconds, settings.retry_most_seconds)
    return max(pause, response.retry_after)


def counts_as_refusal(response: SinkResponse, *, ours: bool) -> bool:
    """Return whether this response counts as a refusal of the event.

    If the operator's own receiver rejects everything (a rotated secret, a deployment that answers 404), that
    is an outage: the relay waits as long as for a receiver that is down.
    """
    rejected = response.verdict is ResponseMeaning.REJECTED and not ours  # guard: own-rejections-not-counted
    return rejected or response.verdict is ResponseMeaning.REFUSED


def given_up(
    response: SinkResponse,
    *,
    ours: bool,
    refusals: int,
    event_at: float,
    failing_since: float,
    now: float,
    give_up_seconds: float,
) -> str:
    """Return why the event is given up after this response; empty if it is tried again.

    ``refusals`` counts the responses of the same kind before. An event has ``give_up_seconds`` from when it
    happened, or from when its receiver began to fail if that was later.
    """
    match response.verdict:
        case ResponseMeaning.IMPOSSIBLE:
            return response.reason
        case ResponseMeaning.REFUSED if refusals + 1 >= REFUSALS_MOST:
            return f"{response.reason} ({refusals + 1} times)"
        case ResponseMeaning.REJECTED if _for_good(response, refusals, ours=ours):
            return f"{response.reason} ({refusals + 1} times)"
        case ResponseMeaning.RETRY | ResponseMeaning.REJECTED if (
            failing_since and now - max(event_at, failing_since) >= give_up_seconds
        ):
            return f"{response.reason} (tried for {give_up_seconds:g} s)"
        case _:
            return ""


def _for_good(response: SinkResponse, refusals: int, *, ours: bool) -> bool:
    if ours:  # guard: own-rejections-outage
        return False
    return response.gone or refusals + 1 >= REJECTIONS_MOST
