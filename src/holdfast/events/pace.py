"""How a relay's loops go: a round, then a rest unless there may be more to do, until somebody says stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from holdfast.telemetry.metrics import Metrics

_TROUBLE_SECONDS = 0.5

_log = get_logger(__name__)


class Slots:
    """How many lines may be attended at once."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._freed = asyncio.Event()

    def take(self) -> None:
        """Use one."""
        self.free -= 1

    def give(self) -> None:
        """Give one back."""
        self.free += 1
        self._freed.set()

    async def wait(self) -> None:
        """Wait until one is free."""
        while self.free <= 0:
            self._freed.clear()
            await self._freed.wait()


class Pace:
    """Shared by all loops of a relay."""

    def __init__(self, poll_seconds: float, metrics: Metrics) -> None:
        self._poll_seconds = poll_seconds
        self._metrics = metrics
        self._stop = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether somebody said stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End every rest, and every loop after its round."""
        self._stop.set()

    async def either(self, waiting: Coroutine[None, None, object]) -> None:
        """Wait for this, or for the end."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def round(self, work: Callable[[], Awaitable[bool]]) -> None:
        """Do one round, and rest if there was nothing to do or Redis is away."""
        try:
            more = await work()
        except TROUBLE as exc:
            self._metrics.redis_errors.labels(type(exc).__name__).inc()
            if not isinstance(exc, DISCONNECTS):
                _log.error("the outbox can't be read", error=str(exc))
            await self.either(asyncio.sleep(_TROUBLE_SECONDS))
            return
        if not more:
            await self.either(asyncio.sleep(self._poll_seconds))
