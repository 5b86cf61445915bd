"""Recovery: runs whose worker stopped renewing return to the queue, within a second of their lease's end.

Any worker does this for all runs; the turn key limits it to one worker at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.redis.client import DISCONNECTS, REFUSALS
from holdfast.redis.groups import group_is_missing
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.leases.streams import StreamLeases
    from holdfast.runs.partition import Partition
    from holdfast.telemetry.metrics import Metrics

_DAMAGED_SECONDS = 5.0

_log = get_logger(__name__)


class Recovery:
    """Reclaims the runs of dead workers of one queue."""

    def __init__(
        self, queue: Partition, leases: StreamLeases, metrics: Metrics, *, every_seconds: float
    ) -> None:
        self._queue = queue
        self._leases = leases
        self._metrics = metrics
        self._every = every_seconds
        self._outages = redis_outages("reclaiming of dead workers' runs")

    async def run(self) -> None:
        """Reclaim runs at an interval, until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            try:
                with self._outages:
                    await self.run_once()
            except DISCONNECTS:
                pass  # the next pass is soon
            except REFUSALS as exc:
                _log.error(
                    "runs of dead workers not reclaimed, a key of the queue may be damaged", error=str(exc)
                )
                await asyncio.sleep(_DAMAGED_SECONDS)

    async def run_once(self) -> Sequence[str]:
        """Reclaim the runs whose leases have expired; return their ids."""
        try:
            taken = await self._leases.reclaim(self._queue.redis)
        except Exception as exc:
            if not group_is_missing(exc):
                raise
            await self._queue.ensure()
            return ()
        for run_id in taken:
            _log.warning(
                "run reclaimed from a worker that stopped renewing", run_id=run_id, queue=self._queue.name
            )
        self._metrics.runs_reclaimed.labels(self._queue.name).inc(len(taken))
        if taken:
            self._metrics.events_appended.labels(self._queue.name).inc(len(taken))
        return taken
