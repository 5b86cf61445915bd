"""The slots of a queue in one process: how many of its runs are performed at once, over all partitions."""

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


class SlotUser(Protocol):
    """The worker of a partition, as its slots see it."""

    @property
    def running(self) -> Sized:
        """The attempts whose agents are called now."""
        ...

    @property
    def lingering(self) -> int:
        """How many agents go on after their runs have ended."""
        ...

    def release_unanswered(self, silent_seconds: float) -> int:
        """Release the slots that no agent uses and that Redis has not answered for in that time."""
        ...


class Slots:
    """Shared by the workers of a queue's partitions, which take slots in turn, each a share at most."""

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
        """Let the worker of one more partition take slots."""
        self._users.append(worker)

    def take_now(self, most: int) -> int:
        """Take free slots, at most one partition's share; return how many were taken."""
        # While a server does not answer, the slots taken for it are of no use to the other partitions.
        share = -(-self.permits.limit // len(self._users))
        return self.permits.take(min(most, share))

    async def take(self, most: int) -> int:
        """Take at least one slot as soon as one is free: first come, first served."""
        async with self._turn:
            await self.wait_free()
            return self.take_now(most)

    async def wait_free(self) -> None:
        """Return as soon as a slot is free; a server that does not answer keeps none that no agent uses."""
        while not self.permits.free:
            try:
                async with asyncio.timeout(_SILENT_SECONDS):
                    await self.permits.wait_free()
            except TimeoutError:
                # guard: silent-servers-slots
                self.permits.give(sum(user.release_unanswered(_SILENT_SECONDS) for user in self._users))
