"""The claim loop of one partition: takes slots, claims as many runs, and passes them to the executor.

Its lifecycle: ``run`` until ``quiet``. A claim without a reply may still have claimed runs: they are
returned to the queue before the next claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.redis.client import DISCONNECTS, REFUSALS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.reliability.backoff import backoff_seconds
from holdfast.runs.execution.claim import Claims

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from structlog.typing import FilteringBoundLogger

    from holdfast.config import QueueSettings
    from holdfast.runs.execution.claim import Claimer, Woken
    from holdfast.runs.execution.executor import Executor
    from holdfast.runs.execution.settle import Settler
    from holdfast.runs.execution.slots import Slots
    from holdfast.telemetry.metrics import Metrics

_CLAIM_BATCH = 100
"""A claim of 100 keeps Redis busy for about 2 ms; larger ones make all other callers wait."""
_PAUSE_POLL_SECONDS = 1.0
_OUTAGE_FIRST_SECONDS = 0.05
_OUTAGE_MOST_SECONDS = 1.0
CLAIM_MOST_SECONDS = 5.0
"""The longest time that a claim without a reply keeps its slots, even if the claim before was slow."""

_NOTHING = Claims([], 0.0)
T = TypeVar("T")


class ClaimLoop:
    """Claims runs while slots are free and the queue is open; retries while Redis is unavailable."""

    def __init__(
        self,
        claimer: Claimer,
        executor: Executor,
        settler: Settler,
        slots: Slots,
        settings: QueueSettings,
        *,
        metrics: Metrics,
        log: FilteringBoundLogger,
        name_confirmed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._claimer = claimer
        self._executor = executor
        self._settler = settler
        self._slots = slots
        self._block_ms = settings.block_ms
        self._name_confirmed = name_confirmed
        self._log = log
        self._metrics = metrics
        self._dropped = metrics.entries_dropped.labels(settings.name)
        self._adopted = metrics.runs_adopted.labels(settings.name)
        self._events_appended = metrics.events_appended.labels(settings.name)
        self._claiming = 0
        """The slots of the claim that waits for the reply of Redis."""
        self._claiming_since = 0.0
        self._claim_seconds = 0.0
        """How long the last claim took; 0 after an error."""
        self._unanswered = False
        """Whether Redis may have claimed runs for this worker that have no attempt here."""
        self._more_wait = True
        self._is_quiet = False
        self._waiting: asyncio.Timeout | None = None
        self._gate_changed = asyncio.Event()
        self._failed_claims = 0
        self._outages = redis_outages("claims of runs", "runs that were claimed before continue")

    async def run(self, attempts: asyncio.TaskGroup) -> None:
        """Claim runs until quiet; each is performed by a task of this group."""
        while not self._is_quiet:
            try:
                await self._unless_quiet(self._slots.wait_free())
                # Redis has not confirmed the settlements of ended runs: with more claims they would pile up.
                if self._executor.has_released_slots:  # guard: unsettled-runs-bounded
                    await self._unless_quiet(self._settler.flushed())
                with self._outages:
                    await self._claim_and_start(attempts)
                self._failed_claims = 0
            except TROUBLE as exc:
                await self._back_off(exc)

    def quiet(self) -> None:
        """Claim nothing more."""
        self._is_quiet = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0.0)

    def gate_changed(self) -> None:
        """The queue was paused or resumed: claim at once."""
        self._gate_changed.set()

    def release_unanswered(self, silent_seconds: float) -> int:
        """Release the slots of a claim that has no reply after ``silent_seconds``; return how many."""
        # A slow server that does reply gets twice its last time: else the runs of its replies had no slots.
        timeout = max(silent_seconds, 2 * self._claim_seconds)  # guard: slow-claim-keeps-slot
        timeout = min(timeout, CLAIM_MOST_SECONDS)  # guard: slow-claim-capped
        released = 0
        if time.monotonic() - self._claiming_since > timeout:
            released, self._claiming = self._claiming, 0  # guard: claim-releases-slots
        return released

    # -- one claim

    async def _claim_and_start(self, attempts: asyncio.TaskGroup) -> None:
        """Claim at once while more runs may wait; else block until an entry is delivered."""
        woken: Woken = []
        if not self._more_wait:
            woken = await self._unless_quiet(self._claimer.wait(self._block_ms)) or []
            if not woken:
                return
        claims = await self._claim(woken)
        for run in claims.runs:
            attempts.create_task(self._executor.perform(run, claims.requested_at))
        for _ in range(2):
            await asyncio.sleep(0)  # the agents are called before the next claim
        # Runs of a late reply that got no slot: by now the executor has all others.
        if self._unanswered and not self._is_quiet:  # guard: late-claim-returned
            await self._return_unattended()
        if claims.paused:
            await self._wait_for_gate()

    async def _claim(self, woken: Woken) -> Claims:
        """Take slots, claim as many runs, and give the other slots back."""
        if self._name_confirmed is not None:
            await self._unless_quiet(self._name_confirmed())
        if self._is_quiet:  # a delivered entry is returned when the worker leaves the group
            return _NOTHING
        if self._unanswered:  # guard: unanswered-claim
            await self._return_unattended()
        taken = await self._take_slots(woken)
        if not taken and not woken:
            return _NOTHING
        kept = 0
        try:
            claims = await self._claim_into(taken, woken)
            kept = len(claims.runs)
            return claims
        finally:
            self._slots.permits.give(self._claiming - kept)
            self._claiming = 0

    async def _take_slots(self, woken: Woken) -> int:
        """Take slots; a delivered entry does not wait for one: without a slot the claim returns the entry."""
        if woken:
            return self._slots.take_now(_CLAIM_BATCH)  # guard: woken-without-slot
        return await self._unless_quiet(self._slots.take(_CLAIM_BATCH)) or 0

    async def _claim_into(self, taken: int, woken: Woken) -> Claims:
        self._unanswered = True
        self._claiming, self._claiming_since = taken, time.monotonic()
        claims = await self._claimer.claim(taken, woken)
        self._claim_seconds = time.monotonic() - self._claiming_since
        self._report(claims)
        self._more_wait = claims.paused or len(claims.runs) + claims.dropped >= taken
        return self._with_slots(claims)

    def _report(self, claims: Claims) -> None:
        self._dropped.inc(claims.dropped)
        self._adopted.inc(claims.adopted)
        self._events_appended.inc(len(claims.runs) + claims.adopted)  # started, and adopted before that
        for run_id, entry in claims.duplicates:
            self._log.info(
                "duplicate entry dropped: its correlation id has a run",
                correlation_id=run_id,
                message_id=entry,
            )

    def _with_slots(self, claims: Claims) -> Claims:
        """Leave out the runs of a late reply whose slots were released: they are returned to the queue."""
        self._claiming += self._slots.permits.take(max(len(claims.runs) - self._claiming, 0))
        self._unanswered = len(claims.runs) > self._claiming  # guard: late-claim-without-slot
        if not self._unanswered:
            return claims
        return msgspec.structs.replace(claims, runs=claims.runs[: self._claiming])

    async def _return_unattended(self) -> None:
        """Return the runs to the queue that are claimed for this worker and unknown to the executor."""
        returned = await self._claimer.tidy(self._executor.attended)
        self._unanswered = False
        self._events_appended.inc(returned.events)
        if returned.entries:
            self._log.warning("runs of an unanswered claim returned to the queue", runs=returned.entries)

    # -- waiting

    async def _wait_for_gate(self) -> None:
        self._gate_changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_POLL_SECONDS):
                await self._unless_quiet(self._gate_changed.wait())

    async def _back_off(self, exc: Exception) -> None:
        """Wait after an error of Redis, longer each time, before the next claim."""
        if isinstance(exc, REFUSALS) and not isinstance(exc, DISCONNECTS):
            self._log.error("runs not claimed, a key of the queue may be damaged", error=str(exc))
        self._metrics.redis_errors.labels(type(exc).__name__).inc()
        self._failed_claims += 1
        pause = backoff_seconds(self._failed_claims, _OUTAGE_FIRST_SECONDS, _OUTAGE_MOST_SECONDS)
        self._more_wait = True
        self._claim_seconds = 0.0  # guard: failed-claim-not-slow
        await self._unless_quiet(asyncio.sleep(pause))

    async def _unless_quiet(self, awaitable: Awaitable[T]) -> T | None:
        """Await something; return None as soon as the loop is quiet."""
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
