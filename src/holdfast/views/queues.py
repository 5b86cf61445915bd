"""What the outside sees of queues."""

from __future__ import annotations

import msgspec

from holdfast.views.times import add_iso


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: whether it is open, and how much work it holds."""

    name: str
    mode: str
    reason: str
    since: float
    depth: int
    undelivered: int
    pending: int
    delayed: int
    dead: int
    oldest_seconds: float
    workers: int
    partitions: int = 1
    since_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "since")


class QueueList(msgspec.Struct, frozen=True):
    """Every configured queue, the default one first."""

    queues: list[QueueView]
