"""A circuit breaker: while Redis is away, calls fail at once instead of each waiting for its timeout.

Invariant: looking at the breaker changes nothing; only a call that is made uses up a probe, and a
probe that ends without an answer is given back.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import time
from typing import TYPE_CHECKING

from holdfast.errors import RedisUnavailable
from holdfast.redis.client import takes_no_writes, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.config import BreakerSettings


class State(enum.StrEnum):
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
        """As gauges show it: 0 is closed, 1 half open, 2 open."""
        return (State.CLOSED, State.HALF_OPEN, State.OPEN).index(self)


class Breaker:
    """Counts the failures of one Redis; wrap every call in ``with breaker.guard():``."""

    def __init__(
        self,
        settings: BreakerSettings,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_failure: Callable[[BaseException], bool] = unavailable,
        name: str = "redis.breaker",
    ) -> None:
        self.trips = self.blocked = self.recoveries = 0
        self._name = name
        self._settings = settings
        self._clock = clock
        self._is_failure = is_failure
        self._failures: collections.deque[float] = collections.deque(maxlen=settings.failure_threshold)
        self._opened_at: float | None = None
        self._probed_at: float | None = None  # the first probe of this half-open period
        self._in_a_row = 0
        self._probing = 0
        self._found_away = self._found_unwritable = False
        self._term = 0  # which closed, open or half-open period a call belongs to

    def twin(self) -> Breaker:
        """Another one with the same settings, for another server of the same Redis."""
        return Breaker(self._settings, self._clock, is_failure=self._is_failure, name=self._name)

    @property
    def state(self) -> State:
        """The state now; asking changes nothing."""
        if self._opened_at is None:
            return State.CLOSED
        return State.HALF_OPEN if self._cooldown_left() <= 0 else State.OPEN

    @property
    def retry_after(self) -> float:
        """Seconds until a call may be made; 0 if one may be made now."""
        if self.state is State.OPEN:
            return self._cooldown_left()
        return 0.0 if self._admits() else self._settings.cooldown_seconds

    @property
    def is_away(self) -> bool:
        """Whether it is not closed because Redis was away, rather than because of what Redis answered."""
        return self._opened_at is not None and self._found_away

    @property
    def takes_no_writes(self) -> bool:
        """Whether it is not closed because Redis answered that it takes no writes from anybody now."""
        return self._opened_at is not None and self._found_unwritable

    def trip(self) -> None:
        """Open it if it is closed: somebody knows that no call would succeed."""
        if self._opened_at is None:
            self._change(self._clock())

    def end_cooldown(self) -> None:
        """Let probes through at once, if it is open: somebody has heard Redis answer."""
        self._give_up_silent_probes()
        if self.state is State.OPEN:
            self._opened_at = self._clock() - self._settings.cooldown_seconds

    @contextlib.contextmanager
    def guard(self) -> Generator[None]:
        """Make one call, or raise RedisUnavailable if none may be made now."""
        self._give_up_silent_probes()
        if not self._admits():
            self.blocked += 1
            raise RedisUnavailable(
                f"Redis has failed {self._settings.failure_threshold} times; the next try is "
                f"in {self.retry_after:.1f} s ({self._name}).",
                retry_after=self.retry_after,
            )
        term, probe = self._term, self._opened_at is not None
        self._probing += probe
        if probe and self._probed_at is None:
            self._probed_at = self._clock()
        try:
            yield
        except BaseException as exc:
            if self._is_failure(exc):
                self._found_away, self._found_unwritable = _no_answer(exc), takes_no_writes(exc)
            self._settle(term, probe, answered=self._verdict(exc))
            raise
        self._settle(term, probe, answered=True)

    def _verdict(self, exc: BaseException) -> bool | None:
        """Whether Redis answered; None if nobody knows, as when the call was cancelled."""
        if self._is_failure(exc):
            return False
        return True if isinstance(exc, Exception) else None

    def _admits(self) -> bool:
        match self.state:
            case State.CLOSED:
                return True
            case State.OPEN:
                return False
            case State.HALF_OPEN:
                silent = self._last_opened() != self._opened_at  # guard: breaker-look-no-probe
                return silent or self._probing < self._settings.half_open_probes

    def _settle(self, term: int, probe: bool, *, answered: bool | None) -> None:
        if term != self._term:
            return  # a call from before the last change says nothing about now
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
        # Calls that each wait for a timeout may never be crowded, so failures in a row count too.
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
        """When it opened: also when every probe has been silent for the whole half-open period."""
        patience = self._settings.half_open_seconds
        if self._probed_at is None or not patience or self._clock() < self._probed_at + patience:
            return self._opened_at
        return self._probed_at + patience


def _no_answer(exc: BaseException) -> bool:
    """Whether Redis was away. One that is read-only or full answers: only the next write can tell."""
    if takes_no_writes(exc):
        return False
    return unavailable(exc) or isinstance(exc, RedisUnavailable)
