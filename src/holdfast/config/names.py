"""Validation of names from callers, by the same rules as names in settings."""

from __future__ import annotations

import re
from difflib import get_close_matches

from holdfast.config.patterns import NAME_ALLOWED, NAME_PATTERN
from holdfast.errors import InputError, NotFound


def checked_queue(name: str) -> str:
    """Return ``name`` if it can be the name of a queue."""
    if re.match(NAME_PATTERN, name):
        return name
    raise InputError(f"queue must be {NAME_ALLOWED}, got {name[:80]!r}")


def unknown_queue(name: str, known: tuple[str, ...]) -> NotFound:
    """Return the error for an unknown queue, with the most similar and all known names."""
    close = get_close_matches(name[:80], known, n=1)
    meant = f": did you mean {close[0]!r}? There are" if close else "; there are"
    return NotFound(f"no queue {name[:80]!r} is configured here{meant} {', '.join(known)}")
