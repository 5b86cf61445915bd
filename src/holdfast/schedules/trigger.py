"""The trigger of a schedule, made of what people write: an interval, a cron expression or one moment."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.config import duration_seconds
from holdfast.errors import ConfigError, InputError
from holdfast.views.triggers import Cron, Every, Once, Trigger

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.views.triggers import Since

__all__ = ["Cron", "Every", "Once", "Trigger", "moment", "trigger_of"]


def trigger_of(
    *,
    every: str | float | timedelta | None = None,
    cron: str | None = None,
    at: float | str | datetime | None = None,
    tz: str = "UTC",
    since: Since = "start",
) -> Trigger:
    """Make the trigger that a caller describes with exactly one of every, cron and at."""
    given = [name for name, value in (("every", every), ("cron", cron), ("at", at)) if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InputError(f"give exactly one of every, cron and at, got {got}")
    if every is not None:
        return Every(seconds=_seconds(every), since=since)
    if cron is not None:
        return Cron(expression=cron, zone=tz)
    assert at is not None
    return Once(at=moment("at", at))


def moment(name: str, value: object) -> float:
    """Return a time in epoch seconds: a number, a datetime with its zone, or ISO 8601 text with its zone."""
    if isinstance(value, int | float):
        return float(value)
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(at, datetime) and at.tzinfo is not None:
            return at.timestamp()
    except (ValueError, OverflowError):
        at = None
    if isinstance(at, datetime):
        raise InputError(f"{name}: {str(value)!r} has no time zone: write it like 2030-01-31T07:00:00Z")
    raise InputError(
        f"{name}: {value!r:.80} is not a time: write epoch seconds, or ISO 8601 like 2030-01-31T07:00:00Z"
    )


def _seconds(every: str | float | timedelta) -> float:
    try:
        return duration_seconds(every)
    except ConfigError as exc:
        raise InputError(f"every: {exc}") from None
