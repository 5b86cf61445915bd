"""The state of an agent's process, and its events.

::

    starting ──ready──> running ──unexpected exit──> backing_off ──> starting …
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


class ProcessStatus(StrEnum):
    """The state of an agent's process."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"
    BACKING_OFF = "backing_off"
    WAITING = "waiting"

    @property
    def ended(self) -> bool:
        """Whether the agent is not started again, unless a caller asks for it."""
        return self in {ProcessStatus.STOPPED, ProcessStatus.CRASHED}


@dataclass(frozen=True, slots=True)
class AgentProcessInfo:
    """The state of an agent's process at one moment; ``pid`` is 0 while there is no process."""

    agent_id: str
    guild_id: str
    pid: int
    is_alive: bool
    created_at: float
    status: ProcessStatus = ProcessStatus.STARTING
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
    """The memory and CPU time of a process."""

    memory_bytes: int
    cpu_seconds: float


class EventKind(StrEnum):
    """The kinds of events that subscribers receive."""

    READY = "ready"
    EXITED = "exited"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """An event of a process; ``report`` is the kind of a report, ``data`` its fields."""

    kind: EventKind
    process: AgentProcessInfo
    report: str = ""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
