"""The settings: one frozen tree, read once from file and environment, validated as a whole.

Environment beats file beats default; nothing is read at import.
"""

from __future__ import annotations

from holdfast.config.durations import duration_seconds
from holdfast.config.loading import Loaded, Shown, load
from holdfast.config.scheduling import (
    CircuitBreakerSettings,
    ScheduledAgentSettings,
    ScheduleKeySettings,
    SchedulerSettings,
)
from holdfast.config.shown import redacted
from holdfast.config.table import SettingRow, setting_rows, settings_table
from holdfast.config.tree import (
    REDIS_SCHEMES,
    ApiSettings,
    BackoffSettings,
    BreakerSettings,
    ClientSettings,
    DatabaseSettings,
    EventApiSettings,
    HostSettings,
    JanitorSettings,
    LeaseSettings,
    LogSettings,
    MessagingSettings,
    MetricsSettings,
    QueueSettings,
    RedisSettings,
    RelaySettings,
    SenderSettings,
    Settings,
    WorkerSettings,
)

__all__ = [
    "REDIS_SCHEMES",
    "ApiSettings",
    "BackoffSettings",
    "BreakerSettings",
    "CircuitBreakerSettings",
    "ClientSettings",
    "DatabaseSettings",
    "EventApiSettings",
    "HostSettings",
    "JanitorSettings",
    "LeaseSettings",
    "Loaded",
    "LogSettings",
    "MessagingSettings",
    "MetricsSettings",
    "QueueSettings",
    "RedisSettings",
    "RelaySettings",
    "ScheduleKeySettings",
    "ScheduledAgentSettings",
    "SchedulerSettings",
    "SenderSettings",
    "SettingRow",
    "Settings",
    "Shown",
    "WorkerSettings",
    "duration_seconds",
    "load",
    "redacted",
    "setting_rows",
    "settings_table",
]
