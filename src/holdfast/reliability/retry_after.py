"""The Retry-After header of HTTP (RFC 9110): a number of seconds, or a date."""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime


def read_retry_after(value: str, now: float | None = None) -> float | None:
    """Return the seconds to wait from now, 0 if they are over; None if the value can't be parsed."""
    text = value.strip()
    if not text.isascii():
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _until(text, time.time() if now is None else now)
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _until(date: str, now: float) -> float:
    """Return the seconds until an HTTP date, NaN if the text is not one."""
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError, TypeError, IndexError):
        return math.nan
