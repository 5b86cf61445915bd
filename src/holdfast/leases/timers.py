"""One timer of the event loop for many deadlines: a timer per deadline is too slow on every event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_NEVER = float("inf")


class SharedTimer:
    """Calls ``check`` at the earliest requested time; ``check`` requests the next ones."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._at = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float) -> None:
        """Check at ``when``, a time of the running loop, unless an earlier check is requested."""
        if when >= self._at:
            return
        self.close()
        self._at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._fire)

    def after(self, seconds: float) -> None:
        """Check in so many seconds, unless an earlier check is requested."""
        self.at(asyncio.get_running_loop().time() + seconds)

    def close(self) -> None:
        """Cancel the next check."""
        if self._timer is not None:
            self._timer.cancel()
        self._at, self._timer = _NEVER, None

    def _fire(self) -> None:
        self._at, self._timer = _NEVER, None
        self._check()
