"""Signals of a process: every SIGTERM and SIGINT asks it to stop, until it has exited.

A command that is not a service only handles SIGINT (Ctrl-C): ``run_until_interrupted``.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

_STOPS = (signal.SIGTERM, signal.SIGINT)


def on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on the running loop for every SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    ours = os.getpid()

    def handle(number: int, _frame: object) -> None:
        if os.getpid() != ours:
            # A child that an agent forked: it gets the default action, because it does not run our loop.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(signal.Signals(number))
        elif not loop.is_closed():
            loop.call_soon_threadsafe(stop)

    for number in _STOPS:
        signal.signal(number, handle)


def ignore_signals() -> None:
    """Ignore signals while the process exits: a last SIGTERM would replace its exit code 0."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


def run_until_interrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end; SIGINT cancels it, and raises KeyboardInterrupt when it has ended.

    The handler of asyncio.run cancels between any two instructions of the event loop, which then finds a
    future done that was pending a moment before, and prints a traceback. This handler runs as a callback of
    the loop; a second SIGINT does not wait.
    """
    interrupted = False

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            interrupted = True
            loop.remove_signal_handler(signal.SIGINT)  # guard: second-interrupt-at-once
            task.cancel()

        # A script's background job ignores SIGINT: Ctrl-C is meant for the command in the foreground.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # guard: interrupt-in-background
            loop.add_signal_handler(signal.SIGINT, interrupt)  # guard: interrupt-waits-its-turn
        return await work

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        # If SIGINT came before its first step, the coroutine was never awaited, and Python would warn of it.
        work.close()  # guard: interrupted-work-closed
