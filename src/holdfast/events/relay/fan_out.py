"""The fan-out adds an outbox entry per sink for each run that has new events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.events.relay.loop import LoopWakeup
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.events.relay.loop import LoopControl
    from holdfast.events.relay.outbox import FanOutResult, Outbox
    from holdfast.events.relay.run_facts import RunFactsCache
    from holdfast.telemetry.metrics import Metrics

_log = get_logger(__name__)


class FanOut:
    """Fans out the runs of one partition, and wakes the deliveries to the sinks."""

    def __init__(
        self,
        outbox: Outbox,
        runs: RunFactsCache,
        loops: LoopControl,
        metrics: Metrics,
        deliveries: Sequence[LoopWakeup] = (),
    ) -> None:
        self.wakeup = LoopWakeup()
        self._outbox = outbox
        self._runs = runs
        self._loops = loops
        self._metrics = metrics
        self._deliveries = deliveries
        self._warned = False
        self._notified = False
        self._expected_at = 0.0
        """When the next run is due, by the last round; in time of the event loop."""

    def notify(self) -> None:
        """Start the next round now: a run has new events."""
        self._notified = True
        self.wakeup.set()

    async def run(self) -> None:
        """Fan out until the relay stops."""
        while not self._loops.stopping:
            await self._loops.run_round(self._round, self.wakeup)

    async def _round(self) -> float:
        now = asyncio.get_running_loop().time()
        announced, self._notified = self._notified or now >= self._expected_at, False
        listening = self.wakeup.listening  # before the call: earlier events had no listener
        found = await self._outbox.fan_out()
        # Another relay may have fanned the run out after the same notification: its entries are for all.
        if found.looked or announced:
            for delivery in self._deliveries:
                delivery.set()
        if found.looked and not announced and listening:
            self._loops.found_unannounced()
        self._expected_at = now if found.looked else now + found.due_seconds
        await self._store_addresses(found)
        self._report(found)
        return 0.0 if found.looked else found.due_seconds

    async def _store_addresses(self, found: FanOutResult) -> None:
        addresses = [(run.run_id, self._runs.read(run)[1]) for run in found.unrouted]
        await self._outbox.route([(run_id, each.webhook, each.push) for run_id, each in addresses])

    def _report(self, found: FanOutResult) -> None:
        for run_id in found.gone:
            self._metrics.relay_undelivered.labels(self._runs.queue, "any").inc()
            _log.warning("run removed before its events were delivered", run_id=run_id)
        if found.unserved and not self._warned:
            self._warned = True
            _log.warning(
                "events for the Event API not delivered: this relay has no event_api.url (EVENT_API_URL)",
                queue=self._runs.queue,
            )
