"""The slots of a worker: how many runs of one queue it does at once, over all of the queue's partitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from holdfast.leases.permits import Permits

if TYPE_CHECKING:
    from collections.abc import Sized

    from holdfast.config import QueueSettings
    from holdfast.telemetry.metrics import Metrics


_SILENT_SECONDS = 0.5
"""How long a server may leave a claim or a settlement without an answer before its slots go to others."""


class _Seated(Protocol):
    """Whoever takes slots, for one partition."""

    @property
    def running(self) -> Sized: ...
    @property
    def lingering(self) -> int: ...
    def release_unanswered(self, silent_seconds: float) -> int:
        """Give up the slots without a body for which Redis has been silent that long; return how many."""
        ...


class Slots:
    """Shared by a worker's partitions: they take them in turn, and none can take all for itself."""

    def __init__(self, settings: QueueSettings, metrics: Metrics) -> None:
        name = settings.name
        self.permits = Permits(min(settings.slots, settings.max_pending))
        self._seated: list[_Seated] = []
        self._line = asyncio.Lock()
        metrics.slots.labels(name).set(self.permits.limit)
        metrics.runs_running.labels(name).set_function(lambda: sum(len(one.running) for one in self._seated))
        metrics.bodies_lingering.labels(name).set_function(lambda: sum(one.lingering for one in self._seated))

    def seat(self, worker: _Seated) -> None:
        """Let one more partition share them."""
        self._seated.append(worker)

    def take_now(self, most: int) -> int:
        """Take what one may have of those that are free; none if all are taken."""
        # While a server does not answer, what was taken for it is of no use to the other partitions.
        share = -(-self.permits.limit // len(self._seated))
        return self.permits.take(min(most, share))

    async def take(self, most: int) -> int:
        """Take at least one as soon as one is free: first come, first served."""
        async with self._line:
            await self.wait_free()
            return self.take_now(most)

    async def wait_free(self) -> None:
        """Return as soon as one can be taken; a server that does not answer keeps none that no body uses."""
        while not self.permits.free:
            try:
                async with asyncio.timeout(_SILENT_SECONDS):
                    await self.permits.wait_free()
            except TimeoutError:
                # guard: silent-servers-slots
                self.permits.give(sum(each.release_unanswered(_SILENT_SECONDS) for each in self._seated))
