"""Leases of a sorted set that a test grants and frees itself, as each owner of such a table does in its own scripts."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.leases.lease import Lease
from holdfast.leases.sortedsets import SortedSetLeases
from holdfast.redis.client import Redis

TABLE, RECORDS = "{t}:leases", "{t}:record:"


async def now_ms(redis: Redis) -> int:
    seconds, microseconds = await redis.time()
    return seconds * 1000 + microseconds // 1000


class GrantingLeases(SortedSetLeases):
    """The table of one test, for one owner."""

    def __init__(self, owner: str, ttl_seconds: float) -> None:
        super().__init__(TABLE, RECORDS, kind="thing", owner=owner, ttl_ms=int(ttl_seconds * 1000))

    async def grant(self, redis: Redis, keys: Sequence[str]) -> list[Lease | None]:
        """Take the keys that nobody holds; None where somebody does."""
        now = await now_ms(redis)
        expiries = await redis.zmscore(TABLE, list(keys))
        free = [key for key, expiry in zip(keys, expiries, strict=True) if not expiry or expiry <= now]
        async with redis.pipeline(transaction=True) as pipe:
            for key in free:
                pipe.hincrby(RECORDS + key, "fence", 1)
                pipe.hset(RECORDS + key, "owner", self._owner)
                pipe.zadd(TABLE, {key: now + self._ttl_ms})
            fences = dict(zip(free, (await pipe.execute())[::3], strict=True))
        return [Lease(key, self._owner, fences[key]) if key in fences else None for key in keys]

    async def reclaim(self, redis: Redis) -> None:
        """Free what has expired, under a higher fence."""
        for raw in await redis.zrangebyscore(TABLE, "-inf", await now_ms(redis)):
            async with redis.pipeline(transaction=True) as pipe:
                pipe.zrem(TABLE, raw)
                pipe.hset(RECORDS + raw.decode(), "owner", "")
                pipe.hincrby(RECORDS + raw.decode(), "fence", 1)
                await pipe.execute()
