"""Zombies: turns beyond deadline and threshold whose agents ignored being stopped.

The dead-man timer of each turn stops it on time; this scan is the net below, on Redis's clock.
A zombie's schedule goes on without it, but its permit stays taken until its body has really ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.schedules.patterns import Overrun
    from holdfast.schedules.running import Running, Turn


class Zombies:
    """Finds zombies among the running turns."""

    def __init__(
        self,
        running: Running,
        overrun: Overrun,
        abandon: Callable[[Turn], None],
        *,
        budget_seconds: float = 0.0,
    ) -> None:
        self._running = running
        self._overrun = overrun
        self._abandon = abandon
        self._budget = budget_seconds or float("inf")
        self.found = 0

    def scan(self, now: float) -> int:
        """Abandon what is overdue at ``now``, which is Redis's time; return how many it were."""
        ends = time.monotonic() + self._budget
        found = 0
        for turn in self._running:
            if time.monotonic() >= ends:
                break
            if not turn.told and self._overrun.left(turn.run.name, turn.run.deadline, now) <= 0:
                self._abandon(turn)
                found += 1
        self.found += found
        return found
