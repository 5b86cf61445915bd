"""How a scheduler is: gauges every few seconds, and the document's summary line every period."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.redis.client import TROUBLE, unavailable
from holdfast.redis.scripts import loaded_from
from holdfast.schedules.backlog import KnownSchedules, backlog_of, everything
from holdfast.schedules.health import Health, Sample, health, problems, summary
from holdfast.schedules.schedule import family
from holdfast.schedules.troubles import script_failed
from holdfast.schedules.watchdogs import PATIENCE
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from holdfast.config import RedisSettings
    from holdfast.schedules.backlog import Backlog
    from holdfast.schedules.registry import Counts, Registry
    from holdfast.schedules.scheduler import Scheduler
    from holdfast.schedules.upkeep import Upkeep
    from holdfast.telemetry.metrics import Metrics

_GAUGES_SECONDS: Final = 5.0
_NAMES_ADVISED: Final = 3

_log = get_logger(__name__)


class Report:
    """Samples one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        registry: Registry,
        upkeep: Upkeep,
        agents: Collection[str],
        settings: RedisSettings,
        metrics: Metrics,
    ) -> None:
        self._scheduler = scheduler
        self._registry = registry
        self._upkeep = upkeep
        self._settings = settings
        self._metrics = metrics
        self._definitions = KnownSchedules(registry, agents)
        self._stranded = Stranded()
        self._filtered = Filtered()
        self._counted: dict[tuple[str, str], int] = {}
        self._last = Sample()
        self._earliest: float | None = None
        self._measured_at = 0.0
        self._answered_at = time.monotonic()

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
                sample = self._without_counts(exc)
            if 0 < every <= loop.time() - said:
                said = loop.time()
                say = _log.info if health(sample) is Health.HEALTHY else _log.warning
                say(summary(sample), problems=list(problems(sample)), due_elsewhere=sample.elsewhere)
            await asyncio.sleep(min(_GAUGES_SECONDS, every) if every > 0 else _GAUGES_SECONDS)

    async def measure(self) -> Sample:
        """Look at the sets and at the scheduler, and set the gauges."""
        # guard: breakers-counted-first
        self._count_breakers()  # first: while Redis is away nothing after the next line is reached
        counts, metrics = await self._registry.count(), self._metrics
        await self._definitions.refresh()  # guard: definitions-read-again
        backlog = await self._backlog(counts)
        self._scheduler.note_backlog(backlog.due)
        self._stranded.look(backlog.without_agent)
        if self._scheduler.shards is None:  # else most of what is due is in the shares of others
            self._filtered.look(backlog.due, backlog.elsewhere - len(backlog.without_agent))
        self._earliest, self._measured_at = backlog.earliest, counts.now
        self._answered_at = time.monotonic()
        metrics.schedule_registered.set(counts.registered)
        metrics.schedule_waiting.set(counts.waiting)
        metrics.schedule_working.set(counts.working)
        metrics.schedule_due.set(backlog.due)
        metrics.schedule_due_elsewhere.set(backlog.elsewhere)
        return self._sampled(
            Sample(
                registered=counts.registered,
                scripts=loaded_from(__package__),
                ready=backlog.due,
                elsewhere=backlog.elsewhere,
                oldest_overdue_seconds=_since(backlog.earliest, counts.now),
                shortest_interval_seconds=self._shortest(),
                queue_depth=backlog.due,
                overlapping=counts.overlapping,
            )
        )

    async def _backlog(self, counts: Counts) -> Backlog:
        """What waits for this scheduler; only one that leaves some to others must look at the names."""
        if not self._scheduler.chooses and not self._definitions.lacks_agents:
            return everything(counts)
        return await backlog_of(self._registry, counts, self._scheduler.is_for_here, self._definitions)

    def _shortest(self) -> float | None:
        return self._definitions.shortest(self._scheduler.is_for_here, self._scheduler.shards)

    def _without_counts(self, exc: Exception) -> Sample:
        """How it is while Redis does not answer, or refuses: what was known, but later than it was."""
        earliest, shortest = self._earliest, self._last.shortest_interval_seconds
        if earliest is None and shortest is not None:
            # All of them were running: one is due again a period later at most.
            earliest = self._measured_at + shortest  # guard: overdue-while-all-run
        overdue = _since(earliest, self._scheduler.clock.now())
        # guard: refusal-is-an-answer
        refused = "" if unavailable(exc) else str(exc) or type(exc).__name__
        if refused:
            self._answered_at = time.monotonic()
        silent = None if refused else time.monotonic() - self._answered_at
        for unknown in (self._metrics.schedule_due, self._metrics.schedule_due_elsewhere):
            unknown.set(math.nan)  # the last count would be read as that of now
        last = replace(self._last, oldest_overdue_seconds=overdue, silent_seconds=silent, refused=refused)
        return self._sampled(last)

    def _sampled(self, sample: Sample) -> Sample:
        """Add what the scheduler itself knows, and set the gauges that say how it is."""
        scheduler, permits, metrics = self._scheduler, self._scheduler.permits, self._metrics
        capacity = min(permits.free, self._settings.scheduler.batch_operations.per_script)
        self._last = sample = replace(
            sample,
            running=len(scheduler.running),
            capacity_per_cycle=capacity,
            permits=permits.limit if permits.limit > 0 else None,
            free=permits.free,
            zombies_cleaned=scheduler.zombies.found,
            orphans_cleaned=self._upkeep.cleaned,
        )
        metrics.schedule_oldest_overdue_seconds.set(sample.oldest_overdue_seconds)
        metrics.schedule_capacity.set(capacity)
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


class Stranded:
    """Warns of schedules that stay due because this app has no agent for them: perhaps no other has."""

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}

    def look(self, without_agent: Mapping[str, str]) -> None:
        """Take one look into account; each schedule is warned of once while it stays due."""
        self._looks = {name: self._looks.get(name, 0) + 1 for name in without_agent}
        new = sorted(name for name, looks in self._looks.items() if looks == PATIENCE)
        if not new:
            return
        agents = {family(name): without_agent[name] for name in new}
        names = list(agents)[:_NAMES_ADVISED]
        _log.warning(
            "schedules are due that this app has no agent for",
            schedules=len(agents),
            without_agent=[f"{name} (agent {agents[name]})" for name in names],
            advice="unless another scheduler's app has such an agent, deploy it, or "
            + ", ".join(f"`holdfast schedules remove {name} --force`" for name in names),
        )


class Filtered:
    """Warns once while most of what is due is excluded here: patterns may exclude too much."""

    def __init__(self) -> None:
        self._looks = 0

    def look(self, here: int, excluded: int) -> None:
        """Take one look into account: how many due schedules are run here, and how many are excluded."""
        self._looks = self._looks + 1 if excluded > here else 0
        if self._looks == PATIENCE:
            _log.warning(
                "most of the schedules that are due are not run here",
                excluded=excluded,
                here=here,
                advice="unless other schedulers run them, check redis.agent.enabled-pattern and "
                "disabled-pattern",
            )


def _since(at: float | None, now: float) -> float:
    return max(now - at, 0.0) if at is not None else 0.0
