"""The worker of one partition: claims runs while it has slots, performs them under leases, settles them.

Its life: ``run`` until ``quiet`` (no more claims); runs may finish; ``hand_back`` ends those that do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.agents.failures import classify
from holdfast.agents.outcome import Failed, Lost, Outcome, StopReason, Yielded
from holdfast.config.redis import PLATFORM
from holdfast.redis.client import DISCONNECTS, REFUSALS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.reliability.backoff import backoff_seconds
from holdfast.runs.execution.attempt import decide, log_context_of, perform, prepare, settlement
from holdfast.runs.execution.claim import Claims
from holdfast.runs.execution.settle import Verdict
from holdfast.runs.execution.slots import Slots
from holdfast.runs.run import Status
from holdfast.telemetry.logs import get_logger, speaking_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.agents.invoke import Invocation
    from holdfast.leases.keeper import Hold, Keeper
    from holdfast.leases.streams import StreamLeases
    from holdfast.runs.execution.attempt import Attempt, Workplace
    from holdfast.runs.execution.claim import Claimed, Claimer, Woken
    from holdfast.runs.execution.emit import Emitter
    from holdfast.runs.execution.settle import Settlement, Settler
    from holdfast.telemetry.metrics import Metrics

_CLAIM_BATCH = 100
"""A claim of 100 keeps Redis busy for about 2 ms; larger ones make everybody else wait."""
_LEAVING = "the worker is shutting down"
_PAUSE_POLL_SECONDS = 1.0
_OUTAGE_FIRST_SECONDS = 0.05
_OUTAGE_MOST_SECONDS = 1.0
_CLAIM_MOST_SECONDS = 5.0
"""The longest that a claim without an answer keeps its slots: the last may have been slow for lack of CPU."""

_log = get_logger(__name__)
T = TypeVar("T")


class Worker:
    """Works one partition; everything it needs is given to it, its signals are handled elsewhere."""

    def __init__(
        self,
        place: Workplace,
        *,
        claimer: Claimer,
        settler: Settler,
        emitter: Emitter,
        leases: StreamLeases,
        keeper: Keeper,
        metrics: Metrics,
        owner: str,
        slots: Slots | None = None,
        entitled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        settings = place.settings
        self._place = place
        self._claimer = claimer
        self._settler = settler
        self._emitter = emitter
        self._leases = leases
        self._keeper = keeper
        self._metrics = metrics
        self._owner = owner
        self._entitled = entitled
        self._block_ms = settings.block_ms
        self._slots = slots or Slots(settings, metrics)
        self.permits = self._slots.permits
        self.running: dict[tuple[str, int], Invocation] = {}
        self.lingering = 0
        """Agents that go on after their runs: a process that leaves can't wait for them."""
        self._attended: dict[tuple[str, int], Hold] = {}
        self._outlived: set[tuple[str, int]] = set()
        """Attempts that have ended, but not their bodies."""
        self._released: set[tuple[str, int]] = set()
        """Attempts that have ended, and whose slots others got before Redis has answered for them."""
        self._claiming = 0
        self._claiming_since = 0.0
        self._claim_seconds = 0.0
        """How long the last claim took; 0 after an error."""
        self._unsure = False
        self._is_quiet = False
        self._is_handing_back = False
        self._more = True
        self._log = _log.bind(queue=settings.name, platform=PLATFORM)
        self._waiting: asyncio.Timeout | None = None
        self._gate_moved = asyncio.Event()
        self._failed_claims = 0
        self._outages = redis_outages("claims of runs", "runs that were claimed before go on")
        self._dropped = metrics.entries_dropped.labels(settings.name)
        self._adopted = metrics.runs_adopted.labels(settings.name)
        self._events_appended = metrics.events_appended.labels(settings.name)
        metrics.expect(settings.name)
        self._slots.seat(self)

    # -- life

    async def run(self) -> None:
        """Claim and perform until quiet; return when the last run has ended and is settled."""
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(self._settler.run(), name="settler")
            async with asyncio.TaskGroup() as runs:
                await self._claim_until_quiet(runs)
            await self._settler.flushed()
            settling.cancel()

    def quiet(self) -> None:
        """Claim nothing more, and tell the agents that the worker is going away."""
        self._is_quiet = True
        self._place.draining.set()
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0.0)

    def hand_back(self) -> int:
        """Ask every run that still goes to stop, to be started elsewhere; return how many were asked."""
        self._is_handing_back = True
        return sum([invocation.stop(StopReason.DRAIN, _LEAVING) for invocation in self.running.values()])

    def cancel(self, run_id: str, reason: str) -> None:
        """Cancel a run, if it is one of ours."""
        for (running, _), invocation in list(self.running.items()):
            if running == run_id:
                invocation.stop(StopReason.CANCEL, reason)

    def gate_moved(self) -> None:
        """The queue was paused or resumed: look at once."""
        self._gate_moved.set()

    def release_unanswered(self, silent_seconds: float) -> int:
        """Give up the slots without a body for which Redis has been silent that long; return how many."""
        now, released = time.monotonic(), 0
        # A server that is slow, but answers, is given its time: else no answer would find a slot.
        patience = max(silent_seconds, 2 * self._claim_seconds)  # guard: slow-claim-keeps-slot
        patience = min(patience, _CLAIM_MOST_SECONDS)  # guard: slow-claim-capped
        if now - self._claiming_since > patience:
            released, self._claiming = self._claiming, 0  # guard: claim-releases-slots
        if now - self._settler.silent_since > silent_seconds:  # guard: settlement-releases-slots
            ended = self._attended.keys() - self.running.keys() - self._outlived - self._released
            self._released |= ended
            released += len(ended)
        return released

    # -- claiming

    async def _claim_until_quiet(self, runs: asyncio.TaskGroup) -> None:
        while not self._is_quiet:
            try:
                await self._unless_quiet(self._slots.wait_free())
                # Redis does not answer for what has ended here: begin nothing more yet.
                if self._released:  # guard: unsettled-runs-bounded
                    await self._unless_quiet(self._settler.flushed())
                with self._outages:
                    await self._turn(runs)
                self._failed_claims = 0
            except TROUBLE as exc:
                await self._wait_out(exc)

    async def _turn(self, runs: asyncio.TaskGroup) -> None:
        """Claim at once while there may be more; else block until something comes, and claim that."""
        woken: Woken = []
        if not self._more:
            woken = await self._unless_quiet(self._claimer.wait(self._block_ms)) or []
            if not woken:
                return
        claims = await self._claim(woken)
        for run in claims.runs:
            runs.create_task(self._attend(run, claims.asked_at))
        for _ in range(2):
            await asyncio.sleep(0)  # the runs begin before we ask for more
        # Runs that were claimed too late for their slots: the ones that have slots are attended by now.
        if self._unsure and not self._is_quiet:  # guard: late-claim-returned
            await self._return_unknown()
        if claims.paused:
            await self._wait_for_gate()

    async def _claim(self, woken: Woken) -> Claims:
        if self._entitled is not None:
            await self._unless_quiet(self._entitled())
        if self._is_quiet:  # what woke us goes back when we leave
            return Claims([], 0.0)
        if self._unsure:  # guard: unanswered-claim
            await self._return_unknown()
        taken = await self._take(woken)
        if not taken and not woken:
            return Claims([], 0.0)
        kept = 0
        try:
            self._unsure = True
            self._claiming, self._claiming_since = taken, time.monotonic()
            claims = await self._claimer.claim(taken, woken)
            self._claim_seconds = time.monotonic() - self._claiming_since
            self._dropped.inc(claims.dropped)
            self._adopted.inc(claims.adopted)
            self._events_appended.inc(len(claims.runs) + claims.adopted)  # started, and adopted before that
            for run_id, entry in claims.duplicates:
                self._log.info(
                    "duplicate entry dropped: a run of this correlation id is known",
                    correlation_id=run_id,
                    message_id=entry,
                )
            self._more = claims.paused or len(claims.runs) + claims.dropped >= taken
            claims = self._with_slots(claims)
            kept = len(claims.runs)
            return claims
        finally:
            self.permits.give(self._claiming - kept)
            self._claiming = 0

    def _with_slots(self, claims: Claims) -> Claims:
        """Leave out the runs of a late answer whose slots others have by now; those go back to the queue."""
        self._claiming += self.permits.take(max(len(claims.runs) - self._claiming, 0))
        self._unsure = len(claims.runs) > self._claiming  # guard: late-claim-without-slot
        if not self._unsure:
            return claims
        return msgspec.structs.replace(claims, runs=claims.runs[: self._claiming])

    async def _take(self, woken: Woken) -> int:
        """Take slots; what woke us can't wait for one: without any, its claim gives it back to others."""
        if woken:
            return self._slots.take_now(_CLAIM_BATCH)  # guard: woken-without-slot
        return await self._unless_quiet(self._slots.take(_CLAIM_BATCH)) or 0

    async def _return_unknown(self) -> None:
        """Give back the runs of a claim that was not answered, or that no slot was left for."""
        returned = await self._claimer.tidy({run_id for run_id, _ in self._attended})
        self._unsure = False
        self._events_appended.inc(returned.events)
        if returned.entries:
            _log.warning(
                "returned runs whose claim was answered late or never",
                runs=returned.entries,
                queue=self._place.settings.name,
            )

    async def _wait_for_gate(self) -> None:
        self._gate_moved.clear()
        with contextlib.suppress(TimeoutError):
            await self._unless_quiet(asyncio.wait_for(self._gate_moved.wait(), _PAUSE_POLL_SECONDS))

    async def _wait_out(self, exc: Exception) -> None:
        if isinstance(exc, REFUSALS) and not isinstance(exc, DISCONNECTS):
            self._log.error("Redis refuses to give out runs: is a key of this queue damaged?", error=str(exc))
        self._metrics.redis_errors.labels(type(exc).__name__).inc()
        self._failed_claims += 1
        pause = backoff_seconds(self._failed_claims, _OUTAGE_FIRST_SECONDS, _OUTAGE_MOST_SECONDS)
        self._more = True
        self._claim_seconds = 0.0  # guard: failed-claim-not-slow
        await self._unless_quiet(asyncio.sleep(pause))

    async def _unless_quiet(self, awaitable: Awaitable[T]) -> T | None:
        """Await something, but only until the worker goes quiet; then the answer is None."""
        scope = self._waiting = asyncio.timeout(0 if self._is_quiet else None)
        try:
            async with scope:
                return await awaitable
        except TimeoutError:
            if scope.expired():
                return None
            raise
        finally:
            self._waiting = None

    # -- performing

    async def _attend(self, run: Claimed, asked_at: float) -> None:
        """See one attempt through: prepare it, perform it under its lease, settle it."""
        if (known := self._attended.get((run.run_id, run.fence))) is not None:  # guard: claimed-again
            self._claimed_again(run, known)
            return
        started = time.monotonic()
        self._metrics.runs(self._place.settings.name, run.agent).claimed(time.time() - run.entry_ms / 1000)
        hold = self._keeper.hold(
            self._leases,
            run.lease(self._owner),
            granted_at=asked_at,
            on_stop=lambda: self.cancel(run.run_id, "cancelled by request"),
        )
        self._attended[run.run_id, run.fence] = hold
        try:
            prepared = prepare(self._place, run, self._emitter.for_run(run), hold.trusted_until)
        except Exception as exc:
            # Whatever a run brings along, it ends as an outcome of that run and not of its worker.
            prepared = Failed(classify(exc))
        if isinstance(prepared, Failed):
            self._settle(run, hold, prepared, None, started)
        else:
            with speaking_of(prepared.invocation.log_context):
                self._log.info("run started")
            outcome = await self._perform(run, hold, prepared)
            self._settle(run, hold, outcome, prepared.invocation, started)

    def _claimed_again(self, run: Claimed, known: Hold) -> None:
        """Redis has lost our first claim, and gave the same fence again: one body at most may be under it.

        The one that goes on is stopped, which gives the run back, to be begun under the next fence. One that
        has ended is on its way to be settled, and so is the run.
        """
        with speaking_of(log_context_of(self._place, run)):
            self._log.warning("claimed again what we have: did Redis lose its last writes?")
        self.permits.give()
        if known in self._keeper.guarded:
            known.lose()

    async def _perform(self, run: Claimed, hold: Hold, attempt: Attempt) -> Outcome:
        # Keyed by the fence too: a run can come back to us while its lost attempt still unwinds.
        key = (run.run_id, run.fence)  # guard: attempt-by-fence
        self.running[key] = attempt.invocation
        if self._is_handing_back:
            attempt.invocation.stop(StopReason.DRAIN, _LEAVING)
        try:
            return await perform(hold, attempt)
        except Exception as exc:
            return Failed(classify(exc))  # of what had to happen first: the agent's own are outcomes already
        finally:
            del self.running[key]

    def _settle(
        self, run: Claimed, hold: Hold, outcome: Outcome, invocation: Invocation | None, started: float
    ) -> None:
        context = log_context_of(self._place, run) if invocation is None else invocation.log_context
        seconds = time.monotonic() - started
        if isinstance(outcome, Lost):
            with speaking_of(context):
                self._log.warning("run lost: its lease was not kept", duration_seconds=round(seconds, 4))
            # Perhaps only Redis was away and nobody has it yet: then it goes back at once; else refused.
            outcome = Yielded("its lease was not kept")
        if invocation is not None and invocation.lingering is not None:
            self._outlived.add((run.run_id, run.fence))

        # Not a closure over its settlement, which has it: such a circle would be left to the collector.
        def done(settled: Settlement, verdict: Verdict) -> None:
            with speaking_of(context):
                self._let_go(run, hold, invocation)
                self._report(run, verdict, settled, seconds)

        self._settler.add(self._settlement(run, hold, outcome, done))

    def _settlement(
        self, run: Claimed, hold: Hold, outcome: Outcome, done: Callable[[Settlement, Verdict], None]
    ) -> Settlement:
        settings = self._place.settings
        try:
            return settlement(hold, run, decide(self._place, run, outcome), settings, done)
        except Exception as exc:
            return settlement(hold, run, Failed(classify(exc)), settings, done)

    def _let_go(self, run: Claimed, hold: Hold, invocation: Invocation | None) -> None:
        hold.drop()
        ended = (run.run_id, run.fence)
        self._attended.pop(ended, None)
        self._outlived.discard(ended)
        if ended in self._released:  # guard: released-slot-given-once
            self._released.discard(ended)  # others have its slot already
        else:
            self._free(run, invocation)

    def _free(self, run: Claimed, invocation: Invocation | None) -> None:
        """Give the slot back, but not before a body that ignored its stop has really ended."""
        if invocation is None or invocation.lingering is None:
            self.permits.give()
            return
        self.lingering += 1
        self._metrics.runs(self._place.settings.name, run.agent).abandoned()
        self._log.warning(
            "an agent ignores its stop and goes on after its run: its slot is taken until it ends",
            lingering=self.lingering,
            slots=self.permits.limit,
        )
        invocation.when_it_ends(self._body_ended)

    def _body_ended(self) -> None:
        self.lingering -= 1
        self.permits.give()

    def _report(self, run: Claimed, verdict: Verdict, settled: Settlement, seconds: float) -> None:
        status = Status.CANCELLED if verdict is Verdict.CANCELLED else settled.status
        took = round(seconds, 4)
        how = {"status": status or "handed_back", "seconds": took, "duration_seconds": took}
        if verdict is Verdict.STALE:
            self._log.warning("result refused: the run has moved on", **how)
            return
        queue, reason, fault = self._place.settings.name, settled.reason, settled.fault
        meter = self._metrics.runs(queue, run.agent)
        if status is Status.DELAYED:
            meter.retried(reason)
        elif status is not None and status is not Status.INTERRUPTED:
            meter.finished(status, seconds)
            if status in {Status.FAILED, Status.TIMED_OUT}:
                self._metrics.runs_dead_lettered.labels(queue, reason).inc()
        if fault is None or status is Status.CANCELLED:
            self._log.info("run settled", **how)
        else:
            self._log.warning("run failed", **how, error=fault.message, traceback=fault.traceback)
