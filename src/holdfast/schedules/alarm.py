"""When a scheduler looks again: after a sleep, or sooner if something rings."""

from __future__ import annotations

import asyncio
import contextlib

TICK = 0.001
"""A timer may fire a little early, and a look before its time finds nothing."""


class Alarm:
    """One sleeper that anybody of its loop may wake."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._wakes_at = float("inf")

    def ring(self) -> None:
        """Wake the sleeper, or keep it from falling asleep."""
        self._rung.set()

    def ring_in(self, seconds: float) -> None:
        """Wake the sleeper then, if it would sleep longer."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(seconds, 0.0) + TICK
        if due < self._wakes_at:
            self._wakes_at = due
            loop.call_at(due, self._rung.set)

    def reset(self) -> None:
        """Forget what rang: the sleeper looks now."""
        self._rung.clear()
        self._wakes_at = float("inf")

    async def sleep(self, seconds: float) -> None:
        """Sleep so long, or until it rings."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._wakes_at = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
