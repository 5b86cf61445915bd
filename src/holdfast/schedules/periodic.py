"""Periodic tasks: one pass after the other until stopped; the current pass may then end within a timeout."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_log = get_logger(__name__)


class PeriodicTask:
    """Makes passes; each returns the seconds until the next one."""

    def __init__(
        self,
        name: str,
        once: Callable[[], Awaitable[float]],
        *,
        first_after: float = 0.0,
        await_ms: int,
        force_await_ms: int,
    ) -> None:
        self._name = name
        self._once = once
        self._pause = first_after
        self._stop_timeouts = (await_ms / 1000, force_await_ms / 1000)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Make passes until stopped or cancelled."""
        self._task = asyncio.current_task()
        while not await self._stopped_within(self._pause):
            self._pause = await self._once()

    async def stop(self) -> bool:
        """Make no further pass; wait for the current one, then cancel it. False if it ignores that."""
        self._stopping.set()
        task = self._task
        if task is None or await _ended(task, self._stop_timeouts[0]):  # guard: round-stop-grace
            return True
        _log.warning("a pass does not end in time: it is cancelled", round=self._name)
        task.cancel()
        if await _ended(task, self._stop_timeouts[1]):
            return True
        _log.error("a pass ignores that it is cancelled: it is left behind", round=self._name)
        return False

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._stopping.wait()
        return self._stopping.is_set()


async def _ended(task: asyncio.Task[None], seconds: float) -> bool:
    done, _ = await asyncio.wait([task], timeout=seconds)
    return bool(done)
