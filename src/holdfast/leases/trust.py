"""Whether a lease can still be trusted, by the clock, before each step that is taken under it.

A timer is not enough: after a freeze (SIGSTOP, a suspended machine) the event loop runs callbacks in the
order of their times. A body whose sleep ended before its lease is resumed before the timer that would end
it, while another process already has the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from holdfast.clock import boot_time
from holdfast.errors import LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import CodeType

T = TypeVar("T")

_LOST: Final = "the lease was lost: another process may have this work now"
_TURNS: Final = 3
"""How many iterations of the event loop a body waits for its owner's cancellation."""


def _always() -> float:
    return float("inf")


class Trust:
    """Until which ``boot_time()`` a lease is trusted; ``until`` is called each time: renewals change it."""

    __slots__ = ("lost", "until")

    def __init__(self, until: Callable[[], float] = _always) -> None:
        self.until = until
        self.lost = False
        """Set once a body was ended because its lease is not trusted."""

    def holds(self) -> bool:
        """Return whether no other owner can have the lease now."""
        return boot_time() < self.until()  # guard: trust-by-clock

    def ends_with(self, exc: BaseException) -> bool:
        """Return whether this exception ends a body whose lease is lost, and must not be replaced."""
        return self.lost and isinstance(exc, (asyncio.CancelledError, _Ended))


class _Ended(BaseException):
    """Ends a body where asyncio or the body itself would swallow a CancelledError."""


class Trusted(Generator[Any, None, T]):
    """Awaits a body and takes each of its steps only while the lease is trusted.

    A body whose lease is not trusted any more is not resumed: it gets a CancelledError instead (where asyncio
    would swallow that, another BaseException), or never begins. It may clean up; then LeaseLost is raised,
    whatever it returns.
    A cancellation from outside is passed on unchanged, and so is the exception that ends an outer body. ::

        trusted --lease ended--> waiting for its owner's cancellation --CancelledError--> ending
    """

    __slots__ = (
        "_body",
        "_cancelled",
        "_cancelled_group",
        "_ended_outside",
        "_ending",
        "_trust",
        "_turns",
        "_woken_by_cancel",
    )

    cr_frame: ClassVar[None] = None
    """None, as it has no frame: asyncio's call graphs (Python 3.14) read it beside ``cr_await``."""

    def __init__(self, body: Coroutine[Any, Any, T], trust: Trust) -> None:
        self._body = body
        self._trust = trust
        self._ending = False
        self._ended_outside = False
        self._cancelled = False
        self._cancelled_group: object = None
        self._woken_by_cancel = False
        self._turns = _TURNS

    def __await__(self) -> Generator[Any, None, T]:
        return self

    @property
    def cr_await(self) -> Coroutine[Any, Any, T]:
        """The body, under the attribute of coroutines, by which ``_local_of`` finds where it waits."""
        return self._body  # guard: trusted-shows-its-body

    def __next__(self) -> Any:
        """Take the next step of the body, or end it."""
        if self._ending:
            # guard: failed-child-not-handled
            if _child_has_failed(self._body) or self._leaves_cancelled_group():
                return self._unwind(self._body.throw, _Ended(_LOST))
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
        if isinstance(exc, _Ended):
            # It ends the enclosing body, which would handle a LeaseLost like any Exception, and continue.
            self._ending = self._ended_outside = True  # guard: outer-end-passed-on
            return self._unwind(self._body.throw, exc)
        first = not self._ending and self._turns == _TURNS
        if first and self._trust.holds():  # guard: trust-before-each-exception
            return self._body.throw(exc)
        self._cancelled = self._cancelled or isinstance(exc, asyncio.CancelledError)
        if first:
            self._woken_by_cancel = self._cancelled
            return self._end()  # a timeout or an error that the body would handle, and continue
        if not self._ending:
            self._ending, exc = True, self._last_exception()
        return self._unwind(self._body.throw, exc)

    def close(self) -> None:
        """Close the body."""
        self._body.close()

    def _end(self) -> Any:
        """Give the owner some iterations of the loop to cancel the body, then cancel it.

        The owner's timer is overdue too. The task counts its cancellation, so that a timeout in the body does
        not take it for its own and continue.
        """
        self._trust.lost = True
        if self._turns > 0:  # guard: owner-cancels-first
            self._turns -= 1
            return None
        self._ending = True
        return self._unwind(self._body.throw, self._last_exception())

    def _last_exception(self) -> BaseException:
        """Return the exception that ends the body: a CancelledError, unless that would be swallowed."""
        if _has_children(self._body):
            self._cancelled_group = _awaited_group(self._body)
            return asyncio.CancelledError()  # the children are cancelled by it, and awaited
        # A timeout or a TaskGroup in the body that has cancelled it takes a second one for its own.
        swallowed = self._woken_by_cancel  # guard: own-cancellation-swallowed
        swallowed = swallowed or _child_has_failed(self._body)
        swallowed = swallowed or _wait_for_has_result(self._body)  # guard: wait-for-swallows-cancellation
        return _Ended(_LOST) if swallowed else asyncio.CancelledError()

    def _leaves_cancelled_group(self) -> bool:
        """Whether a TaskGroup would raise the CancelledError now, which a timeout takes for its own."""
        if not self._woken_by_cancel or self._cancelled_group is None:  # guard: group-inside-timeout
            return False
        group = _awaited_group(self._body)
        return group is self._cancelled_group and not getattr(group, "_tasks", ())

    def _unwind(self, step: Callable[[Any], Any], value: Any) -> Any:
        try:
            return step(value)
        except BaseException as exc:
            if self._ended_outside:
                raise _Ended(_LOST) from exc
            if not self._cancelled:
                raise LeaseLost(_LOST) from exc
            if isinstance(exc, asyncio.CancelledError):
                raise
            raise asyncio.CancelledError from exc


# -- the functions of asyncio in which a body waits and which handle a CancelledError themselves

_LEAVE_GROUP: Final = getattr(asyncio.TaskGroup, "_aexit", asyncio.TaskGroup.__aexit__).__code__
_WAIT_FOR: Final = asyncio.wait_for.__code__  # noqa: TID251 - agents may call it


def _awaited_group(body: Any) -> object:
    """Return the TaskGroup whose children a body waits for, if any."""
    return _local_of(body, _LEAVE_GROUP, "self")


def _has_children(body: Any) -> bool:
    """Whether a body waits for the children of a TaskGroup."""
    return bool(getattr(_awaited_group(body), "_tasks", ()))


def _child_has_failed(body: Any) -> bool:
    """Whether a TaskGroup would raise the errors of its children now, which the body may handle."""
    group = _awaited_group(body)
    return bool(getattr(group, "_errors", ())) and not getattr(group, "_tasks", ())


def _wait_for_has_result(body: Any) -> bool:
    """Whether ``wait_for`` of Python 3.11 would return a result instead of raising CancelledError."""
    awaited = _local_of(body, _WAIT_FOR, "fut")
    return isinstance(awaited, asyncio.Future) and awaited.done()


def _local_of(body: Any, code: CodeType, name: str) -> Any:
    """Return a variable of the coroutine in which a body waits, if that is one of this function."""
    while (awaited := getattr(body, "cr_await", None)) is not None and hasattr(awaited, "cr_await"):
        body = awaited
    frame = getattr(body, "cr_frame", None)
    return frame.f_locals.get(name) if frame is not None and frame.f_code is code else None
