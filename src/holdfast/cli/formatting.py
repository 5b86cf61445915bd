"""How values look to people: times, spans and whatever others wrote. Pure."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import Any

_SPANS = ((86400.0, "d"), (3600.0, "h"), (60.0, "m"))


def span(seconds: float) -> str:
    """Write a length of time with two figures that matter: 0.25s, 12s, 3m 20s, 5h 2m."""
    from holdfast.config.durations import span

    return span(seconds)


def ago(at: float, now: float | None = None) -> str:
    """Write how long ago something was, or when it will be; nothing if it has not been."""
    if not at:
        return ""
    seconds = (time.time() if now is None else now) - at
    if seconds < -0.5:
        return f"in {_coarse(math.ceil(-seconds))}"
    return "now" if seconds < 1 else f"{_coarse(int(seconds))} ago"


def _coarse(seconds: int) -> str:
    return next((f"{int(seconds // unit)}{name}" for unit, name in _SPANS if seconds >= unit), f"{seconds}s")


def clock(at: float) -> str:
    """Write a time of day to the millisecond, as it is here."""
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S.%f")[:-3]


def moment(at: float, zone: str = "") -> str:
    """Write a date and time with its zone (the one here, if none is given), and how long ago that was."""
    if not at:
        return ""
    return f"{_in_zone(at, zone):%Y-%m-%d %H:%M:%S %Z} ({ago(at)})"


def _in_zone(at: float, zone: str) -> datetime:
    if not zone:
        return datetime.fromtimestamp(at).astimezone()
    from zoneinfo import ZoneInfo

    return datetime.fromtimestamp(at, ZoneInfo(zone))


def compact(value: Any) -> str:
    """Write a value as JSON on one line."""
    import msgspec

    return msgspec.json.encode(value).decode()


def printable(text: str, *, lines: bool = False) -> str:
    """Return text of others without what would move the cursor or change colours; ``lines`` may stay."""
    kept = "\n\t" if lines else ""
    return "".join(
        c if c.isprintable() or c in kept else " " if c in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )
