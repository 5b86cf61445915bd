"""The settings: one frozen tree, read once from file and environment, validated as a whole.

Environment beats file beats default; nothing is read at import.
"""

from __future__ import annotations

from holdfast.config.database import DatabaseSettings
from holdfast.config.durations import duration_seconds
from holdfast.config.hosting import HostSettings
from holdfast.config.loading import Loaded, Shown, load, load_settings
from holdfast.config.outside import ApiSettings, ClientSettings, EventApiSettings, RelaySettings
from holdfast.config.processes import (
    JanitorSettings,
    LogSettings,
    MetricsSettings,
    PodSettings,
    WorkerSettings,
)
from holdfast.config.queues import BackoffSettings, LeaseSettings, QueueSettings
from holdfast.config.redis import (
    REDIS_SCHEMES,
    BreakerSettings,
    MessagingSettings,
    RedisSettings,
    SenderSettings,
)
from holdfast.config.scheduling import (
    CircuitBreakerSettings,
    ScheduledAgentSettings,
    ScheduleKeySettings,
    SchedulerSettings,
)
from holdfast.config.table import SettingRow, setting_rows, settings_table
from holdfast.config.tree import Settings

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
    "PodSettings",
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
    "load_settings",
    "setting_rows",
    "settings_table",
]
