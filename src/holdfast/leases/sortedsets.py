"""Leases whose table is a sorted set: member = key, score = expiry by Redis TIME.

Owner and fence are in a record beside it. Schedules grant, release and reclaim
in their own scripts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.leases.lease import STANDINGS, Lease, RenewalReply, renewal_args
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis

_RENEW = load(__package__, "zset_renew")


class SortedSetLeases:
    """The leases of one table, for one owner; table and records must share a hash tag."""

    def __init__(self, table: str, record_prefix: str, *, kind: str, owner: str, ttl_ms: int) -> None:
        self.kind = kind
        self._keys = [table, record_prefix]
        self._owner = owner
        self._ttl_ms = ttl_ms

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[RenewalReply]:
        """Extend the expiry of leases that this owner still holds under the same fence."""
        words = await _RENEW(redis, self._keys, [self._owner, self._ttl_ms, *renewal_args(leases)])
        return [STANDINGS[word] for word in words]
