"""Which host has which agent, as leases in Redis: what should run, where it does, under which fence.

Invariant: an agent has one host at a time. A host that lost it, because it slept past its lease, is told so
by its next renewal and changes nothing before.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.hosts.agent import Agent, Needs, Placed, Status
from holdfast.leases.lease import Standing, renewal_args
from holdfast.redis.command import command, commands
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from holdfast.leases.lease import Lease
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import HostKeys
    from holdfast.telemetry.metrics import Metrics

_WANT = load(__package__, "want")
_GRANT = load(__package__, "grant")
_STARTED = load(__package__, "started")
_RENEW = load(__package__, "renew")
_RELEASE = load(__package__, "release")
_RECLAIM = load(__package__, "reclaim")
_UNWANT = load(__package__, "unwant")

_KEEP_MS: Final = 3_600_000
"""How long the record of an agent that was stopped can be read."""


class Wanted(msgspec.Struct, frozen=True):
    """The answer to the wish that an agent runs: whether that is news, and what is known."""

    new: bool
    fence: int
    status: Status
    address: str


class Grant(msgspec.Struct, frozen=True):
    """The answer to a host that would start an agent: granted, mine, held, stale, unwanted or unknown."""

    word: str
    fence: int
    address: str

    @property
    def given(self) -> bool:
        """Whether the host has the agent now."""
        return self.word in {"granted", "mine"}


class Stopping(msgspec.Struct, frozen=True):
    """The answer to the wish that an agent stops: unknown, stopped, or stopping at its host."""

    word: str
    host: str
    address: str
    fence: int


class Homeless(msgspec.Struct, frozen=True):
    """An agent that its caller may place now."""

    agent_id: str
    fence: int
    host: str
    """Where it was."""


class AgentLeases:
    """The agents of one host as leases, for the keeper; an agent that is to be stopped stays its host's."""

    kind = "agent"

    def __init__(self, keys: Sequence[str], host: str, address: str, ttl_ms: int) -> None:
        self._keys = keys
        self._host = [host, address, ttl_ms]

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[Standing]:
        """Keep what the host has, and bring back what has expired but went to no other host."""
        words = await _RENEW(redis, self._keys, [*self._host, *renewal_args(leases)])
        return [_STANDINGS[word] for word in words]


_STANDINGS: Final = {
    b"kept": Standing.KEPT,
    b"unwanted": Standing.STOP,
    b"lost": Standing.LOST,
    b"forgotten": Standing.FORGOTTEN,
}


class Registry:
    """The table of all agents and their hosts."""

    def __init__(
        self,
        keys: HostKeys,
        redis: Redis,
        *,
        ttl_seconds: float,
        placing_seconds: float,
        metrics: Metrics | None = None,
    ) -> None:
        self.keys = keys
        self.redis = redis
        self._metrics = metrics
        self.ttl_seconds = ttl_seconds
        self._ttl_ms = int(ttl_seconds * 1000)
        self._placing_ms = int(placing_seconds * 1000)
        self._keys = [keys.leases, keys.index, keys.record_prefix, keys.location_prefix, keys.host_prefix]

    # -- what should run

    async def want(self, agent: Agent, *, fence: int | None = None) -> Wanted:
        """Say that an agent should run; ``fence`` is the last known one of an agent that Redis has lost."""
        fields = {
            "entry": agent.entry,
            "payload": agent.payload,
            "name": agent.name,
            "guild": agent.guild_id,
            "organization": agent.organization_id,
            "needs": msgspec.json.encode(agent.needs),
            "bound": "1" if agent.bound else "",
            **({} if fence is None else {"fence": fence}),
        }
        args = [agent.agent_id, self._placing_ms, *(part for pair in fields.items() for part in pair)]
        word, seen, status, address = await _WANT(self.redis, self._keys, args)
        return Wanted(word == b"new", int(seen), Status(status.decode()), address.decode())

    async def unwant(self, agent_id: str) -> Stopping:
        """Say that an agent should run no more; nobody finds it from here on."""
        word, host, address, fence = await _UNWANT(self.redis, self._keys, [agent_id, _KEEP_MS])
        return Stopping(word.decode(), host.decode(), address.decode(), int(fence))

    async def reclaim(self, limit: int = 100, *, only: Literal["", "bound", "free"] = "") -> list[Homeless]:
        """Take agents whose host is gone, each for one caller; those that end with it are forgotten.

        ``bound`` looks at those only that end with their host, ``free`` at those only that nobody has.
        """
        args = [limit, self._placing_ms, _KEEP_MS, only]
        row: list[bytes] = await _RECLAIM(self.redis, self._keys, args)
        return [
            Homeless(agent_id.decode(), int(fence), host.decode())
            for agent_id, fence, host in zip(row[::3], row[1::3], row[2::3], strict=True)
        ]

    # -- what a host says

    async def grant(self, host: str, address: str, agent_id: str, *, seen: int | None = None) -> Grant:
        """Ask for an agent; ``seen`` is the fence under which its caller wanted it placed."""
        args = [host, address, self._ttl_ms, agent_id, "" if seen is None else seen]
        word, fence, at = await _GRANT(self.redis, self._keys, args)
        return Grant(word.decode(), int(fence), at.decode())

    async def started(self, host: str, address: str, agent_id: str, fence: int, pid: int) -> str:
        """Say that an agent runs; returns kept, lost or unwanted."""
        args = [host, address, self._ttl_ms, agent_id, fence, pid]
        return (await _STARTED(self.redis, self._keys, args)).decode()

    def leases(self, host: str, address: str) -> AgentLeases:
        """What a host has, for its keeper."""
        return AgentLeases(self._keys, host, address, self._ttl_ms)

    async def release(self, host: str, agent_id: str, fence: int, status: str, error: str = "") -> bool:
        """Say that a host has an agent no more: stopped, crashed, moving, or (there) restarting, waiting."""
        args = [host, agent_id, fence, status, error[-4000:], _KEEP_MS, self._placing_ms]
        return await _RELEASE(self.redis, self._keys, args) == b"released"

    async def unplaced(self, agent_id: str, fence: int) -> None:
        """Say that there is no host for an agent that moves: whoever comes next may have it at once."""
        await _RELEASE(self.redis, self._keys, ["", agent_id, fence, "moving", "", _KEEP_MS, 0])

    # -- what is where

    async def answers(self) -> None:
        """Ask Redis for nothing; raises if it is away."""
        await command(self.redis, "ZCARD", self.keys.leases)

    async def location(self, agent_id: str) -> str | None:
        """The address of the host that runs an agent; one GET."""
        found = await self._looked(command(self.redis, "GET", self.keys.location_prefix + agent_id))
        return found.decode() if found else None

    async def get(self, agent_id: str) -> Placed | None:
        """An agent and where it is."""
        return await self._looked(self._read(agent_id))

    async def _read(self, agent_id: str) -> Placed | None:
        reads = (("HGETALL", self.keys.record_prefix + agent_id), ("ZSCORE", self.keys.leases, agent_id))
        fields, lease_end_ms = await commands(self.redis, reads)
        return _placed(agent_id, fields, float(lease_end_ms or 0) / 1000) if b"fence" in fields else None

    async def fence(self, agent_id: str) -> int:
        """The highest fence under which an agent was given to anybody; 0 if nobody knows it."""
        return int(await command(self.redis, "HGET", self.keys.record_prefix + agent_id, "fence") or 0)

    async def all(self, *, guild_id: str | None = None, prefix: str = "") -> AsyncIterator[Placed]:
        """Every agent that should run, oldest first; only those whose ids begin so are read at all."""
        # All ids at once: by pages, one that is stopped meanwhile would make us pass over another.
        for raw in await command(self.redis, "ZRANGE", self.keys.index, 0, -1):
            agent_id: str = raw.decode()
            placed = await self.get(agent_id) if agent_id.startswith(prefix) else None
            if placed is not None and guild_id in {None, placed.agent.guild_id}:
                yield placed

    async def page(self, since_ms: int, after: str, limit: int) -> list[Placed]:
        """Agents that should run, oldest first, behind the one of that id that was made at that time."""
        found: list[Placed] = []
        first = 0
        while len(found) < limit:
            span = (since_ms, "+inf", "BYSCORE", "LIMIT", first, limit)
            ids: list[bytes] = await command(self.redis, "ZRANGE", self.keys.index, *span)
            first += len(ids)
            page = await asyncio.gather(*(self.get(raw.decode()) for raw in ids))
            # Many may have been made at one time: those are in the order of their ids.
            found += [
                placed
                for placed in page
                if placed and (round(placed.created_at * 1000), placed.agent.agent_id) > (since_ms, after)
            ]
            if len(ids) < limit:
                break
        return found[:limit]

    async def on_host(self, host: str) -> list[str]:
        """The agents that run on a host."""
        found: set[bytes] = await command(self.redis, "SMEMBERS", self.keys.host_prefix + host)
        return sorted(raw.decode() for raw in found)

    async def turn(self) -> int:
        """The next number of round-robin placement."""
        return int(await command(self.redis, "INCR", self.keys.counter))

    async def _looked(self, look: Awaitable[Any]) -> Any:
        """Count and time a look for one agent."""
        if self._metrics is None:
            return await look
        began, status = time.perf_counter(), "failed"
        try:
            found = await look
            status = "found" if found else "missing"
            return found
        finally:
            self._metrics.host_lookups.labels(status).inc()
            self._metrics.host_lookup_seconds.observe(time.perf_counter() - began)


def _placed(agent_id: str, fields: dict[bytes, bytes], lease_ends_at: float) -> Placed:
    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def number(name: bytes) -> int:
        return int(fields.get(name) or 0)

    agent = Agent(
        agent_id=agent_id,
        entry=text(b"entry"),
        payload=fields.get(b"payload", b""),
        name=text(b"name"),
        guild_id=text(b"guild"),
        organization_id=text(b"organization"),
        needs=msgspec.json.decode(fields.get(b"needs") or b"{}", type=Needs),
        bound=text(b"bound") == "1",
    )
    return Placed(
        agent=agent,
        status=Status(text(b"status")),
        wanted=text(b"wanted") == "1",
        fence=number(b"fence"),
        host=text(b"owner"),
        address=text(b"address"),
        pid=number(b"pid"),
        restarts=number(b"restarts"),
        error=text(b"error"),
        created_at=number(b"created_at") / 1000,
        started_at=number(b"started_at") / 1000,
        lease_ends_at=lease_ends_at,
    )
