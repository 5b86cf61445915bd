"""The deadlines of all that an event loop invokes, by one timer; invocations end long before theirs."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from holdfast.lookout import Lookout

if TYPE_CHECKING:
    from collections.abc import Callable

_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Deadlines] = weakref.WeakKeyDictionary()


class Deadlines:
    """Calls whoever is not done by its time, once."""

    def __init__(self) -> None:
        self._due: dict[Callable[[], None], float] = {}
        self._lookout = Lookout(self._look)

    @classmethod
    def here(cls) -> Deadlines:
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        found = _of_loops.get(loop)
        if found is None:
            found = _of_loops[loop] = cls()
        return found

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
