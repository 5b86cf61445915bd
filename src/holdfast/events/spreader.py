"""A spreader puts the runs with news onto their lines, once it knows where a run's events go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.events.origin import Origin, read_origin
from holdfast.events.pace import Wakeup
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.events.origin import Address
    from holdfast.events.outbox import Line, Outbox, Unrouted
    from holdfast.events.pace import Pace
    from holdfast.telemetry.metrics import Metrics

_REMEMBERED = 10_000

_log = get_logger(__name__)


class Origins:
    """What is told of the runs of one queue; remembered, since a run has many events."""

    def __init__(self, queue: str, outbox: Outbox) -> None:
        self.queue = queue
        self._outbox = outbox
        # With its time: a run that was submitted again under the same id, much later, is another.
        self._known: dict[tuple[str, str], Origin] = {}

    async def of(self, line: Line) -> Origin | None:
        """What is told of a line's run, or None if it has left."""
        known = self._known.get((line.run_id, line.submitted_at))
        if known is not None:
            return known
        record = await self._outbox.record(line.run_id)
        return self.learn(record)[0] if record else None

    def learn(self, run: Unrouted) -> tuple[Origin, Address]:
        """Read a run's record, and remember what it says."""
        origin, address = read_origin(
            run.message,
            run_id=run.run_id,
            queue=self.queue,
            agent=run.agent,
            thread_id=run.thread_id,
            tenant=run.tenant,
        )
        if len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[run.run_id, run.submitted_at] = origin
        return origin, address


class Spreader:
    """Spreads what one queue has for the outside, and wakes the couriers that are to deliver it."""

    def __init__(
        self,
        outbox: Outbox,
        origins: Origins,
        pace: Pace,
        metrics: Metrics,
        couriers: Sequence[Wakeup] = (),
    ) -> None:
        self.wakeup = Wakeup()
        self._outbox = outbox
        self._origins = origins
        self._pace = pace
        self._metrics = metrics
        self._couriers = couriers
        self._warned = False
        self._notified = False
        self._expected_at = 0.0
        """When the loop knew that there would be something to do, by the event loop's time."""

    def notify(self) -> None:
        """Look now: a run has new events."""
        self._notified = True
        self.wakeup.set()

    async def run(self) -> None:
        """Spread until the pace says stop."""
        while not self._pace.stopping:
            await self._pace.round(self._round, self.wakeup)

    async def _round(self) -> float:
        now = asyncio.get_running_loop().time()
        announced, self._notified = self._notified or now >= self._expected_at, False
        listening = self.wakeup.listening  # before the look: what was appended until then was not heard
        spread = await self._outbox.spread()
        # Of those that notify each other another one may have spread the run: its lines are for all of us.
        if spread.looked or announced:
            for courier in self._couriers:
                courier.set()
        if spread.looked and not announced and listening:
            self._pace.found_unannounced()
        self._expected_at = now if spread.looked else now + spread.due_seconds
        addresses = [(run.run_id, self._origins.learn(run)[1]) for run in spread.unrouted]
        await self._outbox.route([(run_id, each.webhook, each.push) for run_id, each in addresses])
        for run_id in spread.gone:
            self._metrics.relay_undelivered.labels(self._origins.queue, "any").inc()
            _log.warning("run left before its events were delivered", run_id=run_id)
        if spread.unserved and not self._warned:
            self._warned = True
            _log.warning(
                "events for the Event API wait, and this relay has no event_api.url (EVENT_API_URL)",
                queue=self._origins.queue,
            )
        return 0.0 if spread.looked else spread.due_seconds
