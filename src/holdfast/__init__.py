"""Holdfast runs AI agents that finish."""

from __future__ import annotations

from holdfast.agents.app import App
from holdfast.agents.context import Context, SyncContext
from holdfast.errors import (
    AppError,
    ConfigError,
    Conflict,
    GiveUp,
    HoldfastError,
    InputError,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    QueueFull,
    QueuePaused,
    RedisUnavailable,
    Refused,
    ResultTimeout,
    RetryLater,
    RunCancelled,
    RunError,
    RunFailed,
    RunTimedOut,
    UnknownAgent,
)

__all__ = [
    "App",
    "AppError",
    "ConfigError",
    "Conflict",
    "Context",
    "GiveUp",
    "HoldfastError",
    "InputError",
    "LeaseLost",
    "NotFound",
    "PayloadTooLarge",
    "QueueFull",
    "QueuePaused",
    "RedisUnavailable",
    "Refused",
    "ResultTimeout",
    "RetryLater",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunTimedOut",
    "SyncContext",
    "UnknownAgent",
]
