"""Whether a lease can still be trusted, by the clock, at the moment when something is done under it.

A timer is not enough: after a freeze (SIGSTOP, a paused machine) the event loop runs what was due first. A
body whose sleep ended before its lease is resumed before the timer that would end it, while another process
has the work already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


def _always() -> float:
    return float("inf")


class Trust:
    """Until when a lease is trusted; ``until`` is asked each time, because every renewal moves it."""

    __slots__ = ("lost", "until")

    def __init__(self, until: Callable[[], float] = _always) -> None:
        self.until = until
        self.lost = False
        """Set once a body was ended because its lease is not trusted."""

    def holds(self) -> bool:
        """Return whether nobody else can have the lease now."""
        return time.monotonic() < self.until()  # guard: trust-by-clock


class Trusted(Generator[Any, None, T]):
    """Awaits a body and takes each of its steps only while the lease is trusted.

    A body whose lease is not trusted any more gets a CancelledError instead of its next step, or never
    begins. It may clean up; then LeaseLost is raised, whatever it returns. A cancellation from outside is
    passed on as it is.
    """

    __slots__ = ("_body", "_cancelled", "_ended", "_trust")

    def __init__(self, body: Coroutine[Any, Any, T], trust: Trust) -> None:
        self._body = body
        self._trust = trust
        self._ended = False
        self._cancelled = False

    def __await__(self) -> Generator[Any, None, T]:
        return self

    def __next__(self) -> Any:
        """Take the next step of the body, or end it."""
        if self._ended:
            return self._unwind(self._body.send, None)
        if self._trust.holds():  # guard: trust-before-each-step
            return self._body.send(None)
        self._ended = self._trust.lost = True
        return self._unwind(self._body.throw, asyncio.CancelledError())

    def send(self, value: None) -> Any:
        """Take the next step of the body, or end it; an event loop has no value to send."""
        del value
        return self.__next__()

    def throw(self, exc: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """Pass on what is raised where the body waits: a cancellation, most of the time."""
        del value, traceback  # since Python 3.12 an exception is all that is thrown
        if not self._ended and self._trust.holds():
            return self._body.throw(exc)
        self._ended = True  # it is ending: what it still awaits while it cleans up is not interrupted again
        self._cancelled = self._cancelled or isinstance(exc, asyncio.CancelledError)
        return self._unwind(self._body.throw, exc)

    def close(self) -> None:
        """Close the body."""
        self._body.close()

    def _unwind(self, step: Callable[[Any], Any], value: Any) -> Any:
        try:
            return step(value)
        except BaseException as exc:
            if self._cancelled and isinstance(exc, asyncio.CancelledError):
                raise
            raise LeaseLost("the lease was not kept: another process may have this work by now") from exc
