"""The replies of the scripts, as enums and numbers, and the sizes of their batches."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

W = TypeVar("W", bound=enum.StrEnum)

BATCH = 500
"""The most that one call acquires: more would hold Redis up for long."""

CHUNK = 100
"""How much of a larger batch goes in one call: about a millisecond, in which other clients of Redis wait."""

PAGE = 200
"""How much a pass over all schedules reads in one call."""


NORMAL_PRIORITY = 5
"""0 is the most urgent; only other classes than this are stored for the scripts."""


class Registered(enum.StrEnum):
    """The reply to a registration."""

    CREATED = "created"
    UPDATED = "updated"
    RESTORED = "restored"
    """Known and unchanged, but it was in no set or had no record."""
    UNCHANGED = "unchanged"
    STALE = "stale"
    """A newer revision is there; nothing was changed."""


class ChangeReply(enum.StrEnum):
    """The reply to a change by a user: remove, pause, resume, trigger, stop."""

    REMOVED = "removed"
    PAUSED = "paused"
    RESUMED = "resumed"
    TRIGGERED = "triggered"
    BUFFERED = "buffered"
    """It runs, and will run once more after that."""
    STOPPING = "stopping"
    IDLE = "idle"
    """It does not run: there is nothing to stop."""
    ALREADY = "already"
    UNKNOWN = "unknown"
    """There is no schedule of that name."""
    STALE = "stale"
    """Redis has a newer revision; nothing was changed."""
    DECLARED = "declared"
    """It is declared in code, which would re-create it; nothing was changed."""


class Ended(enum.StrEnum):
    """The reply to the end of a firing."""

    COMPLETED = "completed"
    PAUSED = "paused"
    """Completed, and its failure has paused the schedule."""
    RETURNED = "returned"
    ALREADY = "already"
    """It was ended under this fence before: the reply was lost."""
    STALE = "stale"
    """Another scheduler holds it under a higher fence; nothing was changed."""
    REMOVED = "removed"
    """The schedule was removed meanwhile; it will not run again."""


class PlaceReply(enum.StrEnum):
    """The reply to placing a turn as a schedule of its own."""

    PLACED = "placed"
    ALREADY = "already"
    """It was placed before."""
    FULL = "full"
    """As many turns as allowed wait or run."""
    PAUSED = "paused"
    """The schedule is paused."""
    STALE = "stale"
    """Another scheduler holds the firing beside which it was to run."""
    UNKNOWN = "unknown"
    """There is no schedule of that name (any more)."""


class Found(enum.StrEnum):
    """What a sweep repaired."""

    NUMERIC = "numeric"
    INVALID = "invalid"
    OVERLAP = "overlap"
    RETURNED = "returned"
    UNSCORED = "unscored"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    """A name that is no text, which no holder could keep or end."""


def text(reply: Any) -> str:
    """Read a name or word of a reply."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)


def words(kind: type[W], reply: Iterable[Any]) -> list[W]:
    """Read a reply of words as members of an enum."""
    return [kind(text(word)) for word in reply]


def seconds(reply: Any) -> float | None:
    """Read a score of a reply; None where there is none."""
    return float(text(reply)) if reply not in {b"", "", None} else None


def score(at: float | None) -> str:
    """Write a time as the scripts read it; '' is never."""
    return "" if at is None else f"{at:.6f}"
