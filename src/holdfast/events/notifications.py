"""Notifications: the outbox's channel says that a run has new events, or that some are delivered again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.redis.client import TROUBLE
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.events.pace import Wakeup
    from holdfast.redis.client import Redis

_RETRY_SECONDS = 1.0

_log = get_logger(__name__)


class Notifications:
    """Listens on one outbox's channel; while it can't, the loops of that outbox poll."""

    def __init__(
        self, channel: str, redis: Redis, *, notify: Callable[[], None], loops: Sequence[Wakeup]
    ) -> None:
        self._channel = channel
        self._redis: Any = redis
        self._notify = notify
        self._loops = loops

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
            except TROUBLE as exc:
                _log.info("notifications wait for Redis", error=str(exc) or type(exc).__name__)
            finally:
                self._set_listening(listening=False)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        await self._redis.initialize()  # a cluster's client must know the nodes before it can choose one
        async with self._redis.pubsub() as channel:
            await channel.subscribe(self._channel)
            while True:
                message = await channel.get_message(timeout=None)
                if message is None:
                    continue
                if message["type"] == "subscribe":
                    self._set_listening(listening=True)
                self._notify()  # also once it listens: what came before was not heard

    def _set_listening(self, *, listening: bool) -> None:
        for loop in self._loops:
            loop.listening = listening
            loop.set()
