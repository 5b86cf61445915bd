"""The life of a delivery: the events of one run on their way to one sink.

::

    claim     take entries of the outbox that are due, each under a new fence
    hold      renew the entry's lease until its delivery ends
    read      the events after the entry's cursor; events to redeliver come first
    send      one event, over HTTP
    decide    delivered, try again after a pause, or given up          (retry.py)
    report    count the decision, and log one line
    advance   move the cursor past the event, under the entry's fence

Invariant: the next event of a run is sent only after the cursor has moved past the one before. So a crash
repeats only the last event, and no receiver gets an event before those that precede it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.clock import boot_time
from holdfast.errors import LeaseLost
from holdfast.events.relay.retry import Delivered, GiveUpEvent, TryAgain
from holdfast.events.sinks.request import SinkResponse
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.telemetry.logs import get_logger, run_context

if TYPE_CHECKING:
    from holdfast.events.relay.leases import EntryLeases
    from holdfast.events.relay.loop import DeliverySlots, LoopControl, LoopWakeup
    from holdfast.events.relay.outbox import Outbox, OutboxEntry, PendingEvent
    from holdfast.events.relay.retry import Decision, RetryPolicy
    from holdfast.events.relay.run_facts import RunFacts, RunFactsCache
    from holdfast.events.relay.sender import Sender
    from holdfast.telemetry.metrics import Metrics

_NO_RECORD_SECONDS = 0.5
_RELEASE_SECONDS = 1.0
_JITTER = 0.2

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SinkResources:
    """The objects that the deliveries of all partitions to one sink share."""

    sender: Sender
    retry: RetryPolicy
    slots: DeliverySlots
    loops: LoopControl
    metrics: Metrics


class Delivery:
    """Delivers the events of one partition's runs to one sink."""

    def __init__(
        self,
        sink: SinkResources,
        outbox: Outbox,
        *,
        runs: RunFactsCache,
        leases: EntryLeases,
        wakeup: LoopWakeup,
    ) -> None:
        self._sender, self._retry = sink.sender, sink.retry
        self._slots, self._loops, self._metrics = sink.slots, sink.loops, sink.metrics
        self._outbox = outbox
        self._runs = runs
        self._leases = leases
        self._wakeup = wakeup
        self._sink_name, self._queue = self._sender.sink.name, runs.queue
        self._delivered = self._metrics.relay_delivered.child(self._queue, self._sink_name)
        self._undelivered = self._metrics.relay_undelivered.labels(self._queue, self._sink_name)
        self._lag = self._metrics.relay_lag_seconds.child(self._queue, self._sink_name)

    async def run(self) -> None:
        """Deliver until the relay stops; return when no entry is held any more."""
        async with asyncio.TaskGroup() as group:
            while not self._loops.stopping:
                await self._loops.wait_or_stop(self._slots.wait())
                if self._slots.free > 0 and not self._loops.stopping:
                    await self._loops.run_round(lambda: self._claim(group), self._wakeup)

    async def _claim(self, group: asyncio.TaskGroup) -> float:
        """Claim entries that are due; return the seconds until the next is due: 0 if there may be more."""
        requested_at = boot_time()
        claimed = await self._outbox.claim(self._sink_name, self._slots.free)
        for entry in claimed.entries:
            self._slots.take()
            group.create_task(self._hold(entry, requested_at), name=f"delivery {entry.key}")
        for run_id in claimed.gone:
            self._undelivered.inc()
            _log.warning("run removed before its events were delivered", run_id=run_id, sink=self._sink_name)
        return 0.0 if claimed.looked else claimed.due_seconds

    async def _hold(self, entry: OutboxEntry, requested_at: float) -> None:
        """Deliver an entry under its lease; if it can't be released, it is due again when the lease ends."""
        try:
            async with self._leases.hold(entry, requested_at):
                await self._deliver(entry)
        except LeaseLost:
            _log.warning("delivery taken over", run_id=entry.run_id, sink=entry.sink, fence=entry.fence)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, *DISCONNECTS):
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._outbox.release(entry)
            raise
        except TROUBLE as exc:
            self._metrics.redis_errors.labels(type(exc).__name__).inc()
        finally:
            self._slots.release()
            # The entry may be due again soon: the next claim reads when.
            self._wakeup.set()  # guard: delivery-ended-wakes

    async def _deliver(self, entry: OutboxEntry) -> None:
        """Deliver the entry's events until none is left, one has to be tried again, or the relay stops."""
        for event in entry.pending():
            if self._loops.stopping:
                await self._outbox.release(entry)
                return
            run = event.run or await self._runs.of(entry)
            response = await self._send(event, run)
            decision = self._retry.decide(response, entry, event)
            self._report(entry, event, response, decision)
            if not await self._advance(entry, event, run, decision):
                return

    async def _send(self, event: PendingEvent, run: RunFacts | None) -> SinkResponse:
        if run is not None:
            run_context.set({**run.logger_context, "run_id": run.run_id, "queue": self._queue})
            return await self._sender.send(event, run)
        if event.is_redelivery:
            return SinkResponse(
                kind="address", error="the run was removed, and its receivers were not stored"
            )
        return SinkResponse(kind="busy", error="the run has no record", retry_after=_NO_RECORD_SECONDS)

    def _report(
        self, entry: OutboxEntry, event: PendingEvent, response: SinkResponse, decision: Decision
    ) -> None:
        fields = {"sink": entry.sink, "event_id": event.event.id}
        match decision:
            case Delivered():
                self._delivered.inc()
                if not event.is_redelivery:
                    self._lag.observe(max(entry.now - event.event.at, 0.0))
                _log.debug("event delivered", **fields, type=event.event.type)
            case TryAgain(counts_as="released"):
                pass
            case TryAgain(seconds, counts_as):
                self._count_failure(entry, response)
                log = _log.info if counts_as == "failed" else _log.warning
                log("event not accepted", **fields, again_in=seconds, error=response.reason)
            case GiveUpEvent(reason):
                self._count_failure(entry, response)
                self._undelivered.inc()
                _log.error("event given up", **fields, type=event.event.type, error=reason)

    def _count_failure(self, entry: OutboxEntry, response: SinkResponse) -> None:
        self._metrics.relay_failures.labels(self._queue, entry.sink, response.failure_kind).inc()

    async def _advance(
        self, entry: OutboxEntry, event: PendingEvent, run: RunFacts | None, decision: Decision
    ) -> bool:
        """Advance the cursor, or release the entry for another try; return whether it is still held."""
        match decision:
            case TryAgain(seconds, counts_as):
                seconds *= random.uniform(1, 1 + _JITTER)  # noqa: S311
                await self._outbox.release(entry, seconds, counts_as=counts_as)
                return False
            case GiveUpEvent(reason, rejections):
                return await self._outbox.advance(entry, event, reason=reason, rejections=rejections, run=run)
            case Delivered():
                return await self._outbox.advance(entry, event)
