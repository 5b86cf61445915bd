"""The options of ``@app.schedule(…)``, made into a schedule and checked while the app loads."""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
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
_ALIASES = {"timezone": "tz", "time_zone": "tz", "zone": "tz", "queue": "target"}
"""Names that other schedulers, and the commands of Holdfast, have for an option."""
_NO_OPTIONS = {"name", "agent", "trigger", "timeout_seconds", "error_seconds", "source", "tenant"}
"""Fields of a schedule that are no options of ``@app.schedule``."""


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
    """Make the schedule ``name`` of ``agent``; durations and times may be text."""
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
        raise unknown_option(key, "tenant")
    return key, value


def unknown_option(key: str, *more: str) -> InputError:
    """Return the error for an option that schedules do not have, with the one that was probably meant."""
    known = ["every", "cron", "at", "tz", "since", *_SPANS, *more]
    known += [field for field in Schedule.__struct_fields__ if field not in _NO_OPTIONS]
    close = [_ALIASES[key]] if key in _ALIASES else get_close_matches(key, known, n=1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return InputError(f"{key}: a schedule has no such option: {meant}")
