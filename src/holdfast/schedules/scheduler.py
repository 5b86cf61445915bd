"""The scheduler: acquires what is due while it has permits, and sleeps until something is.

Its life: ``run`` until ``quiet`` (nothing more is acquired); turns may finish for a while, then are stopped
and given back. Invariant: a permit is taken before acquiring, and given back once, when the body has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holdfast.clock import boot_time
from holdfast.errors import RedisUnavailable
from holdfast.redis.breaker import AWAY, UNWRITABLE
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.command import command
from holdfast.redis.outages import redis_outages
from holdfast.reliability.breaker import State
from holdfast.schedules.acquisition import Acquirer
from holdfast.schedules.alarm import TICK, Alarm
from holdfast.schedules.breakers import acquisition_breaker, redis_breaker
from holdfast.schedules.patterns import Patterns
from holdfast.schedules.schedule import family
from holdfast.schedules.troubles import call_failed, script_failed
from holdfast.schedules.turns import Turns
from holdfast.schedules.watchdogs import Cycle, Signal, Watchdogs
from holdfast.schedules.words import Found
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.config import RedisSettings
    from holdfast.leases.keeper import Keeper
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.reliability.breaker import Breaker
    from holdfast.schedules.acquisition import Acquisition
    from holdfast.schedules.place import Place
    from holdfast.schedules.shards import Shards
    from holdfast.telemetry.metrics import Metrics

_ALL = {"", ".*"}
_NAMES_TOLD = 10
_PROBE_SECONDS = 0.5

_log = get_logger(__name__)


class Scheduler:
    """Runs the schedules of one set of keys; its signals and its upkeep are elsewhere."""

    def __init__(
        self,
        place: Place,
        redis: Redis,
        keys: ScheduleKeys,
        settings: RedisSettings,
        *,
        keeper: Keeper,
        metrics: Metrics,
        ttl_seconds: float,
    ) -> None:
        scheduler, ttl_ms = settings.scheduler, int(ttl_seconds * 1000)
        self._place, self._redis, self._settings, self._metrics = place, redis, scheduler, metrics
        self._keys = keys
        breaker = scheduler.circuit_breaker
        self._breakers = (acquisition_breaker(breaker), redis_breaker(breaker))
        self._closed = dict.fromkeys(self.breakers, True)
        self._opened_levels: dict[str, int] = {}
        """The level at which each breaker that is not closed was logged."""
        self._outages = redis_outages("turns of schedules", "no schedule is acquired until Redis answers")
        self._interval, self._ttl_seconds = scheduler.interval_ms / 1000, ttl_seconds
        self._alarm = Alarm()
        self._acquirer = Acquirer(
            redis, keys, owner=place.owner, ttl_ms=ttl_ms, scan_pages=scheduler.batch_operations.scan_pages
        )
        self.turns = turns = Turns(
            place,
            redis,
            keys,
            settings,
            keeper=keeper,
            metrics=metrics,
            ttl_ms=ttl_ms,
            breaker=self._breakers[1],
            alarm=self._alarm,
        )
        self.permits, self.running = turns.permits, turns.running
        self.clock, self.zombies = turns.clock, turns.zombies
        self.watchdogs = Watchdogs()
        self.backlog = 0
        self._patterns = Patterns.of(settings.agent)
        self._takes_all = settings.agent.enabled_pattern in _ALL and not settings.agent.disabled_pattern
        self.shards: Shards | None = None
        self._is_quiet = False
        self._acquired = metrics.schedule_acquired.child()
        metrics.schedule_running.set_function(lambda: len(turns.running))
        metrics.schedule_permits_free.set_function(lambda: turns.permits.free)
        metrics.schedule_recovery_queue.set_function(lambda: turns.endings.depth)

    # -- life

    async def run(self) -> None:
        """Acquire and run until quiet; return when the last turn has ended or was given back."""
        async with asyncio.TaskGroup() as group:
            rounds = [group.create_task(self.turns.endings.run(), name="endings")]
            rounds.append(group.create_task(self._look_for_redis(), name="probes"))
            if self._settings.zombie_cleanup.enabled:
                rounds.append(group.create_task(self.turns.look_for_zombies(), name="zombies"))
            try:
                while not self._is_quiet:
                    await self._alarm.sleep(await self._cycle())
                await self.turns.leave()
            finally:
                for task in rounds:
                    task.cancel()

    def quiet(self) -> None:
        """Acquire nothing more, and tell the agents that the scheduler is going away."""
        self._is_quiet = True
        self._place.draining.set()
        self._alarm.ring()

    def nudge(self) -> None:
        """Look at once: something may be due that was not."""
        self._alarm.ring()

    def forget_foreign(self) -> None:
        """Try again what this app had no agent for: it may have been defined anew."""
        self.turns.foreign.clear()

    def accepts(self, name: str, overdue: float = 0.0) -> bool:
        """Tell whether a schedule is run here: by its name, its shard and the agents there are."""
        return name not in self.turns.foreign and self.is_for_here(name, overdue)

    def is_for_here(self, name: str, overdue: float = 0.0) -> bool:
        """Tell whether a schedule is for this scheduler by its name and its shard, whatever its agent is.

        What has been due for longer than a ttl is anybody's: whoever's share it is in has died, or is full.
        """
        if not self._patterns.accepts(family(name)):  # guard: pattern-by-family
            return False
        if self.shards is None or overdue > self._ttl_seconds:  # guard: overdue-is-anybodys
            return True
        return self.shards.owns(name)

    def note_backlog(self, due: int) -> None:
        """Take over how many are due while all permits are taken, and no cycle looks for that."""
        if not self.permits.free:
            self.backlog = due  # guard: backlog-of-full-scheduler

    @property
    def chooses(self) -> bool:
        """Whether names decide what is run here: a pattern or a share is set."""
        return not self._takes_all or self.shards is not None

    @property
    def left_behind(self) -> int:
        """Turns whose agents ignored even the shutdown."""
        return self.turns.left_behind

    @property
    def breakers(self) -> dict[str, Breaker]:
        """Both breakers by their names."""
        return dict(zip(("acquisition", "redis"), self._breakers, strict=True))

    @property
    def breaker(self) -> Breaker:
        """The breaker that is furthest from closed."""
        return max(self._breakers, key=lambda breaker: breaker.retry_after)

    # -- acquiring

    async def _cycle(self) -> float:
        """Acquire what is due and begin it; return how long nothing is to be done."""
        self._alarm.reset()
        self._say_breakers()
        wait = self.breaker.retry_after
        acquired, pause = 0, min(wait, self._interval)
        if wait:
            self._count_blocked()  # guard: blocked-looks-counted
        else:
            acquired, pause = await self._acquire()
        barking = self.watchdogs.look(
            Cycle(
                permits=self.permits.limit if self.permits.limit > 0 else None,
                free=self.permits.free,
                running=len(self.running),
                backlog=self.backlog,  # guard: watchdogs-see-backlog
                acquired=acquired,
                breaker_closed=not self.breaker.retry_after,
            )
        )
        for signal in barking.began:
            # That Redis is unavailable is logged as an outage.
            is_outage = signal is Signal.REDIS_STALL and self.breaker.cause == AWAY
            _log.log(
                logging.DEBUG if is_outage else logging.WARNING,
                "watchdog reports a problem",
                signal=signal.value,
                backlog=self.backlog,
                free=self.permits.free,
            )
            self._metrics.schedule_signals.labels(signal.value).set(1)
        for signal in barking.ended:
            self._metrics.schedule_signals.labels(signal.value).set(0)
        return pause

    def _count_blocked(self) -> None:
        """Count a look that is not made with the breakers that prevent it: they were not asked for a call."""
        for breaker in self._breakers:
            if breaker.retry_after:
                breaker.blocked += 1

    def _say_breakers(self) -> None:
        """Log each breaker that has opened or closed; half open is on the way, and says nothing."""
        for name, breaker in self.breakers.items():
            closed = breaker.state is State.CLOSED
            if closed is self._closed[name]:
                continue
            self._closed[name] = closed
            if closed:
                _log.log(
                    self._opened_levels.pop(name, logging.INFO),
                    "circuit breaker closed: schedules are acquired again",
                    breaker=name,
                )
            else:
                # That Redis is unavailable is logged as an outage.
                level = self._opened_levels[name] = logging.DEBUG if breaker.cause == AWAY else logging.ERROR
                _log.log(
                    level,
                    "circuit breaker open: no schedule is acquired until Redis answers",
                    breaker=name,
                    retry_in=round(breaker.retry_after, 3),
                    setting="redis.scheduler.circuit-breaker",
                )

    async def _acquire(self) -> tuple[int, float]:
        taken = self.permits.take(self._settings.batch_operations.per_script)  # guard: acquire-within-permits
        kept = 0
        try:
            if not taken:
                await self._ask_time()  # guard: time-asked-when-full
                return 0, self._interval
            with self._outages:
                found = await self._ask(taken)
            kept = len(found.schedules)
        except (*TROUBLE, RedisUnavailable) as exc:
            self._metrics.schedule_acquire_failures.inc()
            if not isinstance(exc, RedisUnavailable):  # that one is the breaker's: Redis was not asked
                (script_failed if taken else call_failed)(self._metrics, exc)
            if not isinstance(exc, (*DISCONNECTS, RedisUnavailable)):
                _log.error("Redis refuses to give out schedules: is a key of them damaged?", error=str(exc))
            return 0, min(self._interval, 1.0)
        finally:
            self.permits.give(taken - kept)  # guard: unused-permits-returned
        self.backlog = found.backlog
        self.clock.heard(found.now, found.asked_at)
        if found.unreadable:
            self._metrics.schedule_repaired.labels(Found.UNREADABLE.value).inc(len(found.unreadable))
            _log.error("discarded entries that are not schedules", names=found.unreadable[:_NAMES_TOLD])
        for run in found.schedules:
            self._acquired.inc()
            self.turns.begin(run, found.asked_at)
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

    async def _ask(self, limit: int) -> Acquisition:
        whole = not self.chooses and not self.turns.foreign
        acquisition, redis = self._breakers
        with acquisition.guard(), redis.guard():  # guard: breaker-counts-acquisition
            owns = self.shards.owns if self.shards is not None else None
            return await self._acquirer.acquire(limit, None if whole else self.accepts, owns)

    async def _ask_time(self) -> None:
        """Ask Redis for its time while no acquisition does, but only once what we know is too old."""
        if not self.clock.is_old:
            return
        asked_at = boot_time()
        with self._breakers[1].guard():  # guard: breaker-counts-time
            seconds, microseconds = await command(self._redis, "TIME")
        self.clock.heard(int(seconds) + int(microseconds) / 1_000_000, asked_at)

    async def _look_for_redis(self) -> None:
        """While Redis is away or takes no writes, ask every moment whether it does, not after a cooldown."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            away = [one for one in self._breakers if one.state is State.OPEN and _may_be_back(one)]
            if away and await self._redis_takes_writes():
                for breaker in away:
                    breaker.end_cooldown()  # guard: cooldown-ends-with-outage
                self._alarm.ring()

    async def _redis_takes_writes(self) -> bool:
        try:
            async with asyncio.timeout(2 * _PROBE_SECONDS):
                # Not PING: in a cluster only the server that holds our keys can tell. Not a read: one that is
                # read-only or full answers it. XX changes only what exists, and no schedule is called "".
                await command(self._redis, "ZADD", self._keys.waiting, "XX", 0, "")  # guard: probe-writes
        except (*TROUBLE, TimeoutError):
            return False
        return True

    def _pause(self, found: Acquisition, *, full: bool) -> float:
        if found.due and (full or found.dropped):
            return 0.0 if self.permits.free else self._interval
        if found.earliest is None:  # guard: pause-until-next-turn
            return self._interval
        return min(max(found.earliest - found.now, 0.0) + TICK, self._interval)


def _may_be_back(breaker: Breaker) -> bool:
    """Whether a breaker is open because of the whole server, rather than because of one call's keys."""
    return breaker.cause in {AWAY, UNWRITABLE}  # guard: probe-absence-only
