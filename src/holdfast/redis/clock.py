"""The time as Redis tells it, so that processes on machines with different clocks agree.

Invariant: a clock never goes backwards; where Redis's does, it stands still until Redis has caught up.
"""

# redis-py types execute_command loosely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.redis.client import Redis

SAMPLES = 3


class Clock(Protocol):
    """Whatever tells the time in seconds since 1970."""

    def now(self) -> float:
        """Return the time."""
        ...


class RedisClock:
    """Redis's TIME, carried on by the local monotonic clock between refreshes.

    Until the first ``refresh`` it tells the local time.
    """

    def __init__(self, redis: Redis, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._monotonic = monotonic
        self._offset = time.time() - monotonic()
        self._latest = float("-inf")

    def now(self) -> float:
        """Return Redis's time in seconds since 1970."""
        self._latest = max(self._latest, self._monotonic() + self._offset)
        return self._latest

    async def refresh(self) -> float:
        """Ask Redis for the time and return half the round trip: how wrong ``now`` may be at most."""
        samples = [await self._sample() for _ in range(SAMPLES)]
        error, self._offset = min(samples)
        return error

    async def _sample(self) -> tuple[float, float]:
        asked = self._monotonic()
        reply = await self._redis.execute_command("TIME")
        error = (self._monotonic() - asked) / 2
        return error, _seconds(reply) - (asked + error)


def _seconds(reply: Any) -> float:
    # redis-py has made two integers of it; a cluster client gives one pair per node.
    if isinstance(reply, dict):
        reply = next(iter(cast("dict[str, Any]", reply).values()))
    seconds, microseconds = reply
    return int(seconds) + int(microseconds) / 1_000_000
