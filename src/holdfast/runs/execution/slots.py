"""The slots of a queue in one process: the limit of its concurrent runs, over all partitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from holdfast.leases.permits import Permits

if TYPE_CHECKING:
    from collections.abc import Sized

    from holdfast.config import QueueSettings
    from holdfast.telemetry.metrics import Metrics


_SILENT_SECONDS = 0.5
"""How long a claim or a settlement may wait for a reply before its slots are released."""


class SlotUser(Protocol):
    """The worker of a partition, as far as its slots use it."""

    @property
    def running(self) -> Sized:
        """The attempts whose agents are called now."""
        ...

    @property
    def lingering(self) -> int:
        """How many agents continue after their runs have ended."""
        ...

    def release_unanswered(self, silent_seconds: float) -> int:
        """Release the slots of claims and settlements without a reply after ``silent_seconds``."""
        ...


class Slots:
    """Shared by the workers of a queue's partitions, which take slots in turn, each at most its share."""

    def __init__(self, settings: QueueSettings, metrics: Metrics) -> None:
        name = settings.name
        self.permits = Permits(min(settings.slots, settings.max_pending))
        self._users: list[SlotUser] = []
        self._turn = asyncio.Lock()
        metrics.slots.labels(name).set(self.permits.limit)
        metrics.runs_running.labels(name).set_function(lambda: sum(len(user.running) for user in self._users))
        metrics.bodies_lingering.labels(name).set_function(
            lambda: sum(user.lingering for user in self._users)
        )

    def share_with(self, worker: SlotUser) -> None:
        """Add the worker of one more partition, which takes slots from now on."""
        self._users.append(worker)

    def take_now(self, most: int) -> int:
        """Take free slots, at most one partition's share; return how many were taken."""
        # While a server does not reply, the slots taken for it are unusable for the other partitions.
        share = -(-self.permits.limit // len(self._users))
        return self.permits.take(min(most, share))

    async def take(self, most: int) -> int:
        """Take at least one slot as soon as one is free, in the order of the calls."""
        async with self._turn:
            await self.wait_free()
            return self.take_now(most)

    async def wait_free(self) -> None:
        """Return as soon as a slot is free; slots that wait too long for a reply are released."""
        while not self.permits.free:
            try:
                async with asyncio.timeout(_SILENT_SECONDS):
                    await self.permits.wait_free()
            except TimeoutError:
                # guard: silent-servers-slots
                self.permits.give(sum(user.release_unanswered(_SILENT_SECONDS) for user in self._users))
