"""One timer for many: looks when the first of them is due. A timer for each is dear on every event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NEVER = float("inf")


class Lookout:
    """Calls ``look`` at the earliest time that was asked for; whoever is due later asks again from there."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._at = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float) -> None:
        """Look at ``when``, a time of the running loop, if nothing earlier was asked for."""
        if when >= self._at:
            return
        self.close()
        self._at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._ring)

    def after(self, seconds: float) -> None:
        """Look in so many seconds, if nothing earlier was asked for."""
        self.at(asyncio.get_running_loop().time() + seconds)

    def close(self) -> None:
        """Look no more, until asked again."""
        if self._timer is not None:
            self._timer.cancel()
        self._at, self._timer = _NEVER, None

    def _ring(self) -> None:
        self._at, self._timer = _NEVER, None
        self._look()
