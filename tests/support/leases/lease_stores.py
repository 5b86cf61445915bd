"""Every lease store behind one small harness: how a lease is granted and given back differs, its renewal must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.config import QueueSettings
from holdfast.hosts.agent import Agent
from holdfast.hosts.registry import AgentLeases, AgentRegistry
from holdfast.leases.leadership import LeaderRecord, Leadership
from holdfast.leases.lease import Lease, LeaseStore
from holdfast.leases.sortedsets import SortedSetLeases
from holdfast.leases.streams import StreamLeases
from holdfast.redis.client import Redis
from holdfast.redis.keys import HostKeys
from holdfast.runs.execution.claim import Claimer
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission
from holdfast.schedules.replies import Ended
from tests.support.schedules.manual_scheduler import Board, Pod


class Harness(Protocol):
    """A lease store for one owner, with what production does around it."""

    store: LeaseStore

    async def grant(self, redis: Redis, key: str = "thing") -> Lease | None: ...
    async def release(self, redis: Redis, lease: Lease) -> bool: ...
    async def reclaim(self, redis: Redis) -> Sequence[Any]: ...
    async def owner_of(self, redis: Redis) -> str: ...
    def record(self, key: str = "thing") -> str: ...


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

    async def grant(self, redis: Redis, key: str = "thing") -> Lease | None:
        queue = self.queue(redis)
        await queue.ensure()
        await queue.submit(Submission(agent="a", run_id=key))
        await queue.aclose()
        claims = await Claimer(queue, self.owner, redis).claim(1, [])
        return Lease(key, self.owner, claims.runs[0].fence) if claims.runs else None

    async def release(self, redis: Redis, lease: Lease) -> bool:
        (released,) = await self.store.release(redis, [lease])
        return released

    async def reclaim(self, redis: Redis) -> Sequence[str]:
        return await self.store.reclaim(redis)

    async def owner_of(self, redis: Redis) -> str:
        return (await redis.hget(self.record(), "owner") or b"").decode()

    def record(self, key: str = "thing") -> str:
        return self.queue(None).keys.run(key)


@dataclass
class Schedules:
    owner: str
    ttl_ms: int

    @property
    def store(self) -> SortedSetLeases:
        return self.pod(None).leases

    def pod(self, redis) -> Pod:
        return Board(redis).pod(self.owner, ttl_ms=self.ttl_ms)

    async def grant(self, redis: Redis, key: str = "thing") -> Lease | None:
        pod = self.pod(redis)
        await pod.board.add(key)
        runs = await pod.acquire(1)
        return pod.lease(runs[0]) if runs else None

    async def release(self, redis: Redis, lease: Lease) -> bool:
        (word,) = await self.pod(redis).completer.give_back([lease], [0.0])
        return word is Ended.RETURNED

    async def reclaim(self, redis: Redis) -> Sequence[Any]:
        return await self.pod(redis).orphans.reclaim()

    async def owner_of(self, redis: Redis) -> str:
        return (await redis.hget(self.record(), "owner") or b"").decode()

    def record(self, key: str = "thing") -> str:
        return self.pod(None).board.keys.record_prefix + key


@dataclass
class Agents:
    owner: str
    ttl_ms: int

    @property
    def store(self) -> AgentLeases:
        return self.registry(None).leases(self.owner, f"{self.owner}:1")

    def registry(self, redis) -> AgentRegistry:
        return AgentRegistry(HostKeys.of(), redis, ttl_seconds=self.ttl_ms / 1000, placing_seconds=10)

    async def grant(self, redis: Redis, key: str = "thing") -> Lease | None:
        registry = self.registry(redis)
        await registry.want(Agent(agent_id=key, entry="plain", payload=b"{}"))
        grant = await registry.grant(self.owner, f"{self.owner}:1", key)
        return Lease(key, self.owner, grant.fence) if grant.given else None

    async def release(self, redis: Redis, lease: Lease) -> bool:
        return await self.registry(redis).release(self.owner, lease.key, lease.fence, "moving")

    async def reclaim(self, redis: Redis) -> Sequence[Any]:
        return await self.registry(redis).reclaim()

    async def owner_of(self, redis: Redis) -> str:
        return (await redis.hget(self.record(), "owner") or b"").decode()

    def record(self, key: str = "thing") -> str:
        return HostKeys.of().record_prefix + key


@dataclass
class Leaders:
    owner: str
    ttl_ms: int
    format: LeaderRecord = LeaderRecord.HASH

    @property
    def store(self) -> Leadership:
        return Leadership("leader", owner=self.owner, ttl_ms=self.ttl_ms, record=self.format)

    async def grant(self, redis: Redis, key: str = "thing") -> Lease | None:
        return await self.store.campaign(redis)

    async def release(self, redis: Redis, lease: Lease) -> bool:
        return await self.store.resign(redis, lease)

    async def reclaim(self, redis: Redis) -> Sequence[Any]:
        """A leader's term ends by itself."""
        return []

    async def owner_of(self, redis: Redis) -> str:
        return (await redis.hget("leader", "owner") or b"").decode()

    def record(self, key: str = "thing") -> str:
        return "leader"


@dataclass
class LeadersAsStrings(Leaders):
    format: LeaderRecord = LeaderRecord.STRING

    async def owner_of(self, redis: Redis) -> str:
        return (await redis.get("leader") or b"").decode().rpartition(" ")[0]


HARNESSES = {
    "streams": Streams,
    "schedules": Schedules,
    "agents": Agents,
    "leader": Leaders,
    "leader as a string": LeadersAsStrings,
}
