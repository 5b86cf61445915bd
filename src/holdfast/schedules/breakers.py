"""The two circuit breakers of a scheduler: around acquisition, and, quicker on both sides, around Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from holdfast.config import BreakerSettings
from holdfast.redis.breaker import breaker_for_redis
from holdfast.redis.client import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import CircuitBreakerSettings
    from holdfast.reliability.breaker import Breaker

PROBES: Final = 3
_SETTING: Final = "redis.scheduler.circuit-breaker"
_LEAST_THRESHOLD: Final = 3
_LONGEST_WINDOW_SECONDS: Final = 5.0


def acquisition_policy(settings: CircuitBreakerSettings) -> BreakerSettings:
    """Return the numbers of the breaker around acquisition: those of the settings."""
    return BreakerSettings(
        failure_threshold=settings.failure_threshold,
        window_seconds=settings.failure_window_ms / 1000,
        cooldown_seconds=settings.cooldown_ms / 1000,
        half_open_probes=PROBES,
        half_open_seconds=settings.half_open_duration_ms / 1000,
    )


def redis_policy(settings: CircuitBreakerSettings) -> BreakerSettings:
    """Return the numbers of the breaker around Redis, which opens sooner and tries again sooner."""
    return BreakerSettings(
        failure_threshold=max(_LEAST_THRESHOLD, settings.failure_threshold - 2),
        window_seconds=min(_LONGEST_WINDOW_SECONDS, settings.failure_window_ms / 1000),
        cooldown_seconds=settings.cooldown_ms * 0.7 / 1000,
        half_open_probes=PROBES,
        half_open_seconds=settings.half_open_duration_ms * 0.6 / 1000,
    )


def acquisition_breaker(
    settings: CircuitBreakerSettings, clock: Callable[[], float] = time.monotonic
) -> Breaker:
    """Make the breaker around acquisition: whatever goes wrong there counts."""
    return breaker_for_redis(
        acquisition_policy(settings),
        clock,
        is_failure=_any_error if settings.enabled else _none,
        name=_SETTING,
    )


def redis_breaker(settings: CircuitBreakerSettings, clock: Callable[[], float] = time.monotonic) -> Breaker:
    """Make the breaker around Redis: only its absence counts."""
    return breaker_for_redis(
        redis_policy(settings), clock, is_failure=unavailable if settings.enabled else _none, name=_SETTING
    )


def _any_error(exc: BaseException) -> bool:
    return isinstance(exc, Exception)


def _none(_: BaseException) -> bool:
    """With the breaker switched off nothing is a failure, so it stays closed."""
    return False
