"""The scheduler: acquires what is due while it has permits, and sleeps until something is.

Its life: ``run`` until ``quiet`` (nothing more is acquired); firings may finish for a while, then they
are stopped and given back. Invariant: a permit is taken before acquiring, and returned once, when the
body of its firing has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.clock import boot_time
from holdfast.errors import RedisUnavailable
from holdfast.redis.breaker import AWAY
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.command import command
from holdfast.redis.outages import redis_outages
from holdfast.schedules.acquisition import Acquirer
from holdfast.schedules.breakers import Breakers
from holdfast.schedules.firing import Firings
from holdfast.schedules.health import Cycle, Signal, Watchdogs
from holdfast.schedules.redis_errors import call_failed, script_failed
from holdfast.schedules.replies import Found
from holdfast.schedules.schedule import family
from holdfast.schedules.selection import Patterns
from holdfast.schedules.wakeup import TICK, Wakeup
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.config import RedisSettings
    from holdfast.leases.keeper import Keeper
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.acquisition import Acquisition
    from holdfast.schedules.context import SchedulerContext
    from holdfast.schedules.selection import Shards
    from holdfast.telemetry.metrics import Metrics

_ALL = {"", ".*"}
_NAMES_LOGGED = 10

_log = get_logger(__name__)


class Scheduler:
    """Runs the schedules of one set of keys; its signals and its upkeep are elsewhere."""

    def __init__(
        self,
        context: SchedulerContext,
        redis: Redis,
        keys: ScheduleKeys,
        settings: RedisSettings,
        *,
        keeper: Keeper,
        metrics: Metrics,
        ttl_seconds: float,
    ) -> None:
        scheduler, ttl_ms = settings.scheduler, int(ttl_seconds * 1000)
        self._context, self._redis, self._settings, self._metrics = context, redis, scheduler, metrics
        self.breakers = Breakers(scheduler.circuit_breaker, redis, keys)
        self._outages = redis_outages("turns of schedules", "no schedule is acquired until Redis answers")
        self._interval, self._ttl_seconds = scheduler.interval_ms / 1000, ttl_seconds
        self._wakeup = Wakeup()
        self._acquirer = Acquirer(
            redis, keys, owner=context.owner, ttl_ms=ttl_ms, scan_pages=scheduler.batch_operations.scan_pages
        )
        self.firings = firings = Firings(
            context,
            redis,
            keys,
            settings,
            keeper=keeper,
            metrics=metrics,
            ttl_ms=ttl_ms,
            breaker=self.breakers.redis,
            wakeup=self._wakeup,
        )
        self.permits, self.running = firings.permits, firings.running
        self.clock, self.zombies = firings.clock, firings.zombies
        self.watchdogs = Watchdogs()
        self.backlog = 0
        self._patterns = Patterns.of(settings.agent)
        self._takes_all = settings.agent.enabled_pattern in _ALL and not settings.agent.disabled_pattern
        self.shards: Shards | None = None
        self._is_quiet = False
        self._in_doubt = False
        self._acquired = metrics.schedule_acquired.child()
        metrics.schedule_running.set_function(lambda: len(firings.running))
        metrics.schedule_permits_free.set_function(lambda: firings.permits.free)
        metrics.schedule_recovery_queue.set_function(lambda: firings.completions.depth)

    # -- life

    async def run(self) -> None:
        """Acquire and run until quiet; return when the last firing has ended or was given back."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.firings.completions.run(), name="completions")]
            tasks.append(group.create_task(self.breakers.probe(self._wakeup.wake), name="probes"))
            if self._settings.zombie_cleanup.enabled:
                tasks.append(group.create_task(self.firings.scan_for_zombies(), name="zombies"))
            try:
                while not self._is_quiet:
                    await self._wakeup.sleep(await self._cycle())
                await self.firings.leave()
            finally:
                for task in tasks:
                    task.cancel()

    def quiet(self) -> None:
        """Acquire nothing more, and let the agents see that the scheduler drains."""
        self._is_quiet = True
        self._context.draining.set()
        self._wakeup.wake()

    def wake(self) -> None:
        """Look at once: something may be due that was not."""
        self._wakeup.wake()

    async def recheck_foreign(self) -> None:
        """Try again what this app had no agent for, as far as it was defined anew."""
        await self.firings.recheck_foreign()

    def accepts(self, name: str, overdue: float = 0.0) -> bool:
        """Return whether a schedule is run here: by its name, its shard and the agents of this app."""
        return name not in self.firings.foreign and self.is_for_here(name, overdue)

    def is_for_here(self, name: str, overdue: float = 0.0) -> bool:
        """Return whether a schedule is for this scheduler by its name and its shard, whatever its agent is.

        What has been due for longer than a ttl is run by any scheduler: its shard's has died, or is full.
        """
        if not self._patterns.accepts(family(name)):  # guard: pattern-by-family
            return False
        if self.shards is None or overdue > self._ttl_seconds:  # guard: overdue-is-anybodys
            return True
        return self.shards.owns(name)

    def note_backlog(self, due: int) -> None:
        """Set how many are due while all permits are taken, as no cycle counts them."""
        if not self.permits.free:
            self.backlog = due  # guard: backlog-of-full-scheduler

    @property
    def chooses(self) -> bool:
        """Whether names decide what is run here: a pattern or a share is set."""
        return not self._takes_all or self.shards is not None

    @property
    def left_behind(self) -> int:
        """Firings whose agents ignored even the shutdown."""
        return self.firings.left_behind

    # -- acquiring

    async def _cycle(self) -> float:
        """Acquire what is due and begin it; return how long to sleep."""
        self._wakeup.reset()
        self.breakers.log_changes()
        wait = self.breakers.furthest.retry_after
        acquired, pause = 0, min(wait, self._interval)
        if wait:
            self.breakers.count_blocked()  # guard: blocked-looks-counted
        else:
            acquired, pause = await self._acquire()
        self._watch(acquired)
        return pause

    def _watch(self, acquired: int) -> None:
        """Let the watchdogs look at this cycle; log and count the problems that began or ended with it."""
        cycle = Cycle(
            permits=self.permits.limit if self.permits.limit > 0 else None,
            free=self.permits.free,
            running=len(self.running),
            backlog=self.backlog,  # guard: watchdogs-see-backlog
            acquired=acquired,
            breaker_closed=not self.breakers.furthest.retry_after,
        )
        report = self.watchdogs.look(cycle)
        for signal in report.began:
            # That Redis is unavailable is logged as an outage.
            is_outage = signal is Signal.REDIS_STALL and self.breakers.furthest.cause == AWAY
            _log.log(
                logging.DEBUG if is_outage else logging.WARNING,
                "watchdog reports a problem",
                signal=signal.value,
                backlog=self.backlog,
                free=self.permits.free,
            )
            self._metrics.schedule_signals.labels(signal.value).set(1)
        for signal in report.ended:
            self._metrics.schedule_signals.labels(signal.value).set(0)

    async def _acquire(self) -> tuple[int, float]:
        taken = self.permits.take(self._settings.batch_operations.per_script)  # guard: acquire-within-permits
        kept = 0
        try:
            if not taken:
                await self._ask_time()  # guard: time-asked-when-full
                await self._give_back_unknown()
                return 0, self._interval
            with self._outages:
                found = await self._ask(taken)
            kept = len(found.schedules)
        except (*TROUBLE, RedisUnavailable) as exc:
            self._metrics.schedule_acquire_failures.inc()
            # A Redis that was frozen executes the call when it goes on: its leases would have no firing.
            self._in_doubt |= bool(taken) and isinstance(exc, DISCONNECTS)  # guard: acquisition-in-doubt
            if not isinstance(exc, RedisUnavailable):  # that one is the breaker's: Redis was not asked
                (script_failed if taken else call_failed)(self._metrics, exc)
            if not isinstance(exc, (*DISCONNECTS, RedisUnavailable)):
                _log.error("Redis refuses to give out schedules: is a key of them damaged?", error=str(exc))
            return 0, min(self._interval, 1.0)
        finally:
            self.permits.give(taken - kept)  # guard: unused-permits-returned
        self.backlog = found.backlog
        self.clock.synchronize(found.now, found.asked_at)
        if found.unreadable:
            self._metrics.schedule_repaired.labels(Found.UNREADABLE.value).inc(len(found.unreadable))
            _log.error("discarded entries that are not schedules", names=found.unreadable[:_NAMES_LOGGED])
        for run in found.schedules:
            self._acquired.inc()
            self.firings.begin(run, found.asked_at)
        await self._give_back_unknown()
        pause = self._pause(found, full=kept >= taken)
        _log.debug(
            "due schedules acquired",
            acquired=kept,
            left_here=found.backlog,
            left_in_all=found.due,
            dropped=found.dropped,
            sleep_seconds=round(pause, 3),
        )
        return kept, pause

    async def _give_back_unknown(self) -> None:
        """Give back what an acquisition was granted whose reply was lost, now that Redis replies again."""
        if not self._in_doubt:
            return
        try:
            with self.breakers.redis.guard():
                returned = await self.firings.give_back_unknown()
        except (*TROUBLE, RedisUnavailable) as exc:
            if not isinstance(exc, RedisUnavailable):
                script_failed(self._metrics, exc)
            return
        self._in_doubt = False
        if returned:
            _log.warning(
                "leases of schedules given back: the reply that granted them was lost", leases=returned
            )
            self._wakeup.wake()

    async def _ask(self, limit: int) -> Acquisition:
        whole = not self.chooses and not self.firings.foreign
        acquisition, redis = self.breakers.acquisition, self.breakers.redis
        with acquisition.guard(), redis.guard():  # guard: breaker-counts-acquisition
            owns = self.shards.owns if self.shards is not None else None
            return await self._acquirer.acquire(limit, None if whole else self.accepts, owns)

    async def _ask_time(self) -> None:
        """Read the time of Redis while no acquisition does, but only once the last reading is too old."""
        if not (self.clock.is_old or self._in_doubt):
            return
        asked_at = boot_time()
        with self.breakers.redis.guard():  # guard: breaker-counts-time
            seconds, microseconds = await command(self._redis, "TIME")
        self.clock.synchronize(int(seconds) + int(microseconds) / 1_000_000, asked_at)

    def _pause(self, found: Acquisition, *, full: bool) -> float:
        if found.due and (full or found.dropped):
            return 0.0 if self.permits.free else self._interval
        if found.earliest is None:  # guard: pause-until-next-turn
            return self._interval
        return min(max(found.earliest - found.now, 0.0) + TICK, self._interval)
