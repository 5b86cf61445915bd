"""The deadlines of all that one worker invokes, by one timer; most invocations end long before theirs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.lookout import Lookout

if TYPE_CHECKING:
    from collections.abc import Callable


class Deadlines:
    """Calls whoever is not done by its time, once."""

    def __init__(self) -> None:
        self._due: dict[Callable[[], None], float] = {}
        self._lookout = Lookout(self._look)

    def set(self, call: Callable[[], None], at: float) -> None:
        """Have ``call`` called at a time of the loop."""
        self._due[call] = at
        self._lookout.at(at)

    def clear(self, call: Callable[[], None]) -> None:
        """Forget it: it is done."""
        self._due.pop(call, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for call, at in list(self._due.items()):
            if at <= now:
                del self._due[call]
                loop.call_soon(call)  # each on its own: one that fails must not keep the others from ending
            else:
                self._lookout.at(at)
