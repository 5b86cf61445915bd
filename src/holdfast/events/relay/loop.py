"""Control of a relay's loops: a round, then a wait until more may be due, until the relay stops.

The scripts that append an event also publish a notification on the outbox's channel, so an idle loop waits
instead of polling. A notification may be lost, and older versions publish none: the loops poll every few
seconds, and more often while they find events without a notification.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from holdfast.telemetry.metrics import Metrics

_RETRY_SECONDS = 0.5
_NOTIFIED_POLL_SECONDS: Final = 5.0
"""The poll interval of a loop that is notified of new events."""
_UNANNOUNCED_SECONDS: Final = 600.0
"""How long a relay polls more often after it has found an event without a notification."""

_log = get_logger(__name__)


class DeliverySlots:
    """How many entries a relay delivers to one sink at once."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._freed = asyncio.Event()

    def take(self) -> None:
        """Take one slot."""
        self.free -= 1

    def release(self) -> None:
        """Release one slot."""
        self.free += 1
        self._freed.set()

    async def wait(self) -> None:
        """Wait until a slot is free."""
        while self.free <= 0:
            self._freed.clear()
            await self._freed.wait()


class LoopControl:
    """Sets the poll interval of a relay's loops and stops them: all loops share one."""

    def __init__(self, poll_seconds: float, metrics: Metrics) -> None:
        self._poll_seconds = poll_seconds
        self._metrics = metrics
        self._stop = asyncio.Event()
        self._poll_until = 0.0

    @property
    def stopping(self) -> bool:
        """Whether the relay is stopping."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End every wait, and every loop after its round."""
        self._stop.set()

    def found_unannounced(self) -> None:
        """Poll more often for a time: some processes do not publish notifications, or lack the permission."""
        now = asyncio.get_running_loop().time()
        if now >= self._poll_until:
            _log.info("relay polls, events without a notification found", seconds=_UNANNOUNCED_SECONDS)
        self._poll_until = now + _UNANNOUNCED_SECONDS

    async def wait_or_stop(self, waiting: Coroutine[None, None, object]) -> None:
        """Wait for the coroutine, or for the stop."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def run_round(self, work: Callable[[], Awaitable[float]], wakeup: LoopWakeup) -> None:
        """Do one round, then wait for ``wakeup``, or for the seconds that the work returns (0: not at all).

        Two rounds are at least ``poll_seconds`` apart, unless the first one found work.
        """
        now = asyncio.get_running_loop().time
        next_round = now() + self._poll_seconds
        wakeup.clear()
        try:
            with wakeup.outages:
                idle = await work()
        except TROUBLE as exc:
            self._metrics.redis_errors.labels(type(exc).__name__).inc()
            if not isinstance(exc, DISCONNECTS):
                _log.error("outbox not readable", error=str(exc))
            await self.wait_or_stop(asyncio.sleep(_RETRY_SECONDS))
            return
        if idle > 0:
            polls = now() < self._poll_until or not wakeup.listening
            poll_seconds = self._poll_seconds if polls else _NOTIFIED_POLL_SECONDS
            await self.wait_or_stop(wakeup.wait(min(idle, poll_seconds)))
            await self.wait_or_stop(asyncio.sleep(max(next_round - now(), 0.0)))


class LoopWakeup:
    """Ends the wait of one loop, and reports the outages that the loop observes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        # One per loop: in a cluster, a reply of one server does not end the outage of another.
        self.outages = redis_outages(
            "delivery of events", "events stay in their feeds until they are delivered"
        )
        self.listening = False
        """Whether the loop is notified of new events; if not, it polls."""

    def set(self) -> None:
        """End the wait of the loop."""
        self._event.set()

    def clear(self) -> None:
        """Clear the notifications from before a round."""
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, at most for ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
