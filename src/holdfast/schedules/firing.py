"""The life of a firing: one attempt of a turn by one scheduler, under one lease and fence.

::

    acquired --begin--> running --outcome--> decided --queue--> completed in Redis: next turn, streak, history
       |                   |                               +--> given back: due again, for any scheduler
       |                   +--lease lost, drained--> given back
       +--no agent for it here--> given back
       +--missed, and misfire is "skip"--> completed as skipped, or given back until its next turn

Invariant: a firing is decided once; its permit is returned when its body has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.agents.failures import Failure, FailureClass, classify
from holdfast.agents.outcome import Cancelled, Failed, Lost, StopReason, Succeeded, TimedOut, Yielded
from holdfast.errors import InputError, LeaseLost, UnknownAgent
from holdfast.leases.permits import Permits
from holdfast.leases.trust import Trust, Trusted
from holdfast.schedules.acquisition import schedule_leases
from holdfast.schedules.cadence import skipped_turn
from holdfast.schedules.clock import RedisClock
from holdfast.schedules.completion import (
    Completer,
    Completion,
    CompletionQueue,
    FiringEnd,
    decide,
    described,
    unreadable,
)
from holdfast.schedules.context import invocation
from holdfast.schedules.history import past_turn, turn_id
from holdfast.schedules.overlap import POLICIES
from holdfast.schedules.parallel import ParallelFirings
from holdfast.schedules.redis_errors import counting_discarded
from holdfast.schedules.registry import ScheduleRegistry
from holdfast.schedules.replies import Ended
from holdfast.schedules.schedule import decoded, family
from holdfast.schedules.zombies import Zombies
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.agents.invoke import Invocation
    from holdfast.agents.outcome import Outcome
    from holdfast.config import RedisSettings
    from holdfast.leases.keeper import Hold, Keeper
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.reliability.breaker import Breaker
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.cadence import Next
    from holdfast.schedules.context import SchedulerContext
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.wakeup import Wakeup
    from holdfast.telemetry.metrics import Metrics

_LEAVING = "the scheduler is shutting down"
_HAND_BACK_SECONDS = 1.0

_log = get_logger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class Firing:
    """One attempt of a turn, in this scheduler and under one fence."""

    acquired: Acquired
    schedule: Schedule
    hold: Hold
    invocation: Invocation | None = None
    task: asyncio.Task[None] | None = None
    beside: float = 0.0
    """The last of its schedule's turns that was placed beside it, or left out."""
    placed: int = 0
    doubtful: float | None = None
    """The turn that was to be placed beside it while Redis has not answered yet."""
    run_id: str = ""
    """The run that it was submitted as, if its schedule has a target."""
    decided: bool = False
    """Whether its end was decided: nothing that its body still does counts."""

    def stop(self, reason: StopReason, text: str) -> bool:
        """Ask its agent to stop; return whether this is what ends it."""
        return self.invocation is not None and self.invocation.stop(reason, text)

    def cancel(self) -> None:
        """End it by request of a user."""
        self.stop(StopReason.CANCEL, "stopped by request")


class Foreign(NamedTuple):
    """A schedule that was acquired and whose agent this app lacks."""

    agent: str
    digest: str
    """The SHA-1 of its definition."""


class Firings:
    """Runs the firings of one scheduler."""

    def __init__(
        self,
        context: SchedulerContext,
        redis: Redis,
        keys: ScheduleKeys,
        settings: RedisSettings,
        *,
        keeper: Keeper,
        metrics: Metrics,
        ttl_ms: int,
        breaker: Breaker,
        wakeup: Wakeup,
    ) -> None:
        scheduler, zombies = settings.scheduler, settings.scheduler.zombie_cleanup
        self._context = context
        self._settings = scheduler
        self._keeper = keeper
        self._metrics = metrics
        self._wakeup = wakeup
        self._leases = schedule_leases(keys, owner=context.owner, ttl_ms=ttl_ms)
        self.completer = Completer(
            redis,
            keys,
            owner=context.owner,
            kept_turns=scheduler.kept_turns,
            discarded=counting_discarded(metrics),
        )
        cycle_seconds = min(scheduler.interval_ms / 1000, 1.0)
        self.completions = CompletionQueue(self.completer, breaker, metrics, cycle_seconds=cycle_seconds)
        self._parallel = ParallelFirings(redis, keys, metrics, owner=context.owner)
        self._registry = ScheduleRegistry(redis, keys)
        self.permits = Permits(settings.agent.permits or 0)
        self.running = RunningFirings()
        self.clock = RedisClock(scheduler.time_cache_duration_ms / 1000)
        budget = zombies.run_budget_ms / 1000
        self.zombies = Zombies(self.running, context.overrun, self._abandon, budget_seconds=budget)
        self.left_behind = 0
        """Firings whose agents ignored even the shutdown."""
        self.foreign: dict[str, Foreign] = {}
        """Schedules that this app has no agent for: they are not acquired again."""
        self._lateness = metrics.schedule_lateness_seconds.child()
        self._run_seconds = metrics.schedule_run_seconds.child()

    # -- the life of a firing: begin, perform, decide, complete, report

    def begin(self, acquired: Acquired, asked_at: float) -> None:
        """Start an acquired schedule under its lease, in a task; one that is not run ends here."""
        self._lateness.observe(max(acquired.acquired_at - acquired.ready, 0.0))
        lease = acquired.lease(self._context.owner)
        hold = self._keeper.hold(self._leases, lease, granted_at=asked_at)
        try:
            firing = Firing(acquired, decoded(acquired.spec), hold, beside=acquired.beside)
            passed_over = self._pass_over(firing)
        except InputError as exc:
            self.completions.add(FiringEnd(lease, unreadable(acquired, exc), lambda _: hold.drop()))
            self.permits.give()
            return
        if passed_over:
            self.permits.give()
            return
        hold.on_stop = firing.cancel
        self.running.add(firing)
        firing.task = asyncio.create_task(self._fire(firing), name=acquired.name)

    async def _fire(self, firing: Firing) -> None:
        """See one firing through, and return its permit once its body has ended."""
        try:
            outcome = await perform(self._context, firing, self.clock, self._parallel)
            self._end(firing, outcome)
        finally:
            self.running.remove(firing)
            self._return_permit(firing)

    def _end(self, firing: Firing, outcome: Outcome, *, found_by: str = "deadman") -> None:
        """Decide what follows an outcome, report it, and complete the firing in Redis; the first end counts.

        ``found_by``: which of the two nets found a firing that took too long.
        """
        if firing.decided:
            return
        if isinstance(outcome, Lost):
            _log.warning(
                "turn lost: its lease was not kept",
                schedule=firing.acquired.name,
                fence=firing.acquired.fence,
            )
            self._give_back(firing, None, "lost")  # refused by its fence if another scheduler has it
            return
        if isinstance(outcome, Yielded):
            draining = self._context.draining.is_set()
            self._give_back(firing, self._jitter() if draining else _HAND_BACK_SECONDS, "given_back")
            return
        if isinstance(outcome, TimedOut):
            self.zombies.found += found_by == "deadman"  # the scan counts its own
            self._metrics.schedule_zombies.labels(found_by).inc()
        try:
            completion, following = decide(
                firing, outcome, ended=self.clock.now(), settings=self._settings, random=random.random
            )
        except InputError as exc:
            self._complete(firing, unreadable(firing.acquired, exc))  # guard: damaged-zone-at-end
            return
        self._report(firing, completion, outcome, following)
        self._complete(firing, completion)

    def _complete(self, firing: Firing, completion: Completion) -> None:
        """Send the end with the next batch; on the reply, drop the lease and wake up for the next turn."""
        firing.decided = True

        def on_reply(reply: Ended | None) -> None:
            firing.hold.drop()
            if reply is Ended.STALE:
                self._metrics.schedule_stale.inc()
                _log.warning(
                    "the end of a turn was refused: its schedule has moved on", schedule=completion.name
                )
            _log_pause(completion, reply)
            following = completion.next_at if completion.doubtful is None else completion.doubtful
            if following is not None and not self._context.draining.is_set():
                self._wakeup.wake_in(self.clock.until(following))

        self.completions.add(FiringEnd(firing.hold.lease, completion, on_reply))

    def _give_back(self, firing: Firing, after_seconds: float | None, outcome: str = "") -> None:
        """Let any scheduler run the turn again; ``outcome`` is for the history, if it had begun here."""
        firing.decided = True
        self._metrics.schedule_given_back.inc()

        def on_reply(_: Ended | None) -> None:
            firing.hold.drop()

        history = b""
        if outcome:
            took_ms = max(self.clock.now() - firing.acquired.acquired_at, 0.0) * 1000
            history = past_turn(firing.acquired, firing.schedule, outcome, took_ms)
        self.completions.add(FiringEnd(firing.hold.lease, None, on_reply, after_seconds, history))

    def _report(self, firing: Firing, completion: Completion, outcome: Outcome, following: Next) -> None:
        """Count a firing that has ended, and log it: as a warning if it has failed."""
        metrics, acquired = self._metrics, firing.acquired
        if following.missed:
            metrics.schedule_missed.inc(following.missed)
        metrics.schedule_runs.child(completion.outcome).inc()
        self._run_seconds.observe(completion.duration_ms / 1000)
        fields: dict[str, Any] = {
            "schedule": family(acquired.name),
            "turn": turn_id(acquired, firing.schedule),
            "attempt": acquired.attempt,
            "fence": acquired.fence,
            "outcome": completion.outcome,
            "seconds": round(completion.duration_ms / 1000, 4),
            "next": completion.next_at,
        }
        if not completion.error:
            _log.info("turn ended", **fields)
            return
        kind = outcome.failure.kind.value if isinstance(outcome, Failed) else completion.outcome
        metrics.schedule_failures.labels(kind).inc()
        if isinstance(outcome, Cancelled):
            _log.info("turn ended", **fields, reason=completion.error)
            return
        why = {"error": described(outcome)[1], "streak": completion.streak, "reason": following.reason}
        if isinstance(outcome, Failed):
            why["traceback"] = outcome.failure.traceback  # guard: failed-turn-traceback
        _log.warning("turn failed", **fields, **why)

    # -- turns that are not run here or now

    def _pass_over(self, firing: Firing) -> bool:
        """Pass over a turn whose agent this app lacks, or that is missed and skipped; return whether."""
        acquired, schedule = firing.acquired, firing.schedule
        if not schedule.target and schedule.agent not in self._context.app.agents:
            # A scheduler whose app has the agent takes it; this one does only after it was defined anew.
            self.foreign[acquired.name] = Foreign(schedule.agent, hashlib.sha1(acquired.spec).hexdigest())  # noqa: S324
            self._give_back(firing, None)
            return True
        if acquired.triggered:
            return False
        skipped = skipped_turn(
            schedule, ready=acquired.ready, acquired=acquired.acquired_at, streak=acquired.streak
        )
        if skipped is None:
            return False
        self._metrics.schedule_missed.inc(skipped.missed)
        if skipped.at is None:
            self._complete(
                firing, Completion(acquired.name, acquired.fence, None, acquired.streak, "skipped")
            )
        else:
            self._give_back(firing, max(self.clock.until(skipped.at), 0.0))
        return True

    async def recheck_foreign(self) -> None:
        """Forget those of ``foreign`` that were defined anew since, or whose agent this app has by now."""
        known = list(self.foreign.items())
        # Not all of them: thousands would be acquired and given back, and all others be late meanwhile.
        differing = await self._registry.differing([(name, one.digest) for name, one in known])
        anew = {known[at][0] for at in differing}  # guard: foreign-defined-anew
        anew |= {name for name, one in known if one.agent in self._context.app.agents}
        for name in anew:
            self.foreign.pop(name, None)

    # -- leases without a firing

    async def give_back_unknown(self) -> int:
        """Give back the leases that Redis has granted and no firing runs under; return how many."""
        # Before the read: what ends meanwhile is known. Nothing begins meanwhile: this is the acquiring loop.
        known = self._keeper.held(self._leases) | {firing.hold.lease for firing in self.running}
        leases = await self._registry.leases_of(self._context.owner)
        unknown = [lease for lease in leases if lease not in known]  # guard: known-leases-kept
        returned = (await self.completer.give_back(unknown)).count(Ended.RETURNED)
        self._metrics.schedule_given_back.inc(returned)
        return returned

    # -- permits

    def _return_permit(self, firing: Firing) -> None:
        """Return the permit, but not before a body that ignored its stop has really ended."""
        invocation = firing.invocation
        if invocation is None or invocation.lingering is None:
            self._give_permit()
            return
        _log.warning("an agent goes on after its turn: its permit is taken", schedule=firing.acquired.name)
        invocation.when_it_ends(self._give_permit)

    def _give_permit(self) -> None:
        was_full = not self.permits.free
        self.permits.give()
        if was_full:
            self._wakeup.wake()

    # -- zombies

    async def scan_for_zombies(self) -> None:
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

    def _abandon(self, firing: Firing) -> None:
        """End a zombie as timed out: its schedule's next turn comes although its body goes on."""
        acquired = firing.acquired
        _log.error("a turn ignores its stop: its schedule goes on without it", schedule=acquired.name)
        over = TimedOut(firing.schedule.timeout_seconds + self._context.overrun.allowed(acquired.name))
        self._end(firing, over, found_by="scan")  # guard: zombie-ended-once

    # -- shutdown

    async def leave(self) -> None:
        """Let firings finish, stop the others, give back those that did not end; each step has a timeout."""
        cleanup = self._settings.zombie_cleanup
        await self._finished(cleanup.executor_shutdown_await_ms / 1000)
        asked = self.running.stop_all(_LEAVING)
        if asked:
            _log.info("giving back what did not finish", turns=asked)
        await self._finished(cleanup.executor_shutdown_force_await_ms / 1000)
        for firing in self.running:
            self.left_behind += 1
            if not firing.decided:
                name = firing.acquired.name
                _log.warning("an agent ignores the shutdown: its turn is given back", schedule=name)
                self._give_back(firing, self._jitter(), "given_back")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(cleanup.executor_shutdown_force_await_ms / 1000 + 1.0):
                await self.completions.flushed()

    async def _finished(self, seconds: float) -> None:
        if tasks := self.running.tasks():
            await asyncio.wait(tasks, timeout=seconds)

    def _jitter(self) -> float:
        most = self._settings.jitter.shutdown_seconds
        return random.uniform(0, most) if most > 0 else 0.0  # noqa: S311 - no secret


async def perform(
    context: SchedulerContext, firing: Firing, clock: RedisClock, parallel: ParallelFirings
) -> Outcome:
    """Run the agent in the scheduler, or submit a run to the target, for as long as the lease is kept."""
    try:
        async with firing.hold:
            if firing.schedule.target:
                # guard: firing-needs-lease
                return await Trusted(_submit(context, firing), Trust(firing.hold.trusted_until))
            firing.invocation = invocation(context, firing, clock)
            during = POLICIES[firing.schedule.overlap].during
            if during is None:
                return await firing.invocation.run()
            async with during(firing, clock, parallel):
                return await firing.invocation.run()
    except LeaseLost:
        return Lost()
    except UnknownAgent as exc:
        return Failed(Failure.because(FailureClass.UNKNOWN_AGENT, str(exc)))
    except Exception as exc:
        return Failed(classify(exc))


async def _submit(context: SchedulerContext, firing: Firing) -> Outcome:
    if context.submit is None:
        return Failed(Failure.because(FailureClass.INVALID, "this scheduler has no way to submit runs"))
    context.targets.look([firing.schedule] if firing.schedule.source != "turn" else [])
    turn = turn_id(firing.acquired, firing.schedule)
    firing.run_id = (await context.submit(firing.schedule, turn)).run_id
    return Succeeded(None)


def _log_pause(completion: Completion, reply: Ended | None) -> None:
    """Log that failures have paused a schedule, as Redis has counted them: with those of parallel firings."""
    # ALREADY: the first reply, which may have been PAUSED, was lost. Then this process's own count decides.
    # guard: pause-reported
    if reply is Ended.PAUSED or (reply is Ended.ALREADY and 0 < completion.pause_after <= completion.streak):
        name = family(completion.name)
        _log.error(
            "schedule paused: it has failed too often in a row",
            schedule=name,
            pause_after_failures=completion.pause_after,
            error=completion.error,
            advice=f"`holdfast schedules resume {name}` once it is mended",
        )


class RunningFirings:
    """The firings that go on, by name and fence: a lost one may still unwind when its schedule comes back."""

    def __init__(self) -> None:
        self._firings: dict[tuple[str, int], Firing] = {}

    def __len__(self) -> int:
        return len(self._firings)

    def __iter__(self) -> Iterator[Firing]:
        return iter(list(self._firings.values()))

    def __contains__(self, firing: Firing) -> bool:
        return self._firings.get((firing.acquired.name, firing.acquired.fence)) is firing

    def add(self, firing: Firing) -> None:
        """Add a firing that begins."""
        self._firings[firing.acquired.name, firing.acquired.fence] = firing

    def remove(self, firing: Firing) -> None:
        """Remove a firing whose body has ended."""
        self._firings.pop((firing.acquired.name, firing.acquired.fence), None)

    def stop_all(self, text: str) -> int:
        """Ask all of them to stop, so that they run elsewhere; return how many were asked."""
        return sum(firing.stop(StopReason.DRAIN, text) for firing in self)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of all firings."""
        return [firing.task for firing in self if firing.task is not None]
