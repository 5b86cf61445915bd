"""Health reports of a scheduler: gauges every few seconds, and the summary line every period."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import InputError
from holdfast.redis.client import TROUBLE, unavailable
from holdfast.redis.scripts import loaded_from
from holdfast.schedules.fire_times import period
from holdfast.schedules.health import PATIENCE, Sample, ScheduleHealth, health, problems, summary
from holdfast.schedules.redis_errors import script_failed
from holdfast.schedules.replies import BATCH, CHUNK
from holdfast.schedules.schedule import decoded, family
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from holdfast.config import RedisSettings
    from holdfast.schedules.acquisition import Accept
    from holdfast.schedules.registry import DefinitionsVersion, ScheduleCounts, ScheduleRegistry
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.scheduler import Scheduler
    from holdfast.schedules.upkeep import Upkeep
    from holdfast.telemetry.metrics import Metrics

_GAUGES_SECONDS: Final = 5.0
_NAMES_ADVISED: Final = 3
_PAGES: Final = 11
"""How far one sample goes for the first turn of this scheduler when that is not due yet."""

_log = get_logger(__name__)


class Report:
    """Samples one scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        registry: ScheduleRegistry,
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
        """Measure until cancelled; log the summary line every summary period."""
        every = self._settings.scheduler.health_summary_period_seconds
        loop = asyncio.get_running_loop()
        logged_at = loop.time()
        while True:
            try:
                sample = await self.measure()
            except TROUBLE as exc:
                script_failed(self._metrics, exc)
                sample = self._without_counts(exc)
            if 0 < every <= loop.time() - logged_at:
                logged_at = loop.time()
                log = _log.info if health(sample) is ScheduleHealth.HEALTHY else _log.warning
                log(summary(sample), problems=list(problems(sample)), due_elsewhere=sample.elsewhere)
            await asyncio.sleep(min(_GAUGES_SECONDS, every) if every > 0 else _GAUGES_SECONDS)

    async def measure(self) -> Sample:
        """Take a sample of the sets and of the scheduler, and set the gauges."""
        # guard: breakers-counted-first
        self._count_breakers()  # first: while Redis is away nothing after the next line is reached
        counts, metrics = await self._registry.count(), self._metrics
        await self._definitions.refresh()  # guard: definitions-read-again
        backlog = await self._backlog(counts)
        # Before anything is set: if Redis goes away now, the gauges and the last sample stay of one time.
        shortest = await self._shortest()  # guard: sample-is-whole
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
                shortest_interval_seconds=shortest,  # guard: sample-shortest
                queue_depth=backlog.due,
                overlapping=counts.overlapping,
            )
        )

    async def _backlog(self, counts: ScheduleCounts) -> Backlog:
        """Count what waits for this scheduler; names matter only to one that leaves some to others."""
        if not self._scheduler.chooses and not self._definitions.lacks_agents:
            return everything(counts)
        return await backlog_of(self._registry, counts, self._scheduler.is_for_here, self._definitions)

    async def _shortest(self) -> float | None:
        return await self._definitions.shortest(self._scheduler.is_for_here, self._scheduler.shards)

    def _without_counts(self, exc: Exception) -> Sample:
        """Return the last sample with a later time: for while Redis does not reply, or refuses."""
        earliest, shortest = self._earliest, self._last.shortest_interval_seconds
        if earliest is None and shortest is not None:
            # All were running: one is due again a period later at most.
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
        """Add the figures of the scheduler itself, and set the gauges of its health."""
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
        metrics.schedule_degraded.set(health(sample) is ScheduleHealth.DEGRADED)
        return sample

    def _count_breakers(self) -> None:
        for name, breaker in self._scheduler.breakers.by_name.items():
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
        """Take one sample into account; each schedule is warned of once while it stays due."""
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
        """Take one sample into account: how many due schedules are run here, and how many are excluded."""
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


class Known(msgspec.Struct, frozen=True):
    """The parts of a definition that health needs."""

    agent: str
    """The agent that this app lacks for it; empty if it can run here."""
    seconds: float | None
    """Its period; None if it has none."""


class KnownSchedules:
    """The definitions of all schedules, read again only when some have changed."""

    def __init__(self, registry: ScheduleRegistry, agents: Collection[str]) -> None:
        self._registry = registry
        self._agents = agents
        self._standing: DefinitionsVersion | None = None
        self.known: dict[str, Known] = {}
        self._shortest: tuple[object, object, float | None] | None = None

    async def refresh(self) -> None:
        """Read all definitions, also those made at run time, if any has changed."""
        standing = await self._registry.standing()
        if standing == self._standing:
            return
        known: dict[str, Known] = {}
        cursor = ""
        while cursor != "0":
            cursor, page = await self._registry.definitions(cursor or "0")
            for name, spec in page.items():
                one = self._known(spec)
                if one is not None:
                    known[name] = one
        self.known, self._standing = known, standing

    def _known(self, spec: bytes) -> Known | None:
        try:
            schedule = decoded(spec)
            return Known(self._lacking(schedule), period(schedule, 0.0))
        except InputError:  # the scheduler that acquires it logs what is wrong
            return None

    def _lacking(self, schedule: Schedule) -> str:
        return "" if schedule.target or schedule.agent in self._agents else schedule.agent

    @property
    def lacks_agents(self) -> bool:
        """Whether this app lacks the agent of any schedule."""
        return any(one.agent for one in self.known.values())

    def agent_lacking(self, name: str) -> str:
        """The agent that this app lacks for a schedule or a turn; empty if it has it, or it is unknown."""
        one = self.known.get(name) or self.known.get(family(name))  # guard: agent-of-turns
        return one.agent if one is not None else ""

    async def shortest(self, accepts: Callable[[str], bool], shards: object = None) -> float | None:
        """Return the shortest period of what is run here; None if nothing with a period is.

        What is paused or done does not count. It is computed again only when a definition, a pause or the
        shards change: there may be very many.
        """
        last = self._shortest
        if last is None or last[0] is not self.known or last[1] is not shards:
            last = self._shortest = (self.known, shards, await self._find_shortest(accepts))
        return last[2]

    async def _find_shortest(self, accepts: Callable[[str], bool]) -> float | None:
        here = [
            (one.seconds, name)
            for name, one in self.known.items()
            if one.seconds is not None and not one.agent and accepts(name)
        ]
        here.sort()
        # Most are active: the first chunk nearly always has one.
        for start in range(0, len(here), CHUNK):
            chunk = here[start : start + CHUNK]
            active = await self._registry.active([name for _, name in chunk])  # guard: shortest-of-active
            for seconds, name in chunk:
                if name in active:
                    return seconds
        return None


class Backlog(msgspec.Struct, frozen=True):
    """What waits for one scheduler: disabled names, other shards and unknown agents do not count."""

    due: int
    elsewhere: int
    """How many are due and not run here."""
    earliest: float | None
    """The first turn of all that are run here, due or not; None if there is none."""
    without_agent: dict[str, str] = {}
    """Those that are due and whose agent this app lacks, with the agent."""


def everything(counts: ScheduleCounts) -> Backlog:
    """Return the backlog of a scheduler that runs all that is due."""
    return Backlog(counts.due, 0, counts.earliest)


async def backlog_of(
    registry: ScheduleRegistry, counts: ScheduleCounts, accepts: Accept, definitions: KnownSchedules
) -> Backlog:
    """Look for those that are run here, page by page, through all that are due."""
    due = elsewhere = 0
    earliest: float | None = None
    without_agent: dict[str, str] = {}
    for start in itertools.count(0, BATCH):
        page = await registry.waiting(start, BATCH)
        for name, at in page:
            is_due, lacking = at <= counts.now, definitions.agent_lacking(name)
            if lacking or not accepts(name, counts.now - at):  # guard: backlog-of-this-scheduler
                elsewhere += is_due
                if lacking and is_due:
                    without_agent[name] = lacking
                continue
            due += is_due
            earliest = at if earliest is None else earliest
        if len(page) < BATCH:
            break
        # All that are due are read: behind thousands that are not run here may be its own.
        is_all_due = page[-1][1] > counts.now  # guard: all-due-read
        if is_all_due and (earliest is not None or start >= _PAGES * BATCH):
            break
    return Backlog(due, elsewhere, earliest, without_agent)
