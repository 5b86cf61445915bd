"""A queue worked by hand: each step of a worker is one call, so that a test decides what comes between two of them."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from holdfast.config import QueueSettings
from holdfast.leases.lease import Lease
from holdfast.leases.streams import Evicted, StreamLeases
from holdfast.redis.client import Redis
from holdfast.runs.execution.claim import Claimed, Claimer, Woken
from holdfast.runs.execution.settle import Settler, SettleReply
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.expiry import Expiry
from holdfast.runs.promoter import Promoter
from holdfast.runs.queue import RunQueue
from holdfast.runs.retention import Retention
from holdfast.runs.run import Status, Submission
from holdfast.telemetry.metrics import Metrics
from tests.support.waiting import until

TTL_SECONDS = 0.2


class Hand:
    """One worker's hand: wake, claim, settle, hand back, leave; nothing happens by itself."""

    def __init__(self, queue: RunQueue, name: str, limits: dict[str, int] | None = None) -> None:
        self.name = name
        self.queue = queue
        self.leases = StreamLeases(
            queue.keys, group=queue.settings.group, owner=name, ttl_ms=int(TTL_SECONDS * 1000), turn_ms=0
        )
        self._claimer = Claimer(queue, name, queue.redis, limits)
        self._settler = Settler(queue, self.leases, name, Metrics())

    async def join(self) -> Hand:
        await self._claimer.join()
        return self

    async def wake(self) -> Woken:
        """What a blocking read would have delivered: one entry, pending, not yet claimed."""
        return await self._claimer.wait(1)

    async def claim(self, count: int = 1, woken: Woken | None = None) -> list[Claimed]:
        return (await self._claimer.claim(count, woken or [])).runs

    async def claim_one(self) -> Lease:
        (run,) = await self.claim()
        return self.lease(run)

    def lease(self, run: Claimed) -> Lease:
        return run.lease(self.name)

    async def settle(
        self, lease: Lease, status: Status = Status.SUCCEEDED, extra: str | int = ""
    ) -> SettleReply:
        field, value = ("result", b"1") if status is Status.SUCCEEDED else ("error", b'{"kind":"server"}')
        if status in {Status.FAILED, Status.TIMED_OUT}:
            extra = extra or "server"
        (verdict,) = await self._settler._settle([Settlement(lease, status, field, value, b"{}", extra or 0)])
        return verdict

    async def hand_back(self, lease: Lease) -> bool:
        (released,) = await self.leases.release(self.queue.redis, [lease])
        return released

    async def renew(self, lease: Lease) -> str:
        (standing,) = await self.leases.renew(self.queue.redis, [lease])
        return standing.value

    async def evict(self, consumer: str, min_idle_ms: int = 0) -> Evicted:
        return await self.leases.evict(self.queue.redis, consumer, min_idle_ms=min_idle_ms)

    async def reclaim_all(self) -> list[str]:
        """Take back whatever anybody holds, as if every lease had ended."""
        leases = StreamLeases(
            self.queue.keys, group=self.queue.settings.group, owner=self.name, ttl_ms=0, turn_ms=0
        )
        return list(await leases.reclaim(self.queue.redis))

    async def promote(self) -> int:
        return (await Promoter(self.queue, Metrics()).run_once())[0]


async def open_queue(redis: Redis, **settings: Any) -> RunQueue:
    queue = RunQueue(QueueSettings(**settings), redis)
    await queue.ensure()
    return queue


async def submit(queue: RunQueue, run_id: str = "", agent: str = "echo", **options: Any) -> str:
    return (await queue.submit(Submission(agent=agent, input={"n": 1}, run_id=run_id, **options))).run_id


async def bury(hand: Hand, run_id: str, agent: str = "echo", reason: str = "server") -> None:
    """Submit a run and let it fail for good."""
    await submit(hand.queue, run_id, agent)
    assert await hand.settle(await hand.claim_one(), Status.FAILED, reason) is SettleReply.SETTLED


async def events(queue: RunQueue, run_id: str) -> list[str]:
    return [fields[b"type"].decode() for _, fields in await queue.redis.xrange(queue.keys.feed(run_id))]


async def lane_of(queue: RunQueue, lane: str) -> list[str]:
    """The run ids in a lane, in order."""
    return [fields[b"correlation_id"].decode() for _, fields in await queue.redis.xrange(lane)]


async def leases_end(queue: RunQueue) -> None:
    """Wait until nothing that is held was renewed within the ttl, by the server's clock."""
    group, ttl_ms = queue.settings.group, int(TTL_SECONDS * 1000) + 10

    async def ended(lane: str) -> bool:
        over = await queue.redis.xpending_range(lane, group, "-", "+", 10_000, idle=ttl_ms)
        return len(over) >= await _pending(queue, lane)

    for lane in queue.keys.lanes:
        await until(functools.partial(ended, lane), what=f"the end of every lease in {lane}")


async def _pending(queue: RunQueue, lane: str) -> int:
    return (await queue.redis.xpending(lane, queue.settings.group))["pending"]


async def now_ms(redis) -> float:
    seconds, micros = await redis.time()
    return seconds * 1000 + micros / 1000


async def next_ms(queue) -> None:
    """Wait until the server's clock has left the millisecond of whatever was written last."""
    then = await now_ms(queue.redis)
    await until(lambda: now_ms(queue.redis), lambda now: now >= then + 1)


def retention_of(queue, *, ttl: float = 0.0, pages: int = 250) -> Retention:
    return Retention(queue, Metrics(), ttl_seconds=ttl, pages=pages)


def expiry_without_retention(queue) -> Expiry:
    """An expiry for which every ended run that is noted has had its time."""
    settings = msgspec.structs.replace(queue.settings, retention_seconds=0.0)
    return Expiry(RunQueue(settings, queue.redis), Metrics())


async def settle_next(hand: Hand, count: int = 1) -> None:
    """Let runs end, and be archived."""
    for run in await hand.claim(count):
        assert await hand.settle(hand.lease(run)) is SettleReply.SETTLED
    await hand.queue.redis.delete(hand.queue.keys.unarchived)
