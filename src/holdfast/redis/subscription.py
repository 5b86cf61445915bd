"""A subscription to one channel, renewed after every failure of Redis; messages in between are lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from holdfast.redis.client import TROUBLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.outages import OutageReporter
    from holdfast.redis.client import Redis

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Subscription:
    """Calls ``on_message`` with each message, and ``on_subscribed`` whenever it has subscribed."""

    def __init__(
        self,
        channel: str,
        redis: Redis,
        outages: OutageReporter,
        *,
        on_message: Callable[[str], None],
        on_subscribed: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._redis: Any = redis
        self._outages = outages
        self._on_message = on_message
        self._on_subscribed = on_subscribed

    async def run(self) -> None:
        """Receive until cancelled."""
        while True:
            try:
                await self._receive()
            except TROUBLE as exc:
                if not self._outages.failed(exc):
                    _log.warning("subscription to %s refused: %s", self._channel, exc)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _receive(self) -> None:
        await self._redis.initialize()  # a cluster's client has to read the nodes before it selects one
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._channel)
            self._outages.answered()
            self._on_subscribed()
            while True:
                message = await channel.get_message(timeout=None)
                if message is not None:
                    self._on_message(message["data"].decode(errors="replace"))
