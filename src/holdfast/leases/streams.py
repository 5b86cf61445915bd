"""Leases whose table is a stream's pending list: the entry is the lease, its idle time the lease's age.

The fence is in the record beside it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.leases.lease import STANDINGS, Lease, RenewalReply, renewal_args
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys

_RENEW = load(__package__, "stream_renew")
_RELEASE = load(__package__, "stream_release")
_RECLAIM = load(__package__, "stream_reclaim")
_EVICT = load(__package__, "stream_evict")


class Eviction(enum.StrEnum):
    """The result of a consumer's removal; a busy one renewed an entry lately, and nothing was changed."""

    GONE = "gone"
    BUSY = "busy"
    WOULD = "would"


class Evicted(msgspec.Struct, frozen=True):
    """The result for a consumer, and how many entries were returned and events appended."""

    how: Eviction
    entries: int
    events: int


class StreamLeases:
    """The leases of one queue, for one owner (the consumer's name)."""

    kind = "run"

    def __init__(self, keys: QueueKeys, *, group: str, owner: str, ttl_ms: int, turn_ms: int = 1000) -> None:
        self._keys: list[Any] = [*keys.lanes, keys.run_prefix]
        self._turn, self._turn_ms = keys.turn, turn_ms
        self._group, self._owner, self._ttl_ms = group, owner, ttl_ms

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[RenewalReply]:
        """Reset the idle time of entries that this owner still holds under the same fence."""
        words = await _RENEW(redis, self._keys, [self._group, self._owner, *renewal_args(leases)])
        return [STANDINGS[word] for word in words]

    async def release(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[bool]:
        """Hand entries back to be served first; the attempts are not counted."""
        words = await _RELEASE(redis, self._keys, [self._group, self._owner, *renewal_args(leases)])
        return [word == b"released" for word in words]

    async def reclaim(self, redis: Redis, limit: int = 100) -> Sequence[str]:
        """Queue the entries again whose owners stopped renewing; one process does so per turn."""
        taken: list[str] = []
        seen, turn_ms = limit, self._turn_ms
        while seen == limit:
            args = [self._group, self._ttl_ms, limit, turn_ms]
            seen, *keys = await _RECLAIM(redis, [*self._keys, self._turn], args)
            taken += [key.decode() for key in keys]
            turn_ms = 0
        return taken

    async def evict(
        self, redis: Redis, consumer: str, *, min_idle_ms: int, leaving: bool = False, dry_run: bool = False
    ) -> Evicted:
        """Return a consumer's entries and remove it, unless it renewed one within ``min_idle_ms``."""
        args = [self._group, consumer, min_idle_ms, int(leaving), int(dry_run)]
        word, entries, events = await _EVICT(redis, self._keys, args)
        return Evicted(Eviction(word.decode()), entries, events)

    async def leave(self, redis: Redis) -> Evicted:
        """Return the owner's unsettled entries to the queue, and remove its consumer."""
        return await self.evict(redis, self._owner, min_idle_ms=0, leaving=True)
