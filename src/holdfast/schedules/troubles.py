"""What goes wrong between schedules and Redis: scripts that fail, and keys that somebody overwrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.schedules.words import Found, text
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.telemetry.metrics import Metrics

Discarded: TypeAlias = Callable[[Sequence[Any]], None]
"""Told of the keys that a script threw away, as they had another type than ours."""

_log = get_logger(__name__)


def script_failed(metrics: Metrics, exc: Exception) -> None:
    """Count a script of a scheduler that failed: in its own account, and in that of all calls to Redis."""
    metrics.schedule_script_errors.labels(type(exc).__name__).inc()
    call_failed(metrics, exc)


def call_failed(metrics: Metrics, exc: Exception) -> None:
    """Count a call to Redis that failed and is no script."""
    metrics.redis_errors.labels(type(exc).__name__).inc()


def say_discarded(keys: Sequence[Any]) -> None:
    """Log the keys that a script threw away."""
    if keys:
        _log.error("discarded keys of turns that had another type", keys=[text(key) for key in keys])


def counting_discarded(metrics: Metrics) -> Discarded:
    """Return what logs the keys that a script threw away, and counts them as repaired."""

    def tell(keys: Sequence[Any]) -> None:
        metrics.schedule_repaired.labels(Found.DAMAGED.value).inc(len(keys))
        say_discarded(keys)

    return tell
