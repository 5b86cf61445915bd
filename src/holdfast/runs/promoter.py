"""The promoter moves delayed runs to their lane when they are due, which wakes a blocked worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.redis.client import DISCONNECTS, REFUSALS
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.runs.partition import Partition
    from holdfast.telemetry.metrics import Metrics

_PROMOTE = load(__package__, "promote")
_BATCH = 100
LONGEST_SECONDS = 0.5
"""How late a run may be queued that was delayed after the last read."""
_DAMAGED_SECONDS = 5.0

_log = get_logger(__name__)


class Promoter:
    """Watches the delayed set of one queue."""

    def __init__(
        self, queue: Partition, metrics: Metrics, *, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        self._queue = queue
        self._events_appended = metrics.events_appended.labels(queue.name)
        self._longest = longest_seconds
        self._outages = redis_outages("queueing of delayed runs")
        keys = queue.keys
        self._keys = [
            *keys.lanes,
            keys.delayed,
            keys.run_prefix,
            keys.ended,
            keys.limits,
            keys.unarchived,
        ]
        self._args = [_BATCH, int(queue.settings.retention_seconds * 1000), keys.control]

    async def run(self) -> None:
        """Promote until cancelled; sleep until the next run is due, but briefly: other processes add runs."""
        while True:
            try:
                with self._outages:
                    moved, next_ms = await self.run_once()
            except DISCONNECTS:
                moved, next_ms = 0, -1
            except REFUSALS as exc:
                _log.error("delayed runs not queued, a key of the queue may be damaged", error=str(exc))
                moved, next_ms = 0, -1
                await asyncio.sleep(_DAMAGED_SECONDS)
            if moved < _BATCH:
                due = next_ms / 1000 if next_ms >= 0 else self._longest
                await asyncio.sleep(min(due, self._longest))

    async def run_once(self) -> tuple[int, int]:
        """Promote one batch; return how many were promoted and in how many ms the next is due (-1: none)."""
        moved, next_ms = await _PROMOTE(self._queue.redis, self._keys, self._args)
        self._events_appended.inc(moved)
        return moved, next_ms
