"""Zombies: firings beyond deadline and threshold whose agents ignored being stopped.

The timer of each firing stops it on time; this scan, on Redis's clock, finds those that ignored it. The next
turn of a zombie's schedule comes all the same; its permit stays taken until its body has ended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.schedules.schedule import family
from holdfast.schedules.selection import pattern_of

if TYPE_CHECKING:
    import re
    from collections.abc import Callable
    from typing import Self

    from holdfast.config.scheduling import ZombieCleanupSettings
    from holdfast.schedules.firing import Firing, RunningFirings


@dataclass(frozen=True, slots=True)
class Overrun:
    """How long a run may go on after its deadline; times are those of Redis, never of this machine."""

    seconds: float
    exceptional: re.Pattern[str] | None = None
    exceptional_seconds: float = 0.0

    @classmethod
    def of(cls, settings: ZombieCleanupSettings) -> Self:
        """Read the thresholds of the settings."""
        pattern = "redis.scheduler.zombie-cleanup.exceptional-agents.pattern"
        return cls(
            settings.threshold_ms / 1000,
            pattern_of(settings.exceptional_agents.pattern, pattern),
            settings.exceptional_agents.threshold_ms / 1000,
        )

    def allowed(self, name: str) -> float:
        """Return the seconds that a schedule may overrun its deadline."""
        if self.exceptional is not None and self.exceptional.fullmatch(family(name)):
            return self.exceptional_seconds
        return self.seconds

    def left(self, name: str, deadline: float, now: float) -> float:
        """Return how long the run may still go on at ``now``, which is Redis's time; 0 or less is over."""
        return deadline + self.allowed(name) - now


class Zombies:
    """Finds zombies among the running firings."""

    def __init__(
        self,
        running: RunningFirings,
        overrun: Overrun,
        abandon: Callable[[Firing], None],
        *,
        budget_seconds: float = 0.0,
    ) -> None:
        self._running = running
        self._overrun = overrun
        self._abandon = abandon
        self._budget = budget_seconds or float("inf")
        self._left: list[Firing] = []
        """What the last scan did not reach within its budget; the next begins with it."""
        self.found = 0

    def scan(self, now: float) -> bool:
        """Abandon what is overdue at ``now``, which is Redis's time; False if the budget ended it.

        One firing at least is checked, and the next scan goes on with the rest.
        """
        ends = time.monotonic() + self._budget
        firings = [firing for firing in self._left if firing in self._running] or list(self._running)
        checked = 0
        for firing in firings:
            checked += 1
            if (
                not firing.decided
                and self._overrun.left(firing.acquired.name, firing.acquired.deadline, now) <= 0
            ):
                self._abandon(firing)
                self.found += 1
            if time.monotonic() >= ends:
                break
        self._left = firings[checked:]  # guard: zombie-scan-goes-on
        return not self._left
