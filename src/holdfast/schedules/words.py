"""What the scripts answer, read into words and numbers, whatever type the client made of a reply."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

W = TypeVar("W", bound=enum.StrEnum)

BATCH = 500
"""The most that one call acquires: more would hold Redis up for long."""

CHUNK = 100
"""How much of a larger batch goes in one call: about a millisecond of Redis, whose other callers wait."""

PAGE = 200
"""How much a pass over everything looks at in one call."""


NORMAL_PRIORITY = 5
"""0 is the most urgent; only other classes than this are noted for the scripts."""


class Registered(enum.StrEnum):
    """What became of a definition."""

    CREATED = "created"
    UPDATED = "updated"
    RESTORED = "restored"
    """Known and unchanged, but it had lost its place or its record."""
    UNCHANGED = "unchanged"
    STALE = "stale"
    """A newer revision is there; nothing was changed."""


class Changed(enum.StrEnum):
    """What became of an operator's wish."""

    REMOVED = "removed"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    BUFFERED = "buffered"
    """It runs: it will run once more after that."""
    STOPPING = "stopping"
    IDLE = "idle"
    """It does not run: there is nothing to stop."""
    ALREADY = "already"
    UNKNOWN = "unknown"
    """There is no schedule of that name."""
    STALE = "stale"
    """Something newer was decided meanwhile; nothing was changed."""
    DECLARED = "declared"
    """The code declares it, and would bring it back; nothing was changed."""


class Ended(enum.StrEnum):
    """What became of the end of a run."""

    COMPLETED = "completed"
    PAUSED = "paused"
    """Completed, and it was the failure that paused its schedule."""
    RETURNED = "returned"
    ALREADY = "already"
    """It was ended under this fence before: the reply was lost."""
    STALE = "stale"
    """Somebody else has it by now; nothing was changed."""
    REMOVED = "removed"
    """Nobody defines it any more; it will not run again."""


class Placed(enum.StrEnum):
    """What became of a turn that is to be a schedule of its own."""

    PLACED = "placed"
    ALREADY = "already"
    """It was placed before."""
    FULL = "full"
    """As many turns as allowed wait or run."""
    PAUSED = "paused"
    """The schedule takes no turns."""
    STALE = "stale"
    """Somebody else has the turn beside which it was to run."""
    UNKNOWN = "unknown"
    """There is no schedule of that name (any more)."""


class Found(enum.StrEnum):
    """What a sweep put right."""

    NUMERIC = "numeric"
    INVALID = "invalid"
    OVERLAP = "overlap"
    RETURNED = "returned"
    UNSCORED = "unscored"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    """A name that is no text, which no holder could keep or end."""


def text(reply: Any) -> str:
    """A name or word of a reply."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)


def words(kind: type[W], reply: Iterable[Any]) -> list[W]:
    """A whole reply of words."""
    return [kind(text(word)) for word in reply]


def seconds(reply: Any) -> float | None:
    """A score of a reply; None where there is none."""
    return float(text(reply)) if reply not in {b"", "", None} else None


def score(at: float | None) -> str:
    """A time as the scripts take it; '' is never."""
    return "" if at is None else f"{at:.6f}"
