"""The clock of Redis as this process knows it: for timers only, the scripts ask Redis itself."""

from __future__ import annotations

import asyncio
import time


class RedisClock:
    """Redis's time, from its last answer and the loop's clock; before any answer the machine's."""

    def __init__(self) -> None:
        self._offset: float | None = None

    def heard(self, now: float, asked_at: float) -> None:
        """Take an answer into account that was asked for at the loop's time ``asked_at``."""
        answered = asyncio.get_running_loop().time()
        self._offset = now - (asked_at + answered) / 2

    def now(self) -> float:
        """Redis's time, epoch seconds."""
        return time.time() if self._offset is None else asyncio.get_running_loop().time() + self._offset

    def until(self, at: float) -> float:
        """Seconds from now to a time of Redis."""
        return at - self.now()
