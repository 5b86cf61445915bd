"""The feeds of one queue's runs, over all partitions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from holdfast.events.feed import PAGE, Feed
from holdfast.redis.translate import translate_errors

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.config import RedisSettings
    from holdfast.events.event import Event
    from holdfast.events.hub import Hub
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue


class Feeds:
    """Finds the feed of a run; with a ``hub``, all followed feeds share its connections."""

    def __init__(self, queue: RunQueue, settings: RedisSettings, hub: Hub | None = None) -> None:
        self._queue = queue
        self._settings = settings
        self._hub = hub
        self._turns = asyncio.Semaphore(settings.max_connections)

    async def read(self, run_id: str, after: str = "0", limit: int = PAGE) -> list[Event]:
        """Read one page of the events that exist now, after the given one; none if the run has no feed."""
        return await self._feed(await self._home(run_id)).read(run_id, after, limit)

    async def follow(self, run_id: str, after: str = "0") -> AsyncGenerator[Event]:
        """Yield events after the given one as they come, and end with the run; see ``Feed.follow``."""
        home = await self._home(run_id)
        if self._hub is None:
            following = self._feed(home).follow(run_id, after)
        else:
            following = self._hub.follow(home.keys, run_id, after)
        async with contextlib.aclosing(following) as events:
            async for event in events:
                yield event

    async def _home(self, run_id: str) -> Partition:
        with translate_errors(self._settings.url):
            return await self._queue.home(run_id)

    def _feed(self, home: Partition) -> Feed:
        return Feed(home.keys, self._queue.redis, self._settings, turns=self._turns)
