"""When a scheduler looks again: at the next turn, or sooner if a firing's end or a message wakes it.

A message on the channel means that a schedule was registered, triggered, resumed or given back, or that a
scheduler has joined, drains or has left: then the shards change. If a message is lost, the next look comes
``interval-ms`` later at most, and the shards change with the next heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from holdfast.redis.outages import redis_outages
from holdfast.redis.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.redis.client import Redis

JOINED, DRAINING, LEFT = "joined", "draining", "left"
MEMBER_WORDS = frozenset({JOINED, DRAINING, LEFT})

TICK = 0.001
"""A timer may fire a little early, and a look before its time finds nothing."""


class Wakeup:
    """The sleep of a scheduler between two looks; everything on its event loop may wake it."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._wakes_at = float("inf")

    def wake(self) -> None:
        """Wake it, or keep it from falling asleep."""
        self._woken.set()

    def wake_in(self, seconds: float) -> None:
        """Wake it after so many seconds, if it would sleep longer."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(seconds, 0.0) + TICK
        if due < self._wakes_at:
            self._wakes_at = due
            loop.call_at(due, self._woken.set)

    def reset(self) -> None:
        """Forget earlier wake-ups: the scheduler looks now."""
        self._woken.clear()
        self._wakes_at = float("inf")

    async def sleep(self, seconds: float) -> None:
        """Sleep so long, or until it is woken."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._wakes_at = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()


def wakeup_channel(
    channel: str, redis: Redis, *, wake: Callable[[], None], members_changed: Callable[[], None]
) -> Subscription:
    """Call ``wake`` for each message, and ``members_changed`` if it is about a scheduler."""

    def dispatch(text: str) -> None:
        if text in MEMBER_WORDS:
            members_changed()  # guard: look-around-on-change
        wake()

    def subscribed() -> None:
        wake()
        members_changed()

    outages = redis_outages("wake-ups of the scheduler", "it looks every interval-ms")
    return Subscription(channel, redis, outages, on_message=dispatch, on_subscribed=subscribed)
