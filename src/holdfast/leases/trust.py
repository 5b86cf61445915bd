"""Whether a lease can still be trusted, by the clock, at the moment when something is done under it.

A timer is not enough: after a freeze (SIGSTOP, a paused machine) the event loop runs what was due first. A
body whose sleep ended before its lease is resumed before the timer that would end it, while another process
has the work already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_LOST: Final = "the lease was not kept: another process may have this work by now"
_TURNS: Final = 3
"""How many turns of the event loop a body waits for its owner's cancellation."""


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

    A body whose lease is not trusted any more is not resumed, whatever it waited for: it gets a
    CancelledError instead, or never begins. It may clean up; then LeaseLost is raised, whatever it returns.
    A cancellation from outside is passed on as it is. ::

        trusted --lease over--> waiting for its owner's cancellation --CancelledError--> ending
    """

    __slots__ = ("_body", "_cancelled", "_ending", "_trust", "_turns")

    def __init__(self, body: Coroutine[Any, Any, T], trust: Trust) -> None:
        self._body = body
        self._trust = trust
        self._ending = False
        self._cancelled = False
        self._turns = _TURNS

    def __await__(self) -> Generator[Any, None, T]:
        return self

    def __next__(self) -> Any:
        """Take the next step of the body, or end it."""
        if self._ending:
            return self._unwind(self._body.send, None)
        # guard: trust-before-each-step
        if self._turns == _TURNS and self._trust.holds():
            return self._body.send(None)
        return self._end()

    def send(self, value: None) -> Any:
        """Take the next step of the body, or end it; an event loop has no value to send."""
        del value
        return self.__next__()

    def throw(self, exc: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """Pass on a cancellation, or the exception of what the body waits for."""
        del value, traceback  # since Python 3.12 an exception is all that is thrown
        first = not self._ending and self._turns == _TURNS
        if first and self._trust.holds():  # guard: trust-before-each-exception
            return self._body.throw(exc)
        self._cancelled = self._cancelled or isinstance(exc, asyncio.CancelledError)
        if first:
            return self._end()  # a timeout or an error that the body would handle, and go on
        self._ending = True
        return self._unwind(self._body.throw, exc)

    def close(self) -> None:
        """Close the body."""
        self._body.close()

    def _end(self) -> Any:
        """Give the owner some turns of the loop to cancel the body, then cancel it.

        The owner's timer is overdue too. Its cancellation is counted by the task, so that a timeout in the
        body's own code does not take it for its own and go on.
        """
        self._trust.lost = True
        if self._turns > 0:  # guard: owner-cancels-first
            self._turns -= 1
            return None
        self._ending = True
        # A timeout of the body's own, which has cancelled it, would take another CancelledError for its own.
        end = LeaseLost(_LOST) if self._cancelled else asyncio.CancelledError()
        return self._unwind(self._body.throw, end)

    def _unwind(self, step: Callable[[Any], Any], value: Any) -> Any:
        try:
            return step(value)
        except BaseException as exc:
            if not self._cancelled:
                raise LeaseLost(_LOST) from exc
            if isinstance(exc, asyncio.CancelledError):
                raise
            raise asyncio.CancelledError from exc
