"""The live hosts: by their heartbeats in Redis, by a list of addresses, or by the name of a service."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.hosts.placement import HostLoad
from holdfast.hosts.transport import CallFailed
from holdfast.packages import needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.config import HostSettings
    from holdfast.hosts.remote import RemoteCalls
    from holdfast.redis.client import Redis
    from holdfast.redis.members import Member, Members

KIND: Final = "host"
_HEALTH_TIMEOUT_SECONDS: Final = 2.0


class Directory(Protocol):
    """A source of live hosts."""

    async def hosts(self) -> list[HostLoad]:
        """Return every live host, as its last heartbeat describes it."""
        ...

    async def close(self) -> None:
        """Close the connections of this directory."""
        ...


class RedisDirectory:
    """The hosts whose heartbeat is in Redis; the default."""

    def __init__(self, members: Members, redis: Redis) -> None:
        self._members = members
        self._redis = redis

    async def hosts(self) -> list[HostLoad]:
        """Return the hosts of all heartbeats."""
        return [host for _, host in hosts_among(await self._members.all(self._redis, KIND))]

    async def close(self) -> None:
        """Do nothing: the caller closes the connection."""


class AskedDirectory:
    """Hosts at known addresses, by their Health call; a host that does not respond is left out."""

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls

    async def addresses(self) -> Sequence[str]:
        """Return the addresses of the hosts."""
        raise NotImplementedError

    async def hosts(self) -> list[HostLoad]:
        """Call Health on all hosts concurrently."""
        answers = await asyncio.gather(*(self._health(address) for address in await self.addresses()))
        # By name: a host with two addresses, as with IPv4 and IPv6, is one host.
        found = {host.name: host for host in reversed(answers) if host is not None}  # guard: host-found-once
        return list(reversed(found.values()))

    async def close(self) -> None:
        """Do nothing: the caller closes the channels."""

    async def _health(self, address: str) -> HostLoad | None:
        try:
            health = await self._calls.health(address, timeout_seconds=_HEALTH_TIMEOUT_SECONDS)
        except CallFailed:
            return None
        return HostLoad(
            name=health.hostname,
            address=address,
            agents=health.agent_count,
            capacity=health.max_processes or 1,
            draining=health.draining or not health.healthy,
        )


class StaticDirectory(AskedDirectory):
    """Hosts at a configured list of addresses."""

    def __init__(self, calls: RemoteCalls, addresses: Sequence[str]) -> None:
        super().__init__(calls)
        self._addresses = addresses

    async def addresses(self) -> Sequence[str]:
        """Return the list."""
        return self._addresses


class DnsDirectory(AskedDirectory):
    """Hosts of a headless service: every address of its name is a host."""

    def __init__(self, calls: RemoteCalls, name: str, port: int) -> None:
        super().__init__(calls)
        self._name = name
        self._port = port

    async def addresses(self) -> Sequence[str]:
        """Resolve the name; a name that does not resolve yet has no hosts."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._name, self._port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            return ()
        return sorted({joined(str(where[0]), self._port) for *_, where in found})


def open_directory(settings: HostSettings, calls: RemoteCalls, members: Members, redis: Redis) -> Directory:
    """Return the directory that the settings name."""
    if settings.directory == "redis":
        return RedisDirectory(members, redis)
    return asked_directory(settings, calls)


def asked_directory(settings: HostSettings, calls: RemoteCalls) -> Directory:
    """Return the directory that the settings name, if it is not Redis."""
    match settings.directory:
        case "dns":
            return DnsDirectory(calls, settings.service_name, settings.grpc_port)
        case "kubernetes":
            return _open_kubernetes(settings, calls)
        case _:
            return StaticDirectory(calls, settings.addresses)


def _open_kubernetes(settings: HostSettings, calls: RemoteCalls) -> Directory:
    with needs_extra("hosts.directory = kubernetes", "kubernetes"):
        from holdfast.hosts.kubernetes import KubernetesDirectory  # noqa: PLC0415
    return KubernetesDirectory(calls, settings)


def describe(host: HostLoad) -> dict[str, str]:
    """Return the fields of a host's heartbeat."""
    return {
        "address": host.address,
        "agents": str(host.agents),
        "capacity": str(host.capacity),
        "cpu": f"{host.cpu:.3f}",
        "memory_mb": f"{host.memory_mb:.0f}",
        "labels": ",".join(host.labels),
        "holds": ",".join(host.holds),
        "state": "draining" if host.draining else "ready",
    }


def hosts_among(members: Iterable[Member]) -> list[tuple[Member, HostLoad]]:
    """Return the hosts that heartbeats describe, each with its heartbeat."""
    found: list[tuple[Member, HostLoad]] = []
    for member in members:
        # An unreadable record, as of another version, is skipped: it must not fail the whole listing.
        with contextlib.suppress(ValueError):  # guard: unreadable-heartbeat
            found.append((member, described(member)))
    return found


def described(member: Member) -> HostLoad:
    """Return the host that a heartbeat describes."""
    fields = member.fields

    def names(field: str) -> tuple[str, ...]:
        return tuple(name for name in fields.get(field, "").split(",") if name)

    return HostLoad(
        name=member.name,
        address=fields.get("address", ""),
        agents=int(fields.get("agents") or 0),
        capacity=int(fields.get("capacity") or 0),
        cpu=float(fields.get("cpu") or 0),
        memory_mb=float(fields.get("memory_mb") or 0),
        labels=names("labels"),
        holds=names("holds"),
        draining=fields.get("state") == "draining",
    )


def joined(address: str, port: int) -> str:
    """Write an address and a port as gRPC reads them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
