"""A schedule as the scripts see it: an opaque definition, and the little that they need of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.schedules.cadence import first_run
from holdfast.schedules.schedule import encoded
from holdfast.schedules.words import NORMAL_PRIORITY

if TYPE_CHECKING:
    from holdfast.schedules.schedule import Schedule


class Registration(msgspec.Struct, frozen=True):
    """A definition as the scripts see it: the spec is opaque, the rest is what they need of it."""

    name: str
    spec: bytes
    trigger: str
    """Fingerprint of all that its turns follow from."""
    timeout_ms: int
    first: float | None
    """Its first turn, if it is new or its trigger has changed; None if it has no turn left."""
    priority: int = NORMAL_PRIORITY
    revision: int = 0
    """The higher one is the newer one; 0 is the code's, which is written whatever is there."""
    paused: str = ""
    paused_since: float = 0.0
    """If it is new: since when it is paused; 0 is not."""


def fingerprint(*parts: Any) -> str:
    """Shorten what a schedule's turns follow from: the same parts, the same turns."""
    return hashlib.blake2b(msgspec.json.encode(parts, order="sorted"), digest_size=12).hexdigest()


def registration_of(schedule: Schedule, now: float, jitter: float = 0.0) -> Registration:
    """Say what the scripts need of ``schedule``; its first turn is planned from ``now`` (Redis TIME)."""
    return Registration(
        schedule.name,
        encoded(schedule),
        fingerprint(schedule.trigger, schedule.starts_at, schedule.ends_at, schedule.max_runs),
        timeout_ms=max(1, round(schedule.timeout_seconds * 1000)),
        first=first_run(schedule, now, jitter),
        priority=schedule.priority,
    )
