"""Members: every live process says so, under a name, with a ttl.

A process without a record is not alive for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.redis.command import command
from holdfast.redis.keys import member_key, members_key

if TYPE_CHECKING:
    from holdfast.redis.client import Redis


_LINGER_SECONDS = 60
"""How long the index remembers a process that is gone."""


class Member(msgspec.Struct, frozen=True):
    """One live process, as it last described itself."""

    kind: str
    name: str
    fields: dict[str, str]


class Members:
    """The records of live processes; a record stays for three missed heartbeats."""

    def __init__(self, *, prefix: str, heartbeat_seconds: float) -> None:
        self._prefix = prefix
        self.heartbeat_seconds = heartbeat_seconds
        self._ttl_ms = int(heartbeat_seconds * 3000)
        self._index = members_key(prefix=prefix)

    async def announce(self, redis: Redis, member: Member) -> None:
        """Write or refresh a record."""
        key = member_key(member.kind, member.name, prefix=self._prefix)
        fields = {"kind": member.kind, "name": member.name, **member.fields}
        expiry = await _seconds(redis) + self._ttl_ms / 1000
        await command(redis, "HSET", key, *(part for pair in fields.items() for part in pair))
        await command(redis, "PEXPIRE", key, self._ttl_ms)
        await command(redis, "ZADD", self._index, expiry, f"{member.kind}:{member.name}")

    async def leave(self, redis: Redis, kind: str, name: str) -> None:
        """Remove a record at once."""
        await command(redis, "DEL", member_key(kind, name, prefix=self._prefix))
        await command(redis, "ZREM", self._index, f"{kind}:{name}")

    async def alive(self, redis: Redis, kind: str, name: str) -> bool:
        """Whether a process of that name has a record now."""
        return bool(await command(redis, "EXISTS", member_key(kind, name, prefix=self._prefix)))

    async def all(self, redis: Redis) -> list[Member]:
        """Every live process, by kind and name; expired ones leave the index here."""
        await command(redis, "ZREMRANGEBYSCORE", self._index, "-inf", await _seconds(redis) - _LINGER_SECONDS)
        names: list[bytes] = await command(redis, "ZRANGE", self._index, 0, -1)
        found: list[Member] = []
        for raw in names:
            kind, _, name = raw.decode(errors="replace").partition(":")
            key = member_key(kind, name, prefix=self._prefix)
            fields: dict[bytes, bytes] = await command(redis, "HGETALL", key)
            if fields:
                text = {k.decode(): v.decode(errors="replace") for k, v in fields.items()}
                found.append(Member(kind, name, text))
        return sorted(found, key=lambda member: (member.kind, member.name))


async def _seconds(redis: Redis) -> int:
    """Redis TIME: whole seconds will do for records that live for many."""
    seconds, _ = await command(redis, "TIME")
    return int(seconds)
