"""Signals of a process: SIGTERM and SIGINT ask it to stop, as often as they come and until it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_STOPS = (signal.SIGTERM, signal.SIGINT)


def on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` on the running loop for every SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    ours = os.getpid()

    def handle(number: int, _frame: object) -> None:
        if os.getpid() != ours:
            # A child that an agent forked: the signal is meant for it, and it has not asked for our manners.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(signal.Signals(number))
        elif not loop.is_closed():
            loop.call_soon_threadsafe(stop)

    for number in _STOPS:
        signal.signal(number, handle)


def ignore_signals() -> None:
    """Let nothing disturb a process that leaves: a last SIGTERM would turn its exit code 0 into a death."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
