"""Times in views: seconds since the epoch, and the same as text (ISO 8601, UTC)."""

from __future__ import annotations

import msgspec

from holdfast.config.durations import iso


def add_iso(view: msgspec.Struct, *names: str) -> None:
    """Write times of a view as text, too: ``submitted_at`` as ``submitted_at_iso``."""
    for name in names:
        msgspec.structs.force_setattr(view, f"{name}_iso", iso(getattr(view, name) or 0.0))
