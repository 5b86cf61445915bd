"""What is known of an agent's process, and what may happen to it.

::

    starting ──ready──> running ──exit unasked──> backing_off ──> starting …
        │                  │ │                        └─ too often ──> crashed
        │                  │ └──its lease ended──> waiting ──lease held again──> starting …
        └──────stop────────┴──> stopping ──exit──> stopped
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(StrEnum):
    """Where in its life an agent's process is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"
    BACKING_OFF = "backing_off"
    WAITING = "waiting"

    @property
    def ended(self) -> bool:
        """Whether nothing will happen any more unless somebody asks."""
        return self in {Status.STOPPED, Status.CRASHED}


@dataclass(frozen=True, slots=True)
class AgentProcessInfo:
    """What is known of an agent's process at one moment; ``pid`` is 0 while there is none."""

    agent_id: str
    guild_id: str
    pid: int
    is_alive: bool
    created_at: float
    status: Status = Status.STARTING
    entry: str = ""
    fence: int = 0
    restarts: int = 0
    exit_code: int | None = None
    last_error: str = ""
    max_rss_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses now."""

    memory_bytes: int
    cpu_seconds: float


class EventKind(StrEnum):
    """What subscribers hear of."""

    READY = "ready"
    EXITED = "exited"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """Something that happened to a process; ``report`` is a report's kind, ``data`` what it says."""

    kind: EventKind
    process: AgentProcessInfo
    report: str = ""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
