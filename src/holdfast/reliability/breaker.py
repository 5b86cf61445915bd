"""A circuit breaker: while a server is unavailable, calls fail at once instead of waiting for a timeout.

Invariant: reading the breaker changes nothing; only a call that is made uses a probe, and a
probe that ends without an answer is released.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.config import BreakerSettings


class BreakerState(enum.StrEnum):
    """Whether calls are made.

    ::

        closed --failure_threshold failures, in a row or within window_seconds--> open
        open --cooldown_seconds, or end_cooldown--> half_open, which makes half_open_probes calls at a time
        half_open --the first success--> closed
        half_open --the first failure, or half_open_seconds without any answer--> open
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"

    @property
    def level(self) -> int:
        """The value of gauges: 0 is closed, 1 half open, 2 open."""
        return (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN).index(self)


class Breaker:
    """Counts the failures of one server; wrap every call in ``with breaker.guard():``.

    ``is_failure`` returns whether an error is a failure of the server, ``refusal`` makes the error of a call
    that is not made, and ``cause_of`` names the kind of failure that opens the breaker.
    """

    def __init__(
        self,
        settings: BreakerSettings,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_failure: Callable[[BaseException], bool],
        refusal: Callable[[Breaker], Exception],
        cause_of: Callable[[BaseException], str] | None = None,
    ) -> None:
        self.trips = self.blocked = self.recoveries = 0
        self.failure_threshold = settings.failure_threshold
        self._settings = settings
        self._clock = clock
        self._is_failure = is_failure
        self._refusal = refusal
        self._cause_of = cause_of
        self._failures: collections.deque[float] = collections.deque(maxlen=settings.failure_threshold)
        self._opened_at: float | None = None
        self._probed_at: float | None = None  # the first probe of this half-open period
        self._in_a_row = 0
        self._probing = 0
        self._cause = ""
        self._term = 0  # which closed, open or half-open period a call belongs to

    def twin(self) -> Breaker:
        """Return a breaker with the same settings, for another server of the same cluster."""
        return Breaker(
            self._settings,
            self._clock,
            is_failure=self._is_failure,
            refusal=self._refusal,
            cause_of=self._cause_of,
        )

    @property
    def state(self) -> BreakerState:
        """The state now; reading it changes nothing."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._cooldown_left() <= 0 else BreakerState.OPEN

    @property
    def retry_after(self) -> float:
        """Seconds until a call may be made; 0 if one may be made now."""
        if self.state is BreakerState.OPEN:
            return self._cooldown_left()
        return 0.0 if self._admits() else self._settings.cooldown_seconds

    @property
    def cause(self) -> str:
        """The result of ``cause_of`` for the last failure; empty while the breaker is closed."""
        return "" if self._opened_at is None else self._cause

    def trip(self) -> None:
        """Open the breaker if it is closed: the caller knows that no call would succeed."""
        if self._opened_at is None:
            self._change(self._clock())

    def end_cooldown(self) -> None:
        """Allow probes at once, if the breaker is open: the caller has received an answer of the server."""
        self._give_up_silent_probes()
        if self.state is BreakerState.OPEN:
            self._opened_at = self._clock() - self._settings.cooldown_seconds

    @contextlib.contextmanager
    def guard(self) -> Generator[None]:
        """Make one call, or raise the refusal if none may be made now."""
        self._give_up_silent_probes()
        if not self._admits():
            self.blocked += 1
            raise self._refusal(self)
        term, probe = self._term, self._opened_at is not None
        self._probing += probe
        if probe and self._probed_at is None:
            self._probed_at = self._clock()
        try:
            yield
        except BaseException as exc:
            if self._is_failure(exc):
                self._cause = self._cause_of(exc) if self._cause_of is not None else ""
            self._settle(term, probe, answered=self._verdict(exc))
            raise
        self._settle(term, probe, answered=True)

    def _verdict(self, exc: BaseException) -> bool | None:
        """Whether the server answered; None if that is unknown, as when the call was cancelled."""
        if self._is_failure(exc):
            return False
        return True if isinstance(exc, Exception) else None

    def _admits(self) -> bool:
        match self.state:
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return False
            case BreakerState.HALF_OPEN:
                silent = self._last_opened() != self._opened_at  # guard: breaker-look-no-probe
                return silent or self._probing < self._settings.half_open_probes

    def _settle(self, term: int, probe: bool, *, answered: bool | None) -> None:
        if term != self._term:
            return  # a call from before the last change does not count for the present state
        self._probing -= probe
        if answered is False:
            self._fail(probe)
        elif answered:
            self._in_a_row = 0
            if probe:
                self.recoveries += 1
                self._change(None)
        elif not self._probing:
            self._probed_at = None

    def _fail(self, probe: bool) -> None:
        now, threshold = self._clock(), self._settings.failure_threshold
        self._in_a_row += 1
        self._failures.append(now)
        crowded = (
            len(self._failures) == threshold and now - self._failures[0] <= self._settings.window_seconds
        )
        # Calls that each wait for a timeout are never that frequent, so failures in a row count too.
        if probe or crowded or self._in_a_row >= threshold:
            self._change(now)

    def _give_up_silent_probes(self) -> None:
        opened = self._last_opened()
        if opened != self._opened_at:
            self._change(opened)

    def _change(self, opened_at: float | None) -> None:
        self.trips += opened_at is not None
        self._opened_at, self._probed_at = opened_at, None
        self._failures.clear()
        self._in_a_row = self._probing = 0
        self._term += 1

    def _cooldown_left(self) -> float:
        opened = self._last_opened()
        assert opened is not None
        return opened + self._settings.cooldown_seconds - self._clock()

    def _last_opened(self) -> float | None:
        """Return when it opened, also if all probes were unanswered for the whole half-open period."""
        timeout = self._settings.half_open_seconds
        if self._probed_at is None or not timeout or self._clock() < self._probed_at + timeout:
            return self._opened_at
        return self._probed_at + timeout
