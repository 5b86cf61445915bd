"""Parsing and formatting of durations: a number, or one with a unit (500ms, 30s, 5m, 2h, 1d); times as text.

A duration is finite and never negative.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.errors import ConfigError

# In seconds, as most limits of settings are.
DAY: Final = 86400
YEAR: Final = 365 * DAY
UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
HOW_TO_WRITE: Final = "500ms, 30s, 5m, 2h, 1d or 1h30m"

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*")


def duration_seconds(value: str | float | timedelta) -> float:
    """Return a duration in seconds; a number without a unit is seconds."""
    seconds: float | None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        seconds = parse_duration(value, unit="s")
    else:
        seconds = None if isinstance(value, bool) else _finite(value)
    if seconds is None or seconds < 0:
        raise ConfigError(
            f"{value!r} is not a duration: write a number of seconds, or a number with its unit, "
            f"like {HOW_TO_WRITE}; it can't be negative"
        )
    return seconds


def parse_duration(text: str, *, unit: str) -> float | None:
    """Return the seconds of ``text``, where a bare number is in ``unit``; None if it is not a duration."""
    number = parse_number(text)
    if number is not None:
        return _finite(number * UNIT_SECONDS[unit])
    return _with_units(text.strip().lower())


def parse_number(text: str) -> float | None:
    """Return ``text`` as a finite decimal number, or None."""
    stripped = text.strip()
    return _finite(float(stripped)) if _NUMBER.fullmatch(stripped) else None


def human_duration(seconds: float) -> str:
    """Format a duration with the largest unit in which it is a whole number: 90 is 90s, 3600 is 1h."""
    for name in ("d", "h", "m", "s", "ms"):
        count = round(seconds / UNIT_SECONDS[name], 6)
        if count >= 1 and count == int(count):
            return f"{int(count)}{name}"
    return f"{seconds:g}s"


def _with_units(text: str) -> float | None:
    total, position = 0.0, 0
    while part := _PART.match(text, position):
        total += float(part[1]) * UNIT_SECONDS[part[2]]
        position = part.end()
    return _finite(total) if position and position == len(text) else None


def _finite(number: float) -> float | None:
    # An int of a thousand digits can't become a float; `.inf` and `.nan` would pass every bound.
    try:
        as_float = float(number)
    except OverflowError:
        return None
    return round(as_float, 9) if math.isfinite(as_float) else None


def iso(seconds: float) -> str:
    """Format seconds since the epoch, in UTC; empty for 0, which is never, and for an invalid time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else ""
    except (OverflowError, ValueError, OSError):
        return ""


_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"))


def span(seconds: float) -> str:
    """Format a duration with its two leading units or digits: 0.25s, 12s, 3m 20s, 5h 2m."""
    if seconds < 60:
        return f"{seconds:.3g}s" if seconds < 10 else f"{seconds:.0f}s"
    whole = round(seconds)
    for (unit, name), (below, below_name) in zip(_SPANS, (*_SPANS[1:], (1.0, "s")), strict=True):
        if whole >= unit:
            rest = int(whole % unit // below)
            return f"{int(whole // unit)}{name} {rest}{below_name}" if rest else f"{int(whole // unit)}{name}"
    return f"{whole}s"
