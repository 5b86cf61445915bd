"""How a scheduler is: gauges every few seconds, and the document's summary line every period."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.redis.client import TROUBLE
from holdfast.schedules.cadence import period
from holdfast.schedules.health import Health, Sample, health, problems, summary
from holdfast.schedules.troubles import script_failed
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import RedisSettings
    from holdfast.schedules.registry import Registry
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.scheduler import Scheduler
    from holdfast.schedules.upkeep import Upkeep
    from holdfast.telemetry.metrics import Metrics

_GAUGES_SECONDS: Final = 5.0
_SCRIPTS: Final = 14

_log = get_logger(__name__)


class Report:
    """Samples one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        registry: Registry,
        upkeep: Upkeep,
        schedules: Sequence[Schedule],
        settings: RedisSettings,
        metrics: Metrics,
    ) -> None:
        self._scheduler = scheduler
        self._registry = registry
        self._upkeep = upkeep
        self._settings = settings
        self._metrics = metrics
        periods = [period(one, 0.0) for one in schedules if scheduler.accepts(one.name)]
        self._counted: dict[tuple[str, str], int] = {}
        self._shortest = min((one for one in periods if one is not None), default=None)

    async def run(self) -> None:
        """Measure until cancelled; say how it is every summary period."""
        every = self._settings.scheduler.health_summary_period_seconds
        loop = asyncio.get_running_loop()
        said = loop.time()
        while True:
            try:
                sample = await self.measure()
            except TROUBLE as exc:
                script_failed(self._metrics, exc)
            else:
                if 0 < every <= loop.time() - said:
                    said = loop.time()
                    say = _log.info if health(sample) is Health.HEALTHY else _log.warning
                    say(summary(sample), problems=list(problems(sample)))
            await asyncio.sleep(min(_GAUGES_SECONDS, every) if every > 0 else _GAUGES_SECONDS)

    async def measure(self) -> Sample:
        """Look at the sets and at the scheduler, and set the gauges."""
        # guard: breakers-counted-first
        self._count_breakers()  # first: while Redis is away nothing after the next line is reached
        counts, scheduler, metrics = await self._registry.count(), self._scheduler, self._metrics
        overdue = max(counts.now - counts.earliest, 0.0) if counts.earliest is not None else 0.0
        permits = scheduler.permits
        sample = Sample(
            registered=counts.registered,
            running=len(scheduler.running),
            scripts=_SCRIPTS,
            ready=counts.due,
            oldest_overdue_seconds=overdue,
            shortest_interval_seconds=self._shortest,
            capacity_per_cycle=min(permits.free, self._settings.scheduler.batch_operations.per_script),
            permits=permits.limit if permits.limit > 0 else None,
            free=permits.free,
            zombies_cleaned=scheduler.zombies.found,
            orphans_cleaned=self._upkeep.cleaned,
            queue_depth=counts.due,
            overlapping=counts.overlapping,
        )
        metrics.schedule_registered.set(counts.registered)
        metrics.schedule_waiting.set(counts.waiting)
        metrics.schedule_working.set(counts.working)
        metrics.schedule_due.set(counts.due)
        metrics.schedule_oldest_overdue_seconds.set(overdue)
        metrics.schedule_capacity.set(sample.capacity_per_cycle)
        metrics.schedule_degraded.set(health(sample) is Health.DEGRADED)
        return sample

    def _count_breakers(self) -> None:
        for name, breaker in self._scheduler.breakers.items():
            self._metrics.schedule_breaker_state.labels(name).set(breaker.state.level)
            now = {"trip": breaker.trips, "blocked": breaker.blocked, "recovery": breaker.recoveries}
            for event, count in now.items():
                before = self._counted.get((name, event), 0)
                self._metrics.schedule_breaker_events.labels(name, event).inc(count - before)
                self._counted[name, event] = count
