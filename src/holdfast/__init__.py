"""Holdfast runs AI agents that finish: everything that programs import, loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import (
    AccessDenied,
    AgentRefused,
    ApiUnavailable,
    AppError,
    ClientClosed,
    ConfigError,
    Conflict,
    EmbeddedServerError,
    EventsExpired,
    GiveUp,
    HandBack,
    HoldfastError,
    HostUnavailable,
    InputError,
    KubernetesUnavailable,
    LeaseLost,
    MalformedMessage,
    NoHost,
    NotAllowed,
    NotFound,
    PayloadTooLarge,
    ProcessError,
    ProcessesFull,
    ProcessFailed,
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
    ScriptError,
    StepMismatch,
    StoreMismatch,
    StoreUnavailable,
    ThreadTaken,
    UnknownAgent,
)

if TYPE_CHECKING:
    from holdfast.agents.app import App
    from holdfast.agents.context import Context, SyncContext
    from holdfast.agents.frameworks import current_context
    from holdfast.client import Client, Producer, Rollout, RunHandle, Sent, SyncClient, SyncRunHandle
    from holdfast.client.request import SubmitOptions, SubmitRequest
    from holdfast.config import Settings, load_settings
    from holdfast.events.event import Event
    from holdfast.redis.locate import locate_redis
    from holdfast.runs.run import Run, RunFault, Status, Submission
    from holdfast.services.residents import Residents
    from holdfast.telemetry.exporter import Exporter
    from holdfast.telemetry.metrics import Metrics
    from holdfast.views.agents import AgentView
    from holdfast.views.hosts import HostView
    from holdfast.views.residents import MailboxView, Needs, ResidentRow, ResidentView
    from holdfast.views.schedule_options import CreateKeywords, ScheduleKeywords
    from holdfast.views.schedules import ScheduleRow, ScheduleTurn, ScheduleView
    from holdfast.views.triggers import Cron, Every, Once

__all__ = [
    "AccessDenied",
    "AgentRefused",
    "AgentView",
    "ApiUnavailable",
    "App",
    "AppError",
    "Client",
    "ClientClosed",
    "ConfigError",
    "Conflict",
    "Context",
    "CreateKeywords",
    "Cron",
    "EmbeddedServerError",
    "Event",
    "EventsExpired",
    "Every",
    "Exporter",
    "GiveUp",
    "HandBack",
    "HoldfastError",
    "HostUnavailable",
    "HostView",
    "InputError",
    "KubernetesUnavailable",
    "LeaseLost",
    "MailboxView",
    "MalformedMessage",
    "Metrics",
    "Needs",
    "NoHost",
    "NotAllowed",
    "NotFound",
    "Once",
    "PayloadTooLarge",
    "ProcessError",
    "ProcessFailed",
    "ProcessesFull",
    "Producer",
    "QueueFull",
    "QueuePaused",
    "RedisUnavailable",
    "Refused",
    "ResidentRow",
    "ResidentView",
    "Residents",
    "ResultTimeout",
    "RetryLater",
    "Rollout",
    "Run",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunFault",
    "RunHandle",
    "RunTimedOut",
    "ScheduleKeywords",
    "ScheduleRow",
    "ScheduleTurn",
    "ScheduleView",
    "ScriptError",
    "Sent",
    "Settings",
    "Status",
    "StepMismatch",
    "StoreMismatch",
    "StoreUnavailable",
    "Submission",
    "SubmitOptions",
    "SubmitRequest",
    "SyncClient",
    "SyncContext",
    "SyncRunHandle",
    "ThreadTaken",
    "UnknownAgent",
    "current_context",
    "load_settings",
    "locate_redis",
]

_LOADED_ON_FIRST_USE: Final = {
    "App": "holdfast.agents.app",
    "Context": "holdfast.agents.context",
    "SyncContext": "holdfast.agents.context",
    "current_context": "holdfast.agents.frameworks",
    "Client": "holdfast.client",
    "Producer": "holdfast.client",
    "Rollout": "holdfast.client",
    "RunHandle": "holdfast.client",
    "Sent": "holdfast.client",
    "SyncClient": "holdfast.client",
    "SyncRunHandle": "holdfast.client",
    "SubmitOptions": "holdfast.client.request",
    "SubmitRequest": "holdfast.client.request",
    "Settings": "holdfast.config",
    "load_settings": "holdfast.config",
    "Event": "holdfast.events.event",
    "locate_redis": "holdfast.redis.locate",
    "Run": "holdfast.runs.run",
    "RunFault": "holdfast.runs.run",
    "Status": "holdfast.runs.run",
    "Submission": "holdfast.runs.run",
    "Residents": "holdfast.services.residents",
    "Exporter": "holdfast.telemetry.exporter",
    "Metrics": "holdfast.telemetry.metrics",
    "AgentView": "holdfast.views.agents",
    "HostView": "holdfast.views.hosts",
    "MailboxView": "holdfast.views.residents",
    "Needs": "holdfast.views.residents",
    "ResidentRow": "holdfast.views.residents",
    "ResidentView": "holdfast.views.residents",
    "CreateKeywords": "holdfast.views.schedule_options",
    "ScheduleKeywords": "holdfast.views.schedule_options",
    "ScheduleRow": "holdfast.views.schedules",
    "ScheduleTurn": "holdfast.views.schedules",
    "ScheduleView": "holdfast.views.schedules",
    "Cron": "holdfast.views.triggers",
    "Every": "holdfast.views.triggers",
    "Once": "holdfast.views.triggers",
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
