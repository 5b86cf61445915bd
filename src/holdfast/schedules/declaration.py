"""What ``@app.schedule(…)`` says, made into a schedule; what is wrong is found while the app loads."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.config import duration_seconds
from holdfast.errors import ConfigError, InputError
from holdfast.schedules.schedule import Schedule, checked
from holdfast.schedules.trigger import trigger_of

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.schedules.trigger import Since

_SPANS = {"timeout": "timeout_seconds", "error_interval": "error_seconds"}
_MOMENTS = ("starts_at", "ends_at")


def declared(
    name: str,
    agent: str,
    *,
    every: str | float | timedelta | None = None,
    cron: str | None = None,
    at: float | datetime | None = None,
    tz: str = "UTC",
    since: Since = "start",
    **options: Any,
) -> Schedule:
    """Make the schedule ``name`` of ``agent``; spans and moments may be written as people write them."""
    try:
        _require_cron_for(tz, cron)
        trigger = trigger_of(every=every, cron=cron, at=at, tz=tz, since=since)
        fields = dict(_field(key, value) for key, value in options.items() if value is not None)
    except InputError as exc:
        raise InputError(f"schedule {name!r}: {exc}") from None
    return checked(Schedule(name=name, agent=agent, trigger=trigger, **fields))


def _require_cron_for(tz: str, cron: str | None) -> None:
    if cron is None and tz != "UTC":
        raise InputError(f"tz: only a cron expression has a time zone, leave tz={tz!r} out")


def _field(key: str, value: Any) -> tuple[str, Any]:
    if key in _SPANS:
        try:
            return _SPANS[key], duration_seconds(value)
        except ConfigError as exc:
            raise InputError(f"{key}: {exc}") from None
    if key in _MOMENTS and isinstance(value, datetime):
        if value.tzinfo is None:
            raise InputError(f"{key}: {value.isoformat()} has no time zone: write one")
        return key, value.timestamp()
    if key not in Schedule.__struct_fields__ or key in {"name", "agent", "trigger"}:
        raise InputError(f"{key}: a schedule has no such option")
    return key, value
