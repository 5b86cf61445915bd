"""Permits: a limit of concurrent work. Taken before work is acquired, given back when it has ended."""

from __future__ import annotations

import asyncio


class Permits:
    """A counted set of permits; a limit of zero or less means unlimited."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """How many can be taken now."""
        return max(self.limit - self.taken, 0) if self.limit > 0 else 2**31

    def take(self, wanted: int = 1) -> int:
        """Take up to ``wanted`` permits; return how many were taken."""
        got = min(wanted, self.free)
        self.taken += got
        return got

    def give(self, count: int = 1) -> None:
        """Give permits back; raise ValueError if more are given than were taken."""
        if count > self.taken:
            raise ValueError(f"gave back {count} permits but only {self.taken} are taken")
        self.taken -= count
        if count:
            self._freed.set()

    async def wait_free(self) -> None:
        """Return as soon as at least one permit can be taken."""
        while not self.free:
            self._freed.clear()
            await self._freed.wait()
