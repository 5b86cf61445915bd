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
        self._left: list[Turn] = []
        """What the budget kept the last scan from looking at, to begin the next with."""
        self.found = 0

    def scan(self, now: float) -> bool:
        """Abandon what is overdue at ``now``, which is Redis's time; False if the budget ended it.

        One turn at least is looked at, and the next scan goes on with the rest.
        """
        ends = time.monotonic() + self._budget
        turns = [turn for turn in self._left if turn in self._running] or list(self._running)
        looked_at = 0
        for turn in turns:
            looked_at += 1
            if not turn.told and self._overrun.left(turn.run.name, turn.run.deadline, now) <= 0:
                self._abandon(turn)
                self.found += 1
            if time.monotonic() >= ends:
                break
        self._left = turns[looked_at:]  # guard: zombie-scan-goes-on
        return not self._left
