"""Schedules worked by hand: each step of a scheduler is one call, so that a test decides what comes between two of them."""

from __future__ import annotations

from typing import Any

from holdfast.leases.lease import Lease, RenewalReply
from holdfast.redis.client import Redis
from holdfast.redis.keys import ScheduleKeys
from holdfast.schedules.acquisition import Acquired, Acquirer, schedule_leases
from holdfast.schedules.completion import Completer, Completion
from holdfast.schedules.entries import Entries, Entry
from holdfast.schedules.history import History, past_turn
from holdfast.schedules.orphans import Orphans
from holdfast.schedules.registry import Registration, ScheduleRegistry, fingerprint
from holdfast.schedules.replies import Ended, Registered
from tests.support.waiting import until

KEYS = ScheduleKeys.of()


async def redis_now(redis: Redis) -> float:
    seconds, microseconds = await redis.time()
    return seconds + microseconds / 1_000_000


async def check_time(redis: Redis, found: float, *, since: float, after: float = 0.0) -> None:
    """Check that ``found`` is so many seconds after a moment between ``since`` and now, by the clock of Redis.

    However long the test took, it is exact but for the rounding: stored times are whole milliseconds.
    """
    assert since + after - 0.002 <= found <= await redis_now(redis) + after + 0.002


class Board:
    """The schedules of one test: registered, looked at and moved in time."""

    def __init__(self, redis: Redis, keys: ScheduleKeys = KEYS) -> None:
        self.redis, self.keys = redis, keys
        self.registry = ScheduleRegistry(redis, keys)
        self.entries = Entries(redis, keys)
        self.history = History(redis, keys)

    async def add(self, *names: str, due: float | None = -1.0, **options: Any) -> list[Registered]:
        """Register schedules that are due so many seconds from now."""
        at = None if due is None else await redis_now(self.redis) + due
        return await self.registry.put([registration(name, first=at, **options) for name in names])

    def pod(self, owner: str = "pod", *, ttl_ms: int = 60_000, **options: Any) -> Pod:
        return Pod(self, owner, ttl_ms, **options)

    async def waiting(self) -> dict[str, float]:
        pairs = await self.redis.zrange(self.keys.waiting, 0, -1, withscores=True)
        return {name.decode(): score for name, score in pairs}

    async def working(self) -> dict[str, float]:
        pairs = await self.redis.zrange(self.keys.working, 0, -1, withscores=True)
        return {name.decode(): score for name, score in pairs}

    async def leased(self) -> set[str]:
        return {name.decode() for name in await self.redis.zrange(self.keys.leases, 0, -1)}

    async def entry(self, name: str) -> Entry:
        return await self.entries.get(name)

    async def make_due(self, *names: str) -> None:
        """Time passes until these are due."""
        now = await redis_now(self.redis)
        for name in names or await self.waiting():
            await self.redis.zadd(self.keys.waiting, {name: now - 1}, xx=True)

    async def expire(self, *names: str) -> None:
        """Time passes until these leases are over."""
        for name in names or await self.leased():
            await self.redis.zadd(self.keys.leases, {name: 1}, xx=True)


class Pod:
    """One scheduler's hand."""

    def __init__(self, board: Board, owner: str, ttl_ms: int, **options: Any) -> None:
        self.board, self.owner = board, owner
        redis, keys = board.redis, board.keys
        self.redis = redis
        self.acquirer = Acquirer(redis, keys, owner=owner, ttl_ms=ttl_ms, **options)
        self.completer = Completer(redis, keys, owner=owner)
        self.orphans = Orphans(redis, keys)
        self.leases = schedule_leases(keys, owner=owner, ttl_ms=ttl_ms)

    async def acquire(self, limit: int = 100, **options: Any) -> list[Acquired]:
        return (await self.acquirer.acquire(limit, **options)).schedules

    async def one(self) -> Acquired:
        """Acquire what is due, or due in a moment: first turns are rounded up to a whole millisecond."""
        (acquired,) = await until(lambda: self.acquire(1), what="a schedule that is due")
        return acquired

    async def complete(self, run: Acquired, *, after: float | None = 3600.0, **options: Any) -> Ended:
        at = None if after is None else await redis_now(self.redis) + after
        past = past_turn(run, None, options.get("outcome", "succeeded"), 0.0)
        (word,) = await self.completer.complete(
            [Completion(run.name, run.fence, at, **{"history": past, **options})]
        )
        return word

    async def give_back(self, run: Acquired, after: float | None = 0.0) -> Ended:
        delays = None if after is None else [after]
        past = past_turn(run, None, "given_back", 0.0)
        (word,) = await self.completer.give_back([self.lease(run)], delays, [past])
        return word

    async def renew(self, run: Acquired) -> RenewalReply:
        (standing,) = await self.leases.renew(self.redis, [self.lease(run)])
        return standing

    def lease(self, run: Acquired) -> Lease:
        return run.lease(self.owner)


def registration(name: str, **options: Any) -> Registration:
    trigger = options.pop("trigger", "every minute")
    spec = options.pop("spec", f'{{"name":"{name}","trigger":"{trigger}"}}'.encode())
    defaults = {"timeout_ms": 300_000, "first": 0.0}
    return Registration(name, spec, fingerprint(trigger), **(defaults | options))
