"""The two circuit breakers of a scheduler: around acquisition, and, quicker on both sides, around Redis."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from holdfast.config import BreakerSettings
from holdfast.redis.breaker import AWAY, UNWRITABLE, breaker_for_redis
from holdfast.redis.client import TROUBLE, unavailable
from holdfast.redis.command import command
from holdfast.reliability.breaker import BreakerState
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import CircuitBreakerSettings
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.reliability.breaker import Breaker

PROBES: Final = 3
_SETTING: Final = "redis.scheduler.circuit-breaker"
_LEAST_THRESHOLD: Final = 3
_LONGEST_WINDOW_SECONDS: Final = 5.0
_PROBE_SECONDS: Final = 0.5

_log = get_logger(__name__)


class Breakers:
    """Both breakers of one scheduler; they are logged, and their cooldown ends when Redis is back."""

    def __init__(self, settings: CircuitBreakerSettings, redis: Redis, keys: ScheduleKeys) -> None:
        self._redis = redis
        self._keys = keys
        self.acquisition = acquisition_breaker(settings)
        self.redis = redis_breaker(settings)
        self.by_name = {"acquisition": self.acquisition, "redis": self.redis}
        self._closed = dict.fromkeys(self.by_name, True)
        self._opened_levels: dict[str, int] = {}
        """The level at which each breaker that is not closed was logged."""

    @property
    def furthest(self) -> Breaker:
        """The breaker that is furthest from closed."""
        return max(self.by_name.values(), key=lambda breaker: breaker.retry_after)

    def count_blocked(self) -> None:
        """Count a look that is not made with the breakers that prevent it: they were not asked for a call."""
        for breaker in self.by_name.values():
            if breaker.retry_after:
                breaker.blocked += 1

    def log_changes(self) -> None:
        """Log each breaker that has opened or closed; half open is in between, and not logged."""
        for name, breaker in self.by_name.items():
            closed = breaker.state is BreakerState.CLOSED
            if closed is self._closed[name]:
                continue
            self._closed[name] = closed
            if closed:
                _log.log(
                    self._opened_levels.pop(name, logging.INFO),
                    "circuit breaker closed: schedules are acquired again",
                    breaker=name,
                )
            else:
                # That Redis is unavailable is logged as an outage.
                level = self._opened_levels[name] = logging.DEBUG if breaker.cause == AWAY else logging.ERROR
                _log.log(
                    level,
                    "circuit breaker open: no schedule is acquired until Redis answers",
                    breaker=name,
                    retry_in=round(breaker.retry_after, 3),
                    setting=_SETTING,
                )

    async def probe(self, wake: Callable[[], None]) -> None:
        """While Redis is away or takes no writes, probe it every moment: a cooldown ends when it is back."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            away = [
                one for one in self.by_name.values() if one.state is BreakerState.OPEN and _may_be_back(one)
            ]
            if away and await self.takes_writes():
                for breaker in away:
                    breaker.end_cooldown()  # guard: cooldown-ends-with-outage
                wake()

    async def takes_writes(self) -> bool:
        """Try a write that changes nothing."""
        try:
            async with asyncio.timeout(2 * _PROBE_SECONDS):
                # Not PING: in a cluster only the server of these keys counts. Not a read: one that is
                # read-only or full answers it. XX changes only what exists, and no schedule is called "".
                await command(self._redis, "ZADD", self._keys.waiting, "XX", 0, "")  # guard: probe-writes
        except (*TROUBLE, TimeoutError):
            return False
        return True


def _may_be_back(breaker: Breaker) -> bool:
    """Whether a breaker is open because of the whole server, rather than because of one call's keys."""
    return breaker.cause in {AWAY, UNWRITABLE}  # guard: probe-absence-only


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
