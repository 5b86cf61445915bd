"""The scheduler: acquires what is due while it has permits, runs it under its lease, and plans its next turn.

Its life: ``run`` until ``quiet`` (nothing more is acquired); turns may finish for a while, then are stopped
and given back. Invariant: a permit is taken before acquiring, and given back once, when the body has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from holdfast.agents.failures import Failure, FailureClass, classify
from holdfast.agents.outcome import Failed, Lost, TimedOut, Yielded
from holdfast.errors import InputError, RedisUnavailable, UnknownAgent
from holdfast.leases.permits import Permits
from holdfast.redis.client import TROUBLE
from holdfast.schedules.acquisition import Acquirer, schedule_leases
from holdfast.schedules.breakers import acquisition_breaker, redis_breaker
from holdfast.schedules.cadence import skipped_turn
from holdfast.schedules.clock import RedisClock
from holdfast.schedules.completion import Completer, Done
from holdfast.schedules.patterns import Overrun, Patterns
from holdfast.schedules.performing import perform, prepare
from holdfast.schedules.recovery import Ending, Endings
from holdfast.schedules.running import Running, Turn
from holdfast.schedules.schedule import decoded
from holdfast.schedules.verdict import described, verdict
from holdfast.schedules.watchdogs import Cycle, Watchdogs
from holdfast.schedules.words import Ended
from holdfast.schedules.zombies import Zombies
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.agents.outcome import Outcome
    from holdfast.config import RedisSettings
    from holdfast.leases.keeper import Keeper
    from holdfast.redis.breaker import Breaker
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.acquisition import Acquired, Acquisition
    from holdfast.schedules.place import Place
    from holdfast.schedules.shards import Shards
    from holdfast.telemetry.metrics import Metrics

_LEAVING = "the scheduler is shutting down"
_DAMAGED_SECONDS = 60.0
_HAND_BACK_SECONDS = 1.0
_ALL = {"", ".*"}
_TICK = 0.001

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
        self._place = place
        self._settings = scheduler
        self._keeper = keeper
        self._metrics = metrics
        self._leases = schedule_leases(keys, owner=place.owner, ttl_ms=ttl_ms)
        self._acquirer = Acquirer(redis, keys, owner=place.owner, ttl_ms=ttl_ms)
        self._completer = Completer(redis, keys, owner=place.owner)
        self._breakers = (
            acquisition_breaker(scheduler.circuit_breaker),
            redis_breaker(scheduler.circuit_breaker),
        )
        self._interval = scheduler.interval_ms / 1000
        self._endings = Endings(
            self._completer, self._breakers[1], metrics, cycle_seconds=min(self._interval, 1.0)
        )
        self._overrun = Overrun.of(scheduler.zombie_cleanup)
        self.permits = Permits(settings.agent.permits or 0)
        self.running = Running()
        self.clock = RedisClock()
        self.zombies = Zombies(
            self.running,
            self._overrun,
            self._abandon,
            budget_seconds=scheduler.zombie_cleanup.run_budget_ms / 1000,
        )
        self.watchdogs = Watchdogs()
        self.backlog = 0
        self.left_behind = 0
        """Turns whose agents ignored even the shutdown."""
        self._patterns = Patterns.of(settings.agent)
        self._takes_all = settings.agent.enabled_pattern in _ALL and not settings.agent.disabled_pattern
        self.shards: Shards | None = None
        self._foreign: set[str] = set()
        self._wake = asyncio.Event()
        self._wakes_at = float("inf")
        self._is_quiet = False
        self._acquired = metrics.schedule_acquired.child()
        self._lateness = metrics.schedule_lateness_seconds.child()
        self._run_seconds = metrics.schedule_run_seconds.child()
        metrics.schedule_running.set_function(lambda: len(self.running))
        metrics.schedule_permits_free.set_function(lambda: self.permits.free)
        metrics.schedule_recovery_queue.set_function(lambda: self._endings.depth)

    # -- life

    async def run(self) -> None:
        """Acquire and run until quiet; return when the last turn has ended or was given back."""
        async with asyncio.TaskGroup() as group:
            rounds = [group.create_task(self._endings.run(), name="endings")]
            if self._settings.zombie_cleanup.enabled:
                rounds.append(group.create_task(self._look_for_zombies(), name="zombies"))
            try:
                while not self._is_quiet:
                    await self._sleep(await self._cycle())
                await self._leave()
            finally:
                for task in rounds:
                    task.cancel()

    def quiet(self) -> None:
        """Acquire nothing more, and tell the agents that the scheduler is going away."""
        self._is_quiet = True
        self._place.draining.set()
        self._wake.set()

    def nudge(self) -> None:
        """Look at once: something may be due that was not."""
        self._wake.set()

    def forget_foreign(self) -> None:
        """Try again what this app had no agent for: it may have been defined anew."""
        self._foreign.clear()

    def accepts(self, name: str) -> bool:
        """Tell whether a schedule is run here: by its name, its shard and the agents there are."""
        if name in self._foreign or not self._patterns.accepts(name):
            return False
        return self.shards is None or self.shards.owns(name)

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
        self._wake.clear()
        self._wakes_at = float("inf")
        wait = self.breaker.retry_after
        acquired, pause = 0, min(wait, self._interval)
        if not wait:
            acquired, pause = await self._acquire()
        barking = self.watchdogs.look(
            Cycle(
                permits=self.permits.limit if self.permits.limit > 0 else None,
                free=self.permits.free,
                running=len(self.running),
                backlog=self.backlog if self.shards is None else 0,  # else it may be another's
                acquired=acquired,
                breaker_closed=not self.breaker.retry_after,
            )
        )
        for signal in barking.began:
            _log.warning("watchdog barks", signal=signal.value, backlog=self.backlog, free=self.permits.free)
            self._metrics.schedule_signals.labels(signal.value).set(1)
        for signal in barking.ended:
            self._metrics.schedule_signals.labels(signal.value).set(0)
        return pause

    async def _acquire(self) -> tuple[int, float]:
        taken = self.permits.take(self._settings.batch_operations.per_script)
        if not taken:
            return 0, self._interval
        kept = 0
        try:
            found = await self._ask(taken)
            kept = len(found.schedules)
        except (*TROUBLE, RedisUnavailable) as exc:
            self._metrics.schedule_acquire_failures.inc()
            _log.warning("nothing can be acquired", error=str(exc) or type(exc).__name__)
            return 0, min(self._interval, 1.0)
        finally:
            self.permits.give(taken - kept)
        self.backlog = found.backlog
        self.clock.heard(found.now, found.asked_at)
        for run in found.schedules:
            self._begin(run, found.asked_at)
        return kept, self._pause(found, full=kept >= taken)

    async def _ask(self, limit: int) -> Acquisition:
        whole = self._takes_all and not self._foreign and self.shards is None
        acquisition, redis = self._breakers
        with acquisition.guard(), redis.guard():
            return await self._acquirer.acquire(limit, None if whole else self.accepts)

    def _pause(self, found: Acquisition, *, full: bool) -> float:
        if found.backlog and (full or found.dropped):
            return 0.0 if self.permits.free else self._interval
        if found.earliest is None or found.backlog:  # what is due and left is not ours
            return self._interval
        return min(max(found.earliest - found.now, 0) + _TICK, self._interval)

    async def _sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._wakes_at = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    # -- turns

    def _begin(self, run: Acquired, asked_at: float) -> None:
        """Start what was acquired; whatever is wrong with it ends it as an outcome of that schedule."""
        self._acquired.inc()
        self._lateness.observe(max(run.acquired_at - run.ready, 0.0))
        lease = run.lease(self._place.owner)
        hold = self._keeper.hold(self._leases, lease, granted_at=asked_at)
        try:
            schedule = decoded(run.spec)
        except InputError as exc:
            _log.error("a schedule's definition can't be read", schedule=run.name, error=str(exc))
            done = Done(
                run.name, run.fence, run.acquired_at + _DAMAGED_SECONDS, run.streak, "failed", str(exc)
            )
            self._endings.add(Ending(lease, done, lambda _: hold.drop()))
            self.permits.give()
            return
        turn = Turn(run, schedule, hold)
        hold.on_stop = turn.cancel
        if self._passed_over(turn):
            self.permits.give()
            return
        self.running.add(turn)
        turn.task = asyncio.create_task(self._attend(turn), name=run.name)

    def _passed_over(self, turn: Turn) -> bool:
        """Give back what is not to be run here or now; tell whether it was."""
        run, schedule = turn.run, turn.schedule
        if not schedule.target and schedule.agent not in self._place.app.agents:
            # Another app's: whoever has the agent takes it, and we don't look at it again for a while.
            self._foreign.add(run.name)
            self._give_back(turn, None)
            return True
        late = (
            None
            if run.triggered
            else skipped_turn(schedule, ready=run.ready, acquired=run.acquired_at, streak=run.streak)
        )
        if late is None:
            return False
        self._metrics.schedule_missed.inc(late.missed)
        if late.at is None:
            self._tell(turn, Done(run.name, run.fence, None, run.streak, "skipped"))
        else:
            self._give_back(turn, max(self.clock.until(late.at), 0.0))
        return True

    async def _attend(self, turn: Turn) -> None:
        """See one turn through, and give its permit back once its body has ended."""
        try:
            try:
                if not turn.schedule.target:
                    turn.invocation = prepare(self._place, turn.schedule, turn.run, self.clock, self._overrun)
                outcome = await perform(self._place, turn, self.clock)
            except UnknownAgent as exc:
                outcome = Failed(Failure.because(FailureClass.UNKNOWN_AGENT, str(exc)))
            except Exception as exc:
                outcome = Failed(classify(exc))
            self._end(turn, outcome)
        finally:
            self.running.remove(turn)
            self._free(turn)

    def _end(self, turn: Turn, outcome: Outcome) -> None:
        """Decide what follows; only the first end of a turn counts."""
        if turn.told:
            return
        run = turn.run
        if isinstance(outcome, Lost):
            _log.warning("turn lost: its lease was not kept", schedule=run.name, fence=run.fence)
            self._give_back(turn, None)  # perhaps only Redis was away; else refused
            return
        if isinstance(outcome, Yielded):
            self._give_back(turn, self._jitter() if self._is_quiet else _HAND_BACK_SECONDS)
            return
        if isinstance(outcome, TimedOut):
            self.zombies.found += 1
            self._metrics.schedule_zombies.labels("deadman").inc()
        ended = self.clock.now()
        done, following = verdict(
            run, turn.schedule, outcome, ended=ended, settings=self._settings, random=random.random
        )
        if following.missed:
            self._metrics.schedule_missed.inc(following.missed)
        self._report(turn, done, outcome, following.reason)
        self._tell(turn, done)

    def _report(self, turn: Turn, done: Done, outcome: Outcome, reason: str) -> None:
        self._metrics.schedule_runs.child(done.outcome).inc()
        self._run_seconds.observe(done.duration_ms / 1000)
        fields = {"schedule": done.name, "fence": done.fence, "outcome": done.outcome, "next": done.next_at}
        if not done.error:
            _log.debug("turn ended", **fields)
            return
        kind = outcome.failure.kind.value if isinstance(outcome, Failed) else done.outcome
        self._metrics.schedule_failures.labels(kind).inc()
        _log.warning("turn failed", **fields, error=described(outcome)[1], streak=done.streak, reason=reason)
        if done.pause:
            _log.error("schedule paused", schedule=turn.run.name, reason=done.pause)

    def _tell(self, turn: Turn, done: Done) -> None:
        turn.told = True

        def told(word: Ended | None) -> None:
            turn.hold.drop()
            if word is Ended.STALE:
                self._metrics.schedule_stale.inc()
                _log.warning("the end of a turn was refused: its schedule has moved on", schedule=done.name)
            self._expect(done.next_at)

        self._endings.add(Ending(turn.hold.lease, done, told))

    def _give_back(self, turn: Turn, after_seconds: float | None) -> None:
        turn.told = True
        self._metrics.schedule_given_back.inc()

        def told(_: Ended | None) -> None:
            turn.hold.drop()

        self._endings.add(Ending(turn.hold.lease, None, told, after_seconds))

    def _expect(self, at: float | None) -> None:
        """A turn was planned: wake up for it if that is sooner than we would."""
        if at is None or self._is_quiet:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(self.clock.until(at), 0.0) + _TICK
        if due < self._wakes_at:
            self._wakes_at = due
            loop.call_at(due, self._wake.set)

    def _free(self, turn: Turn) -> None:
        """Give the permit back, but not before a thread that ignored its stop has really ended."""
        thread = turn.invocation.lingering if turn.invocation is not None else None
        if thread is None:
            self._give_permit()
            return
        _log.warning("an agent's thread goes on after its turn: its permit is taken", schedule=turn.run.name)
        loop = asyncio.get_running_loop()
        thread.add_done_callback(lambda _: _call_if_open(loop, self._give_permit))

    def _give_permit(self) -> None:
        was_full = not self.permits.free
        self.permits.give()
        if was_full:
            self._wake.set()

    # -- zombies

    async def _look_for_zombies(self) -> None:
        while True:
            await asyncio.sleep(self._settings.zombie_cleanup.interval_ms / 1000)
            self.zombies.scan(self.clock.now())

    def _abandon(self, turn: Turn) -> None:
        """Let a zombie's schedule go on without it."""
        _log.error("a turn ignores its stop: its schedule goes on without it", schedule=turn.run.name)
        self._metrics.schedule_zombies.labels("scan").inc()
        self._end(turn, TimedOut(turn.schedule.timeout_seconds + self._overrun.allowed(turn.run.name)))
        self.zombies.found -= 1  # the scan counts it too

    # -- leaving

    async def _leave(self) -> None:
        """Let turns finish, stop the rest, and give back whatever did not; each for a bounded time."""
        cleanup = self._settings.zombie_cleanup
        await self._finished(cleanup.executor_shutdown_await_ms / 1000)
        asked = self.running.stop_all(_LEAVING)
        if asked:
            _log.info("giving back what did not finish", turns=asked)
        await self._finished(cleanup.executor_shutdown_force_await_ms / 1000)
        for turn in self.running:
            self.left_behind += 1
            if not turn.told:
                _log.warning("an agent ignores the shutdown: its turn is given back", schedule=turn.run.name)
                self._give_back(turn, self._jitter())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cleanup.executor_shutdown_force_await_ms / 1000 + 1.0):
                await self._endings.flushed()

    async def _finished(self, seconds: float) -> None:
        if tasks := self.running.tasks():
            await asyncio.wait(tasks, timeout=seconds)

    def _jitter(self) -> float:
        most = self._settings.jitter.shutdown_seconds
        return random.uniform(0, most) if most > 0 else 0.0  # noqa: S311 - no secret


def _call_if_open(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
