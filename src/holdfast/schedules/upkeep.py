"""Upkeep of the schedules: what dead schedulers held comes back, and the leader sweeps what has no lease."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from holdfast.errors import LeaseLost
from holdfast.leases.leadership import LeaderTask
from holdfast.redis.client import TROUBLE
from holdfast.schedules.orphans import Orphans, cleanup_leadership
from holdfast.schedules.periodic import PeriodicTask
from holdfast.schedules.redis_errors import counting_discarded, script_failed
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import SchedulerSettings
    from holdfast.leases.keeper import Keeper
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.telemetry.metrics import Metrics

_BATCH: Final = 100
_LONGEST_SECONDS: Final = 1.0
_LONGEST_PASS: Final = 0.75
"""Of the leader's ttl."""
_POSITION_KEPT: Final = 10
"""Intervals for which the position of a sweep that ended early is kept."""

_log = get_logger(__name__)


class Upkeep:
    """Both nets of one scheduler, as rounds that go on until cancelled."""

    def __init__(
        self,
        redis: Redis,
        keys: ScheduleKeys,
        settings: SchedulerSettings,
        metrics: Metrics,
        *,
        keeper: Keeper,
        owner: str,
        ttl_seconds: float,
        wake: Callable[[], None],
    ) -> None:
        cleanup = settings.orphan_cleanup
        self._settings = cleanup
        self._metrics = metrics
        self._wake = wake
        self._every = min(ttl_seconds / 10, _LONGEST_SECONDS)
        self._orphans = Orphans(
            redis,
            keys,
            threshold_seconds=cleanup.threshold_ms / 1000,
            remove_numeric=cleanup.remove_numeric_only_agents,
            kept_turns=settings.kept_turns,
            discarded=counting_discarded(metrics),
            position_ttl_ms=_POSITION_KEPT * cleanup.interval_ms,
        )
        self._keeper = keeper
        leadership = cleanup_leadership(keys, owner=owner, ttl_ms=cleanup.leadership_ttl_ms)
        self._longest_seconds = leadership.ttl_seconds * _LONGEST_PASS
        self._leader_task = LeaderTask(redis, leadership, longest_seconds=self._longest_seconds)
        self.cleaned = 0

    async def reclaim(self) -> None:
        """Bring back what was not renewed, whoever held it."""
        while True:
            await asyncio.sleep(self._every)
            try:
                while await self._reclaim_once() == _BATCH:
                    pass
            except TROUBLE as exc:
                script_failed(self._metrics, exc)

    async def _reclaim_once(self) -> int:
        found = await self._orphans.reclaim(_BATCH)  # guard: schedule-reclaim-runs
        if found:
            self.cleaned += len(found)
            self._metrics.schedule_reclaimed.inc(len(found))
            owners = sorted({one.owner for one in found})
            _log.warning(
                "schedules taken back: their owners stopped renewing", turns=len(found), owners=owners
            )
            self._wake()
        return len(found)

    def sweeping(self) -> PeriodicTask | None:
        """Look at both sets every interval, if we lead or all schedulers do it; None if switched off."""
        settings = self._settings
        if not settings.enabled:
            return None
        return PeriodicTask(
            "orphan-cleanup",
            self.sweep,
            first_after=settings.interval_ms / 1000,
            await_ms=settings.executor_shutdown_await_ms,
            force_await_ms=settings.executor_shutdown_force_await_ms,
        )

    async def sweep(self) -> float:
        """Make one pass, count how it went, and return the seconds until the next."""
        interval, began = self._settings.interval_ms / 1000, time.monotonic()
        try:
            result = await self._sweep_once()
        except (TimeoutError, LeaseLost):
            result = "hung"
        except TROUBLE as exc:
            script_failed(self._metrics, exc)
            result = "failed"
        self._metrics.schedule_sweeps.labels(result).inc()
        _log.debug("sweep for orphans ended", result=result, seconds=round(time.monotonic() - began, 3))
        # Passes that became due while this one was on are left out: the next comes when it would have.
        skipped, late = divmod(time.monotonic() - began, interval)
        self._metrics.schedule_sweeps.labels("skipped").inc(skipped)
        return interval - late

    async def _sweep_once(self) -> str:
        if self._settings.force_all_pods:
            async with asyncio.timeout(self._longest_seconds):
                return await self._pass()
        result = await self._leader_task.perform(self._keeper, self._pass)
        return result or "elsewhere"  # guard: sweep-leader-only

    async def _pass(self) -> str:
        swept = await self._orphans.sweep(budget_seconds=self._settings.run_budget_ms / 1000)
        for word, count in swept.found.items():
            self._metrics.schedule_repaired.labels(word.value).inc(count)
            self.cleaned += count
        if swept.found:
            _log.warning("schedules repaired", **{word.value: count for word, count in swept.found.items()})
            self._wake()
        return "whole" if swept.whole else "over_budget"
