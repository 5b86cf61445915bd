"""Periodic tasks of a process that tolerate outages of Redis.

Each loop has a tolerance of its own. If two loops shared one, a response of one server of a cluster would end
the outage of another server in the log each time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.redis.client import TROUBLE
from holdfast.redis.outages import redis_outages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from holdfast.telemetry.metrics import Metrics


_PAUSE_SECONDS = 1.0


class Tolerance:
    """Lets one loop continue while Redis is unavailable; a context manager around one pass."""

    def __init__(self, metrics: Metrics, held_up: str) -> None:
        self._metrics = metrics
        self._outages = redis_outages(held_up)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._outages.__exit__(kind, exc, trace)
        if not isinstance(exc, TROUBLE):
            return False
        self._metrics.redis_errors.labels(type(exc).__name__).inc()
        return True


async def repeat(do: Callable[[], Awaitable[None]], tolerance: Tolerance, *, every_seconds: float) -> None:
    """Call a function every ``every_seconds`` until cancelled; a pass that takes longer is cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        next_round = now() + every_seconds
        with tolerance:
            await _within(every_seconds, do)
        # Never at once: a slow Redis needs a pause.
        await asyncio.sleep(max(next_round - now(), min(every_seconds, _PAUSE_SECONDS)))


async def _within(seconds: float, do: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await do()
    except TimeoutError as exc:
        raise TimeoutError(f"no response within {seconds:g} s") from exc
