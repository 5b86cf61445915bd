"""The heartbeat of a service inside any process: its record, refreshed until it stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.redis.members import OwnRecord
from holdfast.services.rounds import Tolerance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.redis.client import Redis
    from holdfast.redis.members import Members
    from holdfast.telemetry.metrics import Metrics

_LEAVE_SECONDS = 2.0


class Heartbeat:
    """One service's record with constant fields, refreshed while ``beat`` runs."""

    def __init__(
        self,
        members: Members,
        redis: Redis,
        metrics: Metrics,
        *,
        kind: str,
        name: str,
        queues: Iterable[str],
        **fields: str,
    ) -> None:
        self._every = members.heartbeat_seconds
        self._redis = redis
        self._tolerance = Tolerance(metrics, "heartbeats")
        self._record = OwnRecord(members, kind, name)
        self._fields = {"queues": ",".join(queues), **fields}

    async def beat(self) -> None:
        """Refresh the record until cancelled."""
        while True:
            with self._tolerance:
                await self._record.announce(self._redis, self._fields)
            await asyncio.sleep(self._every)

    async def leave(self) -> None:
        """Remove the record, if Redis responds soon; else it expires."""
        with self._tolerance:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._record.leave(self._redis)
