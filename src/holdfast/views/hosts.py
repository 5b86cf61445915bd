"""What the outside sees of hosts: the processes that hold long-lived agents."""

from __future__ import annotations

import msgspec

from holdfast.views.times import add_iso


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """A live host, as it last described itself."""

    name: str
    address: str
    state: str
    agents: int
    capacity: int
    density: float
    cpu: float
    """Cores that nobody has asked for."""
    memory_mb: float
    """Memory that nobody has asked for."""
    labels: list[str]
    pid: int
    since: float
    since_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "since")


class HostDetail(HostView, frozen=True, kw_only=True):
    """A host and the ids of the residents that run there."""

    agent_ids: list[str]


class HostList(msgspec.Struct, frozen=True):
    """Every live host, by name."""

    hosts: list[HostView]
