"""Holdfast runs AI agents that finish."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import (
    AccessDenied,
    ApiUnavailable,
    AppError,
    ConfigError,
    Conflict,
    EventsExpired,
    GiveUp,
    HandBack,
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
    StepMismatch,
    StoreUnavailable,
    UnknownAgent,
)

if TYPE_CHECKING:
    from holdfast.agents.app import App
    from holdfast.agents.context import Context, SyncContext
    from holdfast.client import Client, Producer, Rollout, RunHandle, Sent, SyncClient, SyncRunHandle

__all__ = [
    "AccessDenied",
    "ApiUnavailable",
    "App",
    "AppError",
    "Client",
    "ConfigError",
    "Conflict",
    "Context",
    "EventsExpired",
    "GiveUp",
    "HandBack",
    "HoldfastError",
    "InputError",
    "LeaseLost",
    "NotFound",
    "PayloadTooLarge",
    "Producer",
    "QueueFull",
    "QueuePaused",
    "RedisUnavailable",
    "Refused",
    "ResultTimeout",
    "RetryLater",
    "Rollout",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunHandle",
    "RunTimedOut",
    "Sent",
    "StepMismatch",
    "StoreUnavailable",
    "SyncClient",
    "SyncContext",
    "SyncRunHandle",
    "UnknownAgent",
]

_LOADED_ON_FIRST_USE: Final = {
    "App": "holdfast.agents.app",
    "Context": "holdfast.agents.context",
    "SyncContext": "holdfast.agents.context",
    "Client": "holdfast.client",
    "Producer": "holdfast.client",
    "Rollout": "holdfast.client",
    "RunHandle": "holdfast.client",
    "Sent": "holdfast.client",
    "SyncClient": "holdfast.client",
    "SyncRunHandle": "holdfast.client",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: every module of the package runs this file first."""
    if name not in _LOADED_ON_FIRST_USE:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LOADED_ON_FIRST_USE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
