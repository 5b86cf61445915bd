"""Retries of a producer's calls, by the settings of ``sender`` and behind the circuit breaker.

Only for idempotent scripts, which are safe to repeat after a lost reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import RedisUnavailable
from holdfast.redis.client import DISCONNECTS
from holdfast.reliability.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.config import SenderSettings
    from holdfast.reliability.breaker import Breaker

T = TypeVar("T")


class Sending:
    """Makes calls for one partition of a queue until Redis answers, or the tries are used up."""

    def __init__(self, queue: str, sender: SenderSettings | None, breaker: Breaker | None) -> None:
        self._queue = queue
        self._breaker = breaker
        self._tries = 1 + sender.max_retries if sender else 1
        self._delay = sender.retry_delay_seconds if sender else 0.0
        self._backoff = sender.retry_backoff if sender else 1.0

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> tuple[T, int]:
        """Call until Redis answers; return the answer, and how many tries it took."""
        for attempt in range(1, self._tries + 1):
            try:
                with self._breaker.guard() if self._breaker else contextlib.nullcontext():
                    return await call(), attempt
            except DISCONNECTS as exc:
                if attempt == self._tries:
                    message = f"queue {self._queue!r}: Redis did not answer in {self._tries} tries: {exc}"
                    raise RedisUnavailable(message, retry_after=2.0) from exc
            await asyncio.sleep(backoff_seconds(attempt, self._delay, math.inf, factor=self._backoff))
        raise AssertionError("the last try returns or raises")
