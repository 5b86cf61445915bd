"""Members: every live process has a heartbeat record under its name, with a ttl.

Other processes regard a process without a record as dead.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from holdfast.config.durations import iso
from holdfast.packages import version
from holdfast.redis.command import command, commands
from holdfast.redis.keys import catalogue_key, member_key, members_key, pod_key
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Self

    from holdfast.config import Settings
    from holdfast.redis.client import Redis


_ANNOUNCE = load(__package__, "announce")
_MEMBERS = load(__package__, "members")
_PAGE = 200
"""How many records are read in one round trip."""
_LINGER_SECONDS = 60
"""How long the index lists a process whose record has expired."""
_NUMBERS = frozenset({"pid", "load", "capacity", "since", "held_seconds", "cpu", "memory_mb"})
_POD_PARTS = 3
_POD_SECONDS = 86400
"""How long the pod of a process is kept: by then the janitor has removed its consumers."""


class Member(msgspec.Struct, frozen=True):
    """The last heartbeat record of a live process."""

    kind: str
    name: str
    fields: dict[str, str]

    def typed_fields(self) -> dict[str, str | int | float]:
        """The fields, with the numbers among them as numbers, and ``since`` as text too."""
        numbers = _NUMBERS | {"agents"} if self.kind == "host" else _NUMBERS
        typed = {name: _number(value) if name in numbers else value for name, value in self.fields.items()}
        if isinstance(since := typed.get("since"), int | float):
            typed["since_iso"] = iso(since)
        return typed


class PodName(msgspec.Struct, frozen=True):
    """The pod that a process runs in, from its own record."""

    namespace: str
    name: str
    uid: str

    def fields(self) -> dict[str, str]:
        """The fields of its record; none outside of Kubernetes."""
        return {"namespace": self.namespace, "pod": self.name, "pod_uid": self.uid} if self.name else {}

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> PodName | None:
        """Return the pod of a record, if it has one."""
        name = fields.get("pod")
        return cls(fields.get("namespace", ""), name, fields.get("pod_uid", "")) if name else None


def _number(value: str) -> str | int | float:
    try:
        return float(value) if "." in value else int(value)
    except ValueError:  # a process of another version wrote it
        return value


class Members:
    """The records of live processes; a record stays for three missed heartbeats."""

    def __init__(self, *, prefix: str, heartbeat_seconds: float) -> None:
        self._prefix = prefix
        self.heartbeat_seconds = heartbeat_seconds
        self.ttl_seconds = heartbeat_seconds * 3
        self._ttl_ms = int(self.ttl_seconds * 1000)
        self._index = members_key(prefix=prefix)

    @classmethod
    def of(cls, settings: Settings, *, at_most_seconds: float = math.inf) -> Self:
        """Make the members of these settings; written records expire after ``at_most_seconds`` at most."""
        every = min(settings.worker.heartbeat_seconds, at_most_seconds / 3)  # guard: record-ends-with-leases
        return cls(prefix=settings.redis.key_prefix, heartbeat_seconds=every)

    async def announce(self, redis: Redis, member: Member, *, again: bool = False) -> bool:
        """Write a record, or refresh it (``again``); False if another process has the name now."""
        key = member_key(member.kind, member.name, prefix=self._prefix)
        fields = {"kind": member.kind, "name": member.name, **member.fields}
        ours = member.fields.get("since", "") if again else ""
        args = [self._ttl_ms, ours, *(part for pair in fields.items() for part in pair)]
        now_ms: int = await _ANNOUNCE(redis, [key], args)
        if not now_ms:
            return False
        expiry = (now_ms + self._ttl_ms) / 1000
        await command(redis, "ZADD", self._index, expiry, f"{member.kind}:{member.name}")
        if pod := PodName.of(member.fields):
            value = f"{pod.namespace}/{pod.name}/{pod.uid}"
            key = pod_key(member.kind, member.name, prefix=self._prefix)
            await command(redis, "SET", key, value, "EX", _POD_SECONDS)
        return True

    async def leave(self, redis: Redis, kind: str, name: str) -> None:
        """Remove a record at once."""
        await command(redis, "DEL", member_key(kind, name, prefix=self._prefix))
        await command(redis, "ZREM", self._index, f"{kind}:{name}")
        await command(redis, "DEL", pod_key(kind, name, prefix=self._prefix))

    async def pod(self, redis: Redis, kind: str, name: str) -> PodName | None:
        """Return the pod of a process, also if the process has died lately; None without a pod."""
        value: bytes | None = await command(redis, "GET", pod_key(kind, name, prefix=self._prefix))
        parts = value.decode(errors="replace").split("/") if value else []
        return PodName(*parts) if len(parts) == _POD_PARTS else None

    async def find(self, redis: Redis, kind: str, name: str) -> Member | None:
        """Return the record of one process, if it has one now."""
        key = member_key(kind, name, prefix=self._prefix)
        fields: dict[bytes, bytes] = await command(redis, "HGETALL", key)
        return _member(kind, name, fields) if fields else None

    async def alive(self, redis: Redis, kind: str, name: str) -> bool:
        """Whether a process of that name has a record now."""
        return bool(await command(redis, "EXISTS", member_key(kind, name, prefix=self._prefix)))

    async def all(self, redis: Redis, kind: str = "") -> list[Member]:
        """Return every live process, or those of one kind, by kind and name."""
        listed: list[bytes] = await _MEMBERS(redis, [self._index], [_LINGER_SECONDS, kind])
        found: list[Member] = []
        for at in range(0, len(listed), _PAGE):
            names = [_named(raw) for raw in listed[at : at + _PAGE]]
            reads = [("HGETALL", member_key(*each, prefix=self._prefix)) for each in names]
            records = zip(names, await commands(redis, reads), strict=True)
            found += [_member(*each, fields) for each, fields in records if fields]
        return sorted(found, key=lambda member: (member.kind, member.name))

    async def keep_catalogue(self, redis: Redis, digest: str, data: bytes) -> None:
        """Store a catalogue of agents with the ttl of a record; it is sent only if Redis does not have it."""
        key = catalogue_key(digest, prefix=self._prefix)
        if not await command(redis, "PEXPIRE", key, self._ttl_ms):
            await command(redis, "SET", key, data, "PX", self._ttl_ms)

    async def catalogues(self, redis: Redis, digests: Collection[str]) -> dict[str, bytes]:
        """Return the existing catalogues of these digests, by digest."""
        reads = [("GET", catalogue_key(digest, prefix=self._prefix)) for digest in digests]
        found: list[bytes | None] = await commands(redis, reads) if reads else []
        return {digest: data for digest, data in zip(digests, found, strict=True) if data is not None}

    async def serving(self, redis: Redis) -> Counter[str]:
        """Return how many live workers serve each queue; ghosts, still in the groups, do not count."""
        workers = await self.all(redis, "worker")
        return Counter(name for each in workers for name in each.fields.get("queues", "").split(","))


class OwnRecord:
    """The record of this process: the fields that all processes have, and its own."""

    def __init__(self, members: Members, kind: str, name: str) -> None:
        self._members = members
        self._kind, self._name = kind, name
        self._common = {
            "version": version(),
            "host": platform.node(),
            "pid": str(os.getpid()),
            "since": f"{time.time():.3f}",
        }

    async def announce(self, redis: Redis, fields: Mapping[str, str], *, again: bool = False) -> bool:
        """Write the record, or refresh it (``again``); False if another process has the name now."""
        member = Member(self._kind, self._name, {**self._common, **fields})
        return await self._members.announce(redis, member, again=again)

    async def leave(self, redis: Redis) -> None:
        """Remove the record at once."""
        await self._members.leave(redis, self._kind, self._name)


def _named(raw: bytes) -> tuple[str, str]:
    kind, _, name = raw.decode(errors="replace").partition(":")
    return kind, name


def _member(kind: str, name: str, fields: dict[bytes, bytes]) -> Member:
    return Member(kind, name, {key.decode(): value.decode(errors="replace") for key, value in fields.items()})
