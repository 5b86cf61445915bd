"""What the outside sees of queues."""

from __future__ import annotations

from typing import Any

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


class PartitionWork(msgspec.Struct, frozen=True):
    """How much work a partition holds; ``consumers`` counts those of its group, ghosts too."""

    undelivered: int
    pending: int
    delayed: int
    due: int
    dead: int
    oldest_seconds: float
    consumers: int
    paused: bool


class PartitionView(msgspec.Struct, frozen=True):
    """One partition of a queue: the key of its stream, its slot in a cluster, and its work."""

    stream: str
    slot: int
    depth: PartitionWork


class QueueDetail(QueueView, frozen=True, kw_only=True):
    """A queue with its activity, its partitions and, for operators, the settings this process has for it.

    ``length`` counts the entries of its streams, finished ones that are kept too. ``consumer_idle_seconds``
    is the time since Redis saw the idlest consumer, ``longest_running_seconds`` the age of the longest
    running attempt.
    """

    length: int
    consumer_idle_seconds: float
    longest_running_seconds: float
    streams: list[PartitionView]
    settings: dict[str, Any]


class QueueList(msgspec.Struct, frozen=True):
    """Every configured queue, the default one first."""

    queues: list[QueueView]
