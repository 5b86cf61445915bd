"""Errors of Redis in schedules: scripts that fail, and keys of another type that scripts discard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.schedules.replies import Found, text
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.telemetry.metrics import Metrics

Discarded: TypeAlias = Callable[[Sequence[Any]], None]
"""Called with the keys that a script discarded because they had another type."""

_log = get_logger(__name__)


def script_failed(metrics: Metrics, exc: Exception) -> None:
    """Count a script of a scheduler that failed: as such, and among all calls to Redis."""
    metrics.schedule_script_errors.labels(type(exc).__name__).inc()
    call_failed(metrics, exc)


def call_failed(metrics: Metrics, exc: Exception) -> None:
    """Count a call to Redis that failed and is no script."""
    metrics.redis_errors.labels(type(exc).__name__).inc()


def log_discarded(keys: Sequence[Any]) -> None:
    """Log the keys that a script discarded."""
    if keys:
        _log.error("discarded keys of turns that had another type", keys=[text(key) for key in keys])


def counting_discarded(metrics: Metrics) -> Discarded:
    """Return a function that logs the keys that a script discarded, and counts them as repaired."""

    def log_and_count(keys: Sequence[Any]) -> None:
        metrics.schedule_repaired.labels(Found.DAMAGED.value).inc(len(keys))
        log_discarded(keys)

    return log_and_count
