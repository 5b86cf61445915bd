"""Every lease store behind one small harness: how a lease is granted differs, everything after it must not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from holdfast.config import QueueSettings
from holdfast.leases.leader import Leadership
from holdfast.leases.lease import Lease, LeaseStore
from holdfast.leases.sortedsets import SortedSetLeases
from holdfast.leases.streams import StreamLeases
from holdfast.redis.client import Redis
from holdfast.runs.execution.claim import Claimer
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission


class Harness(Protocol):
    """A lease store for one owner, with the grant that goes with it."""

    store: LeaseStore

    async def grant(self, redis: Redis) -> Lease | None: ...
    async def record(self, redis: Redis) -> str: ...


@dataclass
class Streams:
    owner: str
    ttl_ms: int

    def __post_init__(self) -> None:
        self.settings = QueueSettings(name="contract")

    @property
    def store(self) -> StreamLeases:
        return StreamLeases(
            self.queue(None).keys, group="contract-group", owner=self.owner, ttl_ms=self.ttl_ms, turn_ms=0
        )

    def queue(self, redis) -> RunQueue:
        return RunQueue(self.settings, redis)

    async def grant(self, redis: Redis) -> Lease | None:
        queue = self.queue(redis)
        await queue.ensure()
        await queue.submit(Submission(agent="a", run_id="thing"))
        await queue.aclose()
        claims = await Claimer(queue, self.owner, redis).claim(1, [])
        return Lease("thing", self.owner, claims.runs[0].fence) if claims.runs else None

    async def record(self, redis: Redis) -> str:
        return self.queue(redis).keys.run("thing")


@dataclass
class SortedSets:
    owner: str
    ttl_ms: int

    @property
    def store(self) -> SortedSetLeases:
        return SortedSetLeases(
            "{t}:leases", "{t}:record:", kind="thing", owner=self.owner, ttl_ms=self.ttl_ms
        )

    async def grant(self, redis: Redis) -> Lease | None:
        return (await self.store.grant(redis, ["thing"]))[0]

    async def record(self, redis: Redis) -> str:
        return "{t}:record:thing"


@dataclass
class Leaders:
    owner: str
    ttl_ms: int

    @property
    def store(self) -> Leadership:
        return Leadership("leader", owner=self.owner, ttl_ms=self.ttl_ms)

    async def grant(self, redis: Redis) -> Lease | None:
        return await self.store.campaign(redis)

    async def record(self, redis: Redis) -> str:
        return "leader"


HARNESSES = {"streams": Streams, "sorted sets": SortedSets, "leader": Leaders}
