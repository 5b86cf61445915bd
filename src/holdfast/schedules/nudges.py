"""Nudges: a channel says that a schedule was registered, triggered, resumed or given back.

It also says that a scheduler has come, drains or has left: then the shares are another's. What is missed, the
next look brings, ``interval-ms`` later at most, and the next heartbeat.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.redis.client import TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.schedules.words import text
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.redis.client import Redis

JOINED, DRAINING, LEFT = "joined", "draining", "left"
MEMBER_WORDS = frozenset({JOINED, DRAINING, LEFT})
_RETRY_SECONDS = 1.0

_log = get_logger(__name__)


class Nudges:
    """Listens on the channel and calls whoever is to wake up."""

    def __init__(
        self, channel: str, redis: Redis, *, wake: Callable[[], None], members_changed: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._wake = wake
        self._members_changed = members_changed
        self._redis: Any = redis
        self._outages = redis_outages("wake-ups of the scheduler", "it looks every interval-ms")

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
            except TROUBLE as exc:
                if not self._outages.failed(exc):
                    _log.warning("wake-up channel refused", channel=self._channel, error=str(exc))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        await self._redis.initialize()  # a cluster's client must know the nodes before it can choose one
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._channel)
            self._outages.answered()
            self._wake()
            self._members_changed()
            while True:
                message = await channel.get_message(timeout=None)
                if message is None:
                    continue
                if text(message["data"]) in MEMBER_WORDS:
                    self._members_changed()  # guard: look-around-on-change
                self._wake()
