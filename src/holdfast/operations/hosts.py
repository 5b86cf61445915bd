"""Hosts: the processes that hold long-lived agents. They belong to no tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import NotFound
from holdfast.hosts.directory import KIND, hosts_among
from holdfast.operations.caller import READ
from holdfast.views.hosts import HostDetail, HostList, HostView

if TYPE_CHECKING:
    from holdfast.hosts.placement import HostLoad
    from holdfast.operations.caller import Caller
    from holdfast.operations.system import System
    from holdfast.redis.members import Member


class HostOperations:
    """What one caller can ask of hosts; nothing for a caller of one tenant."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller

    async def list(self) -> HostList:
        """Read every host whose heartbeat is in Redis, by name."""
        self._require_reader()
        found = hosts_among(await self._system.members.all(self._system.redis, KIND))
        return HostList([HostView(**_fields(*each)) for each in found])

    async def get(self, name: str) -> HostDetail:
        """Read a host and the ids of the agents that run there."""
        self._require_reader()
        member = await self._system.members.find(self._system.redis, KIND, name)
        found = hosts_among([member] if member else ())
        if not found:
            raise NotFound(f"there is no live host {name!r}: GET /hosts lists them")
        return HostDetail(**_fields(*found[0]), agent_ids=await self._system.registry().on_host(name))

    def _require_reader(self) -> None:
        self._caller.require(READ)
        self._caller.require_every_tenant()


def _fields(member: Member, host: HostLoad) -> dict[str, Any]:
    return {
        "name": host.name,
        "address": host.address,
        "state": "draining" if host.draining else "ready",
        "agents": host.agents,
        "capacity": host.capacity,
        "density": round(host.density, 4),
        "cpu": host.cpu,
        "memory_mb": host.memory_mb,
        "labels": list(host.labels),
        "pid": int(member.fields.get("pid") or 0),
        "since": float(member.fields.get("since") or 0),
    }
