"""Leases whose table is a sorted set: member = key, score = expiry by Redis TIME.

Owner and fence are in a record beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.leases.lease import STANDINGS, Lease, Standing, renewal_args
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis

_GRANT = load(__package__, "zset_grant")
_RENEW = load(__package__, "zset_renew")
_RELEASE = load(__package__, "zset_release")
_RECLAIM = load(__package__, "zset_reclaim")


class SortedSetLeases:
    """The leases of one table, for one owner; table and records must share a hash tag."""

    def __init__(self, table: str, record_prefix: str, *, kind: str, owner: str, ttl_ms: int) -> None:
        self.kind = kind
        self._keys = [table, record_prefix]
        self._owner = owner
        self._ttl_ms = ttl_ms

    async def grant(self, redis: Redis, keys: Sequence[str]) -> Sequence[Lease | None]:
        """Take the keys that are free or expired; None where somebody else holds one."""
        fences = await _GRANT(redis, self._keys, [self._owner, self._ttl_ms, *keys])
        pairs = zip(keys, fences, strict=True)
        return [Lease(key, self._owner, fence) if fence else None for key, fence in pairs]

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[Standing]:
        """Move the expiry of leases that this owner still holds under the same fence."""
        words = await _RENEW(redis, self._keys, [self._owner, self._ttl_ms, *renewal_args(leases)])
        return [STANDINGS[word] for word in words]

    async def release(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[bool]:
        """Free leases that this owner still holds under the same fence."""
        words = await _RELEASE(redis, self._keys, [self._owner, *renewal_args(leases)])
        return [word == b"released" for word in words]

    async def reclaim(self, redis: Redis, limit: int = 100) -> Sequence[str]:
        """Free what expired, under a higher fence."""
        return [key.decode() for key in await _RECLAIM(redis, self._keys, [limit])]
