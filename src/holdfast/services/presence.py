"""Presence: a part that runs inside any process says that it lives, and goodbye."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from typing import TYPE_CHECKING

from holdfast.packages import version
from holdfast.redis.members import Member
from holdfast.services.rounds import Tolerance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.redis.client import Redis
    from holdfast.redis.members import Members
    from holdfast.telemetry.metrics import Metrics

_GOODBYE_SECONDS = 2.0


class Presence:
    """One member's record, kept while ``beat`` runs."""

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
        self._members = members
        self._redis = redis
        self._tolerance = Tolerance(metrics, "heartbeats")
        common = {
            "version": version(),
            "host": platform.node(),
            "pid": str(os.getpid()),
            "since": f"{time.time():.3f}",
            "queues": ",".join(queues),
        }
        self._member = Member(kind, name, {**common, **fields})

    async def beat(self) -> None:
        """Say again and again that it lives, until cancelled."""
        while True:
            with self._tolerance:
                await self._members.announce(self._redis, self._member)
            await asyncio.sleep(self._members.heartbeat_seconds)

    async def leave(self) -> None:
        """Say goodbye, if Redis is there to hear it."""
        with self._tolerance:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._members.leave(self._redis, self._member.kind, self._member.name)
