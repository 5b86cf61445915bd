"""Receivers, by scheme, host, port and whether they are the operator's: a slow one can't use all slots."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from holdfast.config import BreakerSettings
from holdfast.events.sinks.request import ResponseMeaning
from holdfast.reliability.breaker import Breaker, BreakerState
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.config import RelaySettings
    from holdfast.events.sinks.request import SinkResponse

_REMEMBERED: Final = 10_000
_WINDOW_SECONDS: Final = 10.0

_log = get_logger(__name__)


class ReceiverFailed(Exception):
    """Raised for the breaker if the receiver as a whole failed, not only this event."""


def _is_failure(exc: BaseException) -> bool:
    return isinstance(exc, ReceiverFailed)


def _refusal(breaker: Breaker) -> ReceiverFailed:
    return ReceiverFailed(f"the receiver is down; the next try is in {breaker.retry_after:.1f} s")


class Destination:
    """One receiver: its breaker, its failures, and how many of the relay's slots it uses.

    ``ours`` if the operator configured it. A submitter's receiver may have many addresses, whose responses
    are independent of each other.
    """

    def __init__(self, name: str, settings: BreakerSettings, most: int, *, ours: bool) -> None:
        self.breaker = Breaker(settings, is_failure=_is_failure, refusal=_refusal)
        self.most = most
        self.active = 0
        self._name = name
        self._ours = ours
        self._failures_most = settings.failure_threshold
        self._waiting = 0
        self._failures = 0
        self._rejections = 0
        self._failing_since = 0.0

    @property
    def is_full(self) -> bool:
        """Whether it uses as many slots as one receiver may use."""
        return self.active >= self.most

    @contextlib.contextmanager
    def slot(self) -> Generator[None]:
        """Take one of the relay's slots."""
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
            self._waiting = max(self._waiting - 1, 0)

    def has_failed(self, response: SinkResponse) -> bool:
        """Return whether the receiver as a whole has failed.

        The events of one run may be rejected while others are accepted: only many rejections in a row count.
        """
        rejects = self._ours and response.verdict is ResponseMeaning.REJECTED
        return response.is_about_the_receiver or (rejects and self._rejections + 1 >= self._failures_most)

    def report(self, response: SinkResponse) -> None:
        """Count the response; log once when the receiver becomes unavailable, and once when it recovers."""
        match response.verdict:
            case ResponseMeaning.DELIVERED:
                if self._failures >= self._failures_most:
                    seconds = round(time.monotonic() - self._failing_since, 1)
                    _log.warning(
                        "receiver recovered", receiver=self._name, failures=self._failures, seconds=seconds
                    )
                self._failures = self._rejections = 0
            case ResponseMeaning.RETRY | ResponseMeaning.REJECTED if (
                self._ours or response.is_about_the_receiver
            ):
                self._failures += 1
                self._rejections += response.verdict is ResponseMeaning.REJECTED
                if self._failures == 1:
                    self._failing_since = time.monotonic()
                if self._failures == self._failures_most:
                    _log.warning("receiver unavailable", receiver=self._name, error=response.reason)
                if self._rejections >= self._failures_most:
                    self.breaker.trip()
            case _:  # about this event or this address, not about the receiver
                pass

    def pause_when_full(self, settings: RelaySettings) -> float:
        """Return the pause of a delivery without a free slot, which grows with the number of waiting ones."""
        self._waiting += 1
        return min(
            settings.retry_first_seconds * (1 + self._waiting / self.most), settings.retry_most_seconds
        )


class Destinations:
    """All receivers of a relay; the Event API may use all slots of its sink, any other a quarter."""

    def __init__(self, settings: RelaySettings) -> None:
        self._breaker = BreakerSettings(
            failure_threshold=settings.breaker_failures,
            window_seconds=_WINDOW_SECONDS,
            cooldown_seconds=settings.breaker_seconds,
            half_open_probes=1,
        )
        self._share = max(settings.concurrency // 4, 1)
        self._all = settings.concurrency
        self._known: dict[tuple[str, bool], Destination] = {}

    def of(self, url: str, *, ours: bool) -> Destination:
        """Return the receiver of a URL; ``ours`` if the operator configured it."""
        origin = _origin(url)
        # Webhooks on the host of the Event API neither use its slots nor open its breaker.
        key = (origin, ours)
        found = self._known.pop(key, None)
        if found is None:
            found = Destination(origin, self._breaker, self._all if ours else self._share, ours=ours)
        self._known[key] = found
        if len(self._known) > _REMEMBERED:
            self._forget()
        return found

    def open_breakers(self) -> int:
        """Return how many receivers are not called now, because their breakers are open."""
        return sum(1 for each in self._known.values() if each.breaker.state is not BreakerState.CLOSED)

    def _forget(self) -> None:
        oldest = next((key for key, each in self._known.items() if not each.active), None)
        if oldest is not None:
            del self._known[oldest]


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or ""
    except ValueError:
        return url
    return f"{parts.scheme}://{host}:{port}"
