"""Reconciling: the schedules of the code and those in Redis are brought together, again and again.

Only what is missing is added and only what has changed is written; what is known keeps its turn.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.schedules.words import Registered
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import SchedulerSettings
    from holdfast.schedules.registry import Registry
    from holdfast.schedules.schedule import Schedule

_BATCH = 500

_log = get_logger(__name__)


class Reconcile:
    """One scheduler's own definitions, and everybody's that have lost their place."""

    def __init__(
        self, registry: Registry, schedules: Sequence[Schedule], settings: SchedulerSettings
    ) -> None:
        self._registry = registry
        self._schedules = schedules
        self._jitter = settings.jitter.initial_registration_seconds
        self._budget = settings.reconcile.run_budget_ms / 1000 or float("inf")
        self._at = 0

    async def run_once(self) -> bool:
        """Do one pass; False if its budget ended it, and the next goes on from there."""
        ends = time.monotonic() + self._budget
        changed = 0
        while self._at < len(self._schedules):
            if time.monotonic() >= ends:
                return False
            words = await self._registry.register(
                self._schedules[self._at : self._at + _BATCH], jitter_seconds=self._jitter
            )
            changed += sum(word is not Registered.UNCHANGED for word in words)
            self._at += _BATCH
        self._at = 0
        restored = await self._registry.repopulate(jitter_seconds=self._jitter)
        if changed or restored:
            _log.info("schedules registered", changed=changed, restored=len(restored))
        return True
