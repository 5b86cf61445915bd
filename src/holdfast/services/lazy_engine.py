"""The door to the hosts, opened when somebody first asks for it: most API processes never load gRPC."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from holdfast.hosts.factory import open_cluster

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.hosts.engine import Engine
    from holdfast.redis.client import Redis


class LazyEngine:
    """One engine for a process."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self._settings = settings
        self._redis = redis
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> Engine:
        """The engine; ModuleNotFoundError where the extra is not installed."""
        async with self._opening:
            if self._engine is None:
                # Loaded on a thread: the event loop serves others meanwhile.
                await asyncio.to_thread(importlib.import_module, "holdfast.hosts.remote")
                self._engine = open_cluster(self._settings, self._redis)
        return self._engine

    async def close(self) -> None:
        """Close its channels; agents go on."""
        if self._engine is not None:
            await self._engine.close()
