"""Wait for a condition, never for a duration: a failure says what was waited for, how long, and what was there instead.

``await until(...)`` is for coroutines, ``wait_until(...)`` for synchronous code. Both read a value again and again until it
is accepted, and return it. ``await stays(...)`` shows that something does *not* happen for a while.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

# Ample, because a slow machine is no defect. Give fewer seconds only where the bound itself is the claim.
# A mutation guard sets the variable: with a mistake in the source, what is waited for may never come.
PATIENCE_SECONDS = float(os.environ.get("PATIENCE_OF_TESTS", "60"))

Tolerated = type[BaseException] | tuple[type[BaseException], ...]


async def until(
    read: Callable[[], Any],
    accept: Callable[[Any], Any] = bool,
    *,
    what: str = "",
    seconds: float = PATIENCE_SECONDS,
    tolerate: Tolerated = (),
) -> Any:
    """Return the first value of ``read()``, or of the coroutine that it returns, which ``accept`` finds true.

    ``what`` is for a reader of the failure, where the source of both says too little. Exceptions in ``tolerate``
    count as a value that is not accepted; any other one ends the waiting.
    """
    __tracebackhide__ = True
    last: Any = "nothing: it has not been read once"
    try:
        async with asyncio.timeout(seconds) as limit:
            for pause in _pauses():
                try:
                    last = await _value(read)
                    if accept(last):
                        return last
                except tolerate as exc:
                    last = exc
                await asyncio.sleep(pause)
    except TimeoutError:
        if not limit.expired():
            raise
    raise AssertionError(_failure(what or _source(read, accept), seconds, last))


def wait_until(
    read: Callable[[], Any],
    accept: Callable[[Any], Any] = bool,
    *,
    what: str = "",
    seconds: float = PATIENCE_SECONDS,
    tolerate: Tolerated = (),
) -> Any:
    """Do what ``until`` does, in synchronous code."""
    __tracebackhide__ = True
    end = time.monotonic() + seconds
    for pause in _pauses():
        try:
            last = read()
            if accept(last):
                return last
        except tolerate as exc:
            last = exc
        if time.monotonic() > end:
            break
        time.sleep(pause)
    raise AssertionError(_failure(what or _source(read, accept), seconds, last))


async def stays(condition: Callable[[], Any], *, seconds: float, what: str = "") -> None:
    """Check for some seconds, the whole time, that ``condition()`` (or its coroutine) is true.

    It holds on a slow machine as well, because a slow machine only does less of what must not happen.
    """
    __tracebackhide__ = True
    began = time.monotonic()
    for pause in _pauses():
        last = await _value(condition)
        after = time.monotonic() - began
        assert last, f"after {after:.3f} s no longer: {what or _source(condition)}; the value was {last!r}"
        if after >= seconds:
            return
        await asyncio.sleep(min(pause, seconds - after))


async def _value(read: Callable[[], Any]) -> Any:
    found = read()
    return await found if inspect.iscoroutine(found) else found


def _pauses() -> Iterator[float]:
    """Short at first, as most conditions hold soon; longer later, so that waiting takes no CPU from what is waited for."""
    pause = 0.005
    while True:
        yield pause
        pause = min(pause * 1.1, 0.05)


def _failure(what: str, seconds: float, last: Any) -> str:
    seen = repr(last)
    return f"waited {seconds:g} s for: {what}\nthe last value was {seen[:2000]}{' ...' * (len(seen) > 2000)}"


def _source(*functions: Callable[..., Any]) -> str:
    """What the functions say, each source once: two lambdas in one statement have the same."""
    return " / ".join(dict.fromkeys(_text(function) for function in functions if function is not bool))


def _text(function: Callable[..., Any]) -> str:
    try:
        return " ".join(inspect.getsource(function).split())
    except (OSError, TypeError):  # a built-in, or code that was made at run time
        return getattr(function, "__qualname__", repr(function))
