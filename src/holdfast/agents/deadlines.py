"""The deadlines of all that one worker invokes, by one timer; most invocations end long before theirs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.leases.timers import SharedTimer

if TYPE_CHECKING:
    from collections.abc import Callable


class Deadlines:
    """Calls each function whose time is over, once."""

    def __init__(self) -> None:
        self._due: dict[Callable[[], None], float] = {}
        self._timer = SharedTimer(self._check)

    def set(self, call: Callable[[], None], at: float) -> None:
        """Have ``call`` called at a time of the loop."""
        self._due[call] = at
        self._timer.at(at)

    def clear(self, call: Callable[[], None]) -> None:
        """Forget it: it is done."""
        self._due.pop(call, None)

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for call, at in list(self._due.items()):
            if at <= now:
                del self._due[call]
                loop.call_soon(call)  # each on its own: one that fails must not keep the others from ending
            else:
                self._timer.at(at)
