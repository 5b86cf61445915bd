"""Control of a relay's loops: a round, then a wait until more may be due, until the relay stops.

The scripts that append an event also publish a notification on the outbox's channel, so an idle loop waits
instead of polling. A notification may be lost, and older versions publish none: the loops poll every few
seconds, and often while they find events that came without a notification.
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
"""How often a loop polls that is notified of new events."""
_UNANNOUNCED_SECONDS: Final = 600.0
"""How long a relay polls often after it has found an event without a notification."""

_log = get_logger(__name__)


class DeliverySlots:
    """How many entries a relay delivers to one sink at once."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._freed = asyncio.Event()

    def take(self) -> None:
        """Use one."""
        self.free -= 1

    def release(self) -> None:
        """Free one."""
        self.free += 1
        self._freed.set()

    async def wait(self) -> None:
        """Wait until one is free."""
        while self.free <= 0:
            self._freed.clear()
            await self._freed.wait()


class LoopControl:
    """Paces and ends the loops of a relay: all of them share one."""

    def __init__(self, poll_seconds: float, metrics: Metrics) -> None:
        self._poll_seconds = poll_seconds
        self._metrics = metrics
        self._stop = asyncio.Event()
        self._poll_until = 0.0

    @property
    def stopping(self) -> bool:
        """Whether the relay was asked to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End every wait, and every loop after its round."""
        self._stop.set()

    def found_unannounced(self) -> None:
        """Poll for a while: some processes don't publish what they append, or may not."""
        now = asyncio.get_running_loop().time()
        if now >= self._poll_until:
            _log.info("relay polls: there were events without a notification", seconds=_UNANNOUNCED_SECONDS)
        self._poll_until = now + _UNANNOUNCED_SECONDS

    async def wait_or_stop(self, waiting: Coroutine[None, None, object]) -> None:
        """Wait for this, or for the stop."""
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def run_round(self, work: Callable[[], Awaitable[float]], wakeup: Wakeup) -> None:
        """Do one round, then wait for ``wakeup``, or the seconds that the work returns: 0 goes on at once.

        Two rounds are ``poll_seconds`` apart at least, unless there was something to do.
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
                _log.error("the outbox can't be read", error=str(exc))
            await self.wait_or_stop(asyncio.sleep(_RETRY_SECONDS))
            return
        if idle > 0:
            polls = now() < self._poll_until or not wakeup.listening
            poll_seconds = self._poll_seconds if polls else _NOTIFIED_POLL_SECONDS
            await self.wait_or_stop(wakeup.wait(min(idle, poll_seconds)))
            await self.wait_or_stop(asyncio.sleep(max(next_round - now(), 0.0)))


class Wakeup:
    """Ends the wait of one loop, and reports the outages that the loop meets."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        # Not shared with other loops: an answer of one server of a cluster ends no outage of another.
        self.outages = redis_outages(
            "delivery of events", "events stay in their feeds until they are delivered"
        )
        self.listening = False
        """Whether the loop is notified of new events; if not, it polls."""

    def set(self) -> None:
        """End the wait of the loop."""
        self._event.set()

    def clear(self) -> None:
        """Forget what was notified before a round."""
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
