"""Names that come from callers rather than from settings, held to the same rule."""

from __future__ import annotations

import re

from holdfast.config.patterns import NAME_ALLOWED, NAME_PATTERN
from holdfast.errors import InputError


def checked_queue(name: str) -> str:
    """Return ``name`` if it can be the name of a queue."""
    if re.match(NAME_PATTERN, name):
        return name
    raise InputError(f"queue must be {NAME_ALLOWED}, got {name[:80]!r}")
