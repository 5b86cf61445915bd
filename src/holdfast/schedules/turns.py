"""The turns of one scheduler, from the acquired schedule to its end being told.

Invariant: a turn is ended once, whoever decides that first; its permit comes back when its body has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

from holdfast.agents.failures import Failure, FailureClass, classify
from holdfast.agents.outcome import Cancelled, Failed, Lost, TimedOut, Yielded
from holdfast.errors import InputError, UnknownAgent
from holdfast.leases.permits import Permits
from holdfast.schedules.acquisition import schedule_leases
from holdfast.schedules.cadence import skipped_turn
from holdfast.schedules.clock import RedisClock
from holdfast.schedules.completion import Completer, Done
from holdfast.schedules.history import fault_of, past_turn
from holdfast.schedules.overlap import Overlaps
from holdfast.schedules.patterns import Overrun
from holdfast.schedules.performing import perform, prepare, turn_id
from holdfast.schedules.recovery import Ending, Endings
from holdfast.schedules.running import Running, Turn
from holdfast.schedules.schedule import decoded, family
from holdfast.schedules.troubles import counting_discarded
from holdfast.schedules.verdict import described, verdict
from holdfast.schedules.words import Ended
from holdfast.schedules.zombies import Zombies
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.agents.outcome import Outcome
    from holdfast.config import RedisSettings
    from holdfast.leases.keeper import Keeper
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.reliability.breaker import Breaker
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.alarm import Alarm
    from holdfast.schedules.cadence import Next
    from holdfast.schedules.place import Place
    from holdfast.telemetry.metrics import Metrics

_LEAVING = "the scheduler is shutting down"
_DAMAGED_SECONDS = 60.0
_HAND_BACK_SECONDS = 1.0

_log = get_logger(__name__)


class Turns:
    """Begins turns, sees them through and tells how they ended."""

    def __init__(
        self,
        place: Place,
        redis: Redis,
        keys: ScheduleKeys,
        settings: RedisSettings,
        *,
        keeper: Keeper,
        metrics: Metrics,
        ttl_ms: int,
        breaker: Breaker,
        alarm: Alarm,
    ) -> None:
        scheduler = settings.scheduler
        self._place = place
        self._settings = scheduler
        self._keeper = keeper
        self._metrics = metrics
        self._alarm = alarm
        self._leases = schedule_leases(keys, owner=place.owner, ttl_ms=ttl_ms)
        self.completer = Completer(
            redis,
            keys,
            owner=place.owner,
            kept_turns=scheduler.kept_turns,
            discarded=counting_discarded(metrics),
        )
        self._overlaps = Overlaps(redis, keys, metrics, owner=place.owner)
        cycle_seconds = min(scheduler.interval_ms / 1000, 1.0)
        self.endings = Endings(self.completer, breaker, metrics, cycle_seconds=cycle_seconds)
        self._overrun = Overrun.of(scheduler.zombie_cleanup)
        self.permits = Permits(settings.agent.permits or 0)
        self.running = Running()
        self.clock = RedisClock(scheduler.time_cache_duration_ms / 1000)
        budget = scheduler.zombie_cleanup.run_budget_ms / 1000
        self.zombies = Zombies(self.running, self._overrun, self._abandon, budget_seconds=budget)
        self.left_behind = 0
        """Turns whose agents ignored even the shutdown."""
        self.foreign: dict[str, str] = {}
        """Schedules that this app has no agent for, with the agent."""
        self._lateness = metrics.schedule_lateness_seconds.child()
        self._run_seconds = metrics.schedule_run_seconds.child()

    # -- beginning

    def begin(self, run: Acquired, asked_at: float) -> None:
        """Start what was acquired; whatever is wrong with it ends it as an outcome of that schedule."""
        self._lateness.observe(max(run.acquired_at - run.ready, 0.0))
        lease = run.lease(self._place.owner)
        hold = self._keeper.hold(self._leases, lease, granted_at=asked_at)
        try:
            turn = Turn(run, decoded(run.spec), hold, beside=run.beside)
            passed_over = self._passed_over(turn)
        except InputError as exc:
            self.endings.add(Ending(lease, _damaged(run, exc), lambda _: hold.drop()))
            self.permits.give()
            return
        if passed_over:
            self.permits.give()
            return
        hold.on_stop = turn.cancel
        self.running.add(turn)
        turn.task = asyncio.create_task(self._attend(turn), name=run.name)

    def _passed_over(self, turn: Turn) -> bool:
        """Give back what is not to be run here or now; tell whether it was."""
        run, schedule = turn.run, turn.schedule
        if not schedule.target and schedule.agent not in self._place.app.agents:
            # Another app's: whoever has the agent takes it, and we don't look at it again for a while.
            self.foreign[run.name] = schedule.agent
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
                    turn.invocation = prepare(self._place, turn, self.clock, self._overrun)
                outcome = await perform(self._place, turn, self.clock, self._overlaps)
            except UnknownAgent as exc:
                outcome = Failed(Failure.because(FailureClass.UNKNOWN_AGENT, str(exc)))
            except Exception as exc:
                outcome = Failed(classify(exc))
            self._end(turn, outcome)
        finally:
            self.running.remove(turn)
            self._free(turn)

    # -- ending

    def _end(self, turn: Turn, outcome: Outcome, *, found_by: str = "deadman") -> None:
        """Decide what follows; only the first end of a turn counts. ``found_by``: who found it too late."""
        if turn.told:
            return
        run = turn.run
        if isinstance(outcome, Lost):
            _log.warning("turn lost: its lease was not kept", schedule=run.name, fence=run.fence)
            self._give_back(turn, None, "lost")  # perhaps only Redis was away; else refused
            return
        if isinstance(outcome, Yielded):
            leaving = self._place.draining.is_set()
            self._give_back(turn, self._jitter() if leaving else _HAND_BACK_SECONDS, "given_back")
            return
        if isinstance(outcome, TimedOut):
            self.zombies.found += found_by == "deadman"  # the scan counts its own
            self._metrics.schedule_zombies.labels(found_by).inc()
        try:
            done, following = verdict(
                turn, outcome, ended=self.clock.now(), settings=self._settings, random=random.random
            )
        except InputError as exc:
            self._tell(turn, _damaged(run, exc))  # guard: damaged-zone-at-end
            return
        if following.missed:
            self._metrics.schedule_missed.inc(following.missed)
        self._report(turn, done, outcome, following)
        self._tell(turn, done)

    def _report(self, turn: Turn, done: Done, outcome: Outcome, following: Next) -> None:
        self._metrics.schedule_runs.child(done.outcome).inc()
        self._run_seconds.observe(done.duration_ms / 1000)
        run = turn.run
        fields: dict[str, Any] = {
            "schedule": family(run.name),
            "turn": turn_id(run, turn.schedule),
            "attempt": run.attempt,
            "fence": run.fence,
            "outcome": done.outcome,
            "seconds": round(done.duration_ms / 1000, 4),
            "next": done.next_at,
        }
        if not done.error:
            _log.info("turn ended", **fields)
            return
        kind = outcome.failure.kind.value if isinstance(outcome, Failed) else done.outcome
        self._metrics.schedule_failures.labels(kind).inc()
        if isinstance(outcome, Cancelled):
            _log.info("turn ended", **fields, reason=done.error)
            return
        why = {"error": described(outcome)[1], "streak": done.streak, "reason": following.reason}
        if isinstance(outcome, Failed):
            why["traceback"] = outcome.failure.traceback  # guard: failed-turn-traceback
        _log.warning("turn failed", **fields, **why)

    def _tell(self, turn: Turn, done: Done) -> None:
        turn.told = True

        def told(word: Ended | None) -> None:
            turn.hold.drop()
            if word is Ended.STALE:
                self._metrics.schedule_stale.inc()
                _log.warning("the end of a turn was refused: its schedule has moved on", schedule=done.name)
            self._say_paused(done, word)
            following = done.next_at if done.doubtful is None else done.doubtful
            if following is not None and not self._place.draining.is_set():
                self._alarm.ring_in(self.clock.until(following))

        self.endings.add(Ending(turn.hold.lease, done, told))

    def _say_paused(self, done: Done, word: Ended | None) -> None:
        """Log that failures have paused a schedule. Redis tells: it counts those of parallel turns, too."""
        # Told twice because the first answer was lost, it says only that it knew: then our own count tells.
        # guard: pause-reported
        if word is Ended.PAUSED or (word is Ended.ALREADY and 0 < done.pause_after <= done.streak):
            name = family(done.name)
            _log.error(
                "schedule paused: it has failed too often in a row",
                schedule=name,
                pause_after_failures=done.pause_after,
                error=done.error,
                advice=f"`holdfast schedules resume {name}` once it is mended",
            )

    def _give_back(self, turn: Turn, after_seconds: float | None, outcome: str = "") -> None:
        """Let others run it; ``outcome`` is how its history lists a turn that had begun."""
        turn.told = True
        self._metrics.schedule_given_back.inc()

        def told(_: Ended | None) -> None:
            turn.hold.drop()

        history = b""
        if outcome:
            took_ms = max(self.clock.now() - turn.run.acquired_at, 0.0) * 1000
            history = past_turn(turn.run, turn.schedule, outcome, took_ms)
        self.endings.add(Ending(turn.hold.lease, None, told, after_seconds, history))

    def _free(self, turn: Turn) -> None:
        """Give the permit back, but not before a body that ignored its stop has really ended."""
        invocation = turn.invocation
        if invocation is None or invocation.lingering is None:
            self._give_permit()
            return
        _log.warning("an agent goes on after its turn: its permit is taken", schedule=turn.run.name)
        invocation.when_it_ends(self._give_permit)

    def _give_permit(self) -> None:
        was_full = not self.permits.free
        self.permits.give()
        if was_full:
            self._alarm.ring()

    # -- zombies

    async def look_for_zombies(self) -> None:
        """Scan every interval, until cancelled."""
        was_whole = True
        while True:
            await asyncio.sleep(self._settings.zombie_cleanup.interval_ms / 1000)
            whole = self.zombies.scan(self.clock.now())  # guard: zombie-scan-clock
            self._metrics.schedule_zombie_scans.labels("whole" if whole else "over_budget").inc()
            if was_whole and not whole:
                _log.info(
                    "a scan for zombies was ended by its budget: the next goes on from there",
                    setting="redis.scheduler.zombie-cleanup.run-budget-ms",
                )
            was_whole = whole

    def _abandon(self, turn: Turn) -> None:
        """Let a zombie's schedule go on without it."""
        _log.error("a turn ignores its stop: its schedule goes on without it", schedule=turn.run.name)
        over = TimedOut(turn.schedule.timeout_seconds + self._overrun.allowed(turn.run.name))
        self._end(turn, over, found_by="scan")  # guard: zombie-ended-once

    # -- leaving

    async def leave(self) -> None:
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
                self._give_back(turn, self._jitter(), "given_back")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cleanup.executor_shutdown_force_await_ms / 1000 + 1.0):
                await self.endings.flushed()

    async def _finished(self, seconds: float) -> None:
        if tasks := self.running.tasks():
            await asyncio.wait(tasks, timeout=seconds)

    def _jitter(self) -> float:
        most = self._settings.jitter.shutdown_seconds
        return random.uniform(0, most) if most > 0 else 0.0  # noqa: S311 - no secret


def _damaged(run: Acquired, exc: InputError) -> Done:
    """Return the end of a turn whose definition can't be read, or names a zone that is not known here."""
    _log.error("a schedule's definition can't be read", schedule=run.name, error=str(exc))
    fault = Failed(Failure.because(FailureClass.INVALID, str(exc)))
    return Done(
        run.name,
        run.fence,
        run.acquired_at + _DAMAGED_SECONDS,
        run.streak,
        "failed",
        str(exc),
        history=past_turn(run, None, "failed", 0.0, **fault_of(fault, str(exc))),
    )
