"""The circuit breaker around calls to Redis: which errors are failures, and the error while it is open."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from holdfast.errors import RedisUnavailable
from holdfast.redis.client import takes_no_writes, unavailable
from holdfast.reliability.breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import BreakerSettings

AWAY: Final = "away"
"""The cause of a breaker that opened because Redis did not answer."""
UNWRITABLE: Final = "unwritable"
"""The cause of a breaker that opened because Redis answers, but takes no writes from any client now."""


def breaker_for_redis(
    settings: BreakerSettings,
    clock: Callable[[], float] = time.monotonic,
    *,
    is_failure: Callable[[BaseException], bool] = unavailable,
    name: str = "redis.breaker",
) -> Breaker:
    """Make a breaker around calls to Redis; ``name`` is the section of its settings."""

    def refusal(breaker: Breaker) -> RedisUnavailable:
        return RedisUnavailable(
            f"Redis has failed {breaker.failure_threshold} times; the next try is "
            f"in {breaker.retry_after:.1f} s ({name}).",
            retry_after=breaker.retry_after,
        )

    return Breaker(settings, clock, is_failure=is_failure, refusal=refusal, cause_of=_cause_of)


def _cause_of(exc: BaseException) -> str:
    if takes_no_writes(exc):
        return UNWRITABLE
    return AWAY if unavailable(exc) or isinstance(exc, RedisUnavailable) else ""
