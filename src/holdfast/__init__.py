"""Holdfast runs AI agents that finish."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.agents.app import App
from holdfast.agents.context import Context, SyncContext
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

_CLIENT = frozenset({"Client", "Producer", "Rollout", "RunHandle", "Sent", "SyncClient", "SyncRunHandle"})


def __getattr__(name: str) -> Any:
    """Load the client when it is first asked for: agents and workers do without it."""
    if name in _CLIENT:
        return getattr(importlib.import_module("holdfast.client"), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
