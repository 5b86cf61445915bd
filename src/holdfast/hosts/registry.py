"""Which host has which agent, as leases in Redis: the wanted agents, their locations and their fences.

Invariant: an agent has one host at a time. A host whose lease ended, because it was frozen, learns this from
its next renewal and changes nothing before.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.hosts.agent import Agent, AgentStatus, Needs, Placed
from holdfast.leases.lease import RenewalReply, renewal_args
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
"""How long the record of a stopped agent is kept."""


class WantReply(msgspec.Struct, frozen=True):
    """The reply to ``want``: whether the agent is new, and its record."""

    new: bool
    fence: int
    status: AgentStatus
    address: str


class Grant(msgspec.Struct, frozen=True):
    """The reply to ``grant``: granted, mine, held, stale, unwanted or unknown."""

    word: str
    fence: int
    address: str

    @property
    def given(self) -> bool:
        """Whether the host has the agent now."""
        return self.word in {"granted", "mine"}


class Stopping(msgspec.Struct, frozen=True):
    """The reply to ``unwant``: unknown, stopped, or stopping at its host."""

    word: str
    host: str
    address: str
    fence: int


class Homeless(msgspec.Struct, frozen=True):
    """A reclaimed agent, which the caller may place now."""

    agent_id: str
    fence: int
    host: str
    """Its last host."""


class AgentLeases:
    """The agents of one host as leases, for the keeper; an agent that is to be stopped keeps its lease."""

    kind = "agent"

    def __init__(self, keys: Sequence[str], host: str, address: str, ttl_ms: int) -> None:
        self._keys = keys
        self._host = [host, address, ttl_ms]

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[RenewalReply]:
        """Renew the leases of the host, also expired ones that no other host has reclaimed."""
        words = await _RENEW(redis, self._keys, [*self._host, *renewal_args(leases)])
        return [_STANDINGS[word] for word in words]


_STANDINGS: Final = {
    b"kept": RenewalReply.KEPT,
    b"unwanted": RenewalReply.STOP,
    b"lost": RenewalReply.LOST,
    b"forgotten": RenewalReply.FORGOTTEN,
}


class AgentRegistry:
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

    # -- wanted agents

    async def want(self, agent: Agent, *, fence: int | None = None) -> WantReply:
        """Record that an agent should run; ``fence`` is the last known one if Redis has lost the agent."""
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
        return WantReply(word == b"new", int(seen), AgentStatus(status.decode()), address.decode())

    async def unwant(self, agent_id: str) -> Stopping:
        """Record that an agent should not run any more; it has no location from here on."""
        word, host, address, fence = await _UNWANT(self.redis, self._keys, [agent_id, _KEEP_MS])
        return Stopping(word.decode(), host.decode(), address.decode(), int(fence))

    async def reclaim(self, limit: int = 100, *, only: Literal["", "bound", "free"] = "") -> list[Homeless]:
        """Reclaim agents of dead hosts, each for one caller; agents that are bound to their host are removed.

        ``bound`` only handles agents that are bound to their host, ``free`` only agents without a host.
        """
        args = [limit, self._placing_ms, _KEEP_MS, only]
        row: list[bytes] = await _RECLAIM(self.redis, self._keys, args)
        return [
            Homeless(agent_id.decode(), int(fence), host.decode())
            for agent_id, fence, host in zip(row[::3], row[1::3], row[2::3], strict=True)
        ]

    # -- reports of hosts

    async def grant(self, host: str, address: str, agent_id: str, *, seen: int | None = None) -> Grant:
        """Grant an agent to a host; ``seen`` is the fence under which the caller placed it."""
        args = [host, address, self._ttl_ms, agent_id, "" if seen is None else seen]
        word, fence, at = await _GRANT(self.redis, self._keys, args)
        return Grant(word.decode(), int(fence), at.decode())

    async def started(self, host: str, address: str, agent_id: str, fence: int, pid: int) -> str:
        """Record that an agent runs; return kept, lost or unwanted."""
        args = [host, address, self._ttl_ms, agent_id, fence, pid]
        return (await _STARTED(self.redis, self._keys, args)).decode()

    def leases(self, host: str, address: str) -> AgentLeases:
        """Return the leases of a host, for its keeper."""
        return AgentLeases(self._keys, host, address, self._ttl_ms)

    async def release(self, host: str, agent_id: str, fence: int, status: str, error: str = "") -> bool:
        """Release an agent: stopped, crashed, moving; restarting and waiting only change its status."""
        args = [host, agent_id, fence, status, error[-4000:], _KEEP_MS, self._placing_ms]
        return await _RELEASE(self.redis, self._keys, args) == b"released"

    async def unplaced(self, agent_id: str, fence: int) -> None:
        """Record that no host was found for a moving agent: the next caller may place it at once."""
        await _RELEASE(self.redis, self._keys, ["", agent_id, fence, "moving", "", _KEEP_MS, 0])

    # -- locations

    async def answers(self) -> None:
        """Check that Redis responds; raises if it does not."""
        await command(self.redis, "ZCARD", self.keys.leases)

    async def location(self, agent_id: str) -> str | None:
        """Return the address of the host that runs an agent; one GET."""
        found = await self._measured(command(self.redis, "GET", self.keys.location_prefix + agent_id))
        return found.decode() if found else None

    async def get(self, agent_id: str) -> Placed | None:
        """Return an agent and its location."""
        return await self._measured(self._read(agent_id))

    async def _read(self, agent_id: str) -> Placed | None:
        reads = (("HGETALL", self.keys.record_prefix + agent_id), ("ZSCORE", self.keys.leases, agent_id))
        fields, lease_end_ms = await commands(self.redis, reads)
        return _placed(agent_id, fields, float(lease_end_ms or 0) / 1000) if b"fence" in fields else None

    async def fence(self, agent_id: str) -> int:
        """Return the highest fence that an agent was granted under; 0 if there is no such agent."""
        return int(await command(self.redis, "HGET", self.keys.record_prefix + agent_id, "fence") or 0)

    async def all(self, *, guild_id: str | None = None, prefix: str = "") -> AsyncIterator[Placed]:
        """Yield every wanted agent, oldest first; only agents whose id has the prefix are read."""
        # All ids at once: with pages, an agent that is stopped meanwhile would make another one be skipped.
        for raw in await command(self.redis, "ZRANGE", self.keys.index, 0, -1):
            agent_id: str = raw.decode()
            placed = await self.get(agent_id) if agent_id.startswith(prefix) else None
            if placed is not None and guild_id in {None, placed.agent.guild_id}:
                yield placed

    async def page(self, since_ms: int, after: str, limit: int) -> list[Placed]:
        """Return wanted agents, oldest first, after the one with that creation time and id."""
        found: list[Placed] = []
        first = 0
        while len(found) < limit:
            span = (since_ms, "+inf", "BYSCORE", "LIMIT", first, limit)
            ids: list[bytes] = await command(self.redis, "ZRANGE", self.keys.index, *span)
            first += len(ids)
            page = await asyncio.gather(*(self.get(raw.decode()) for raw in ids))
            # Agents with one creation time are in the order of their ids.
            found += [
                placed
                for placed in page
                if placed and (round(placed.created_at * 1000), placed.agent.agent_id) > (since_ms, after)
            ]
            if len(ids) < limit:
                break
        return found[:limit]

    async def on_host(self, host: str) -> list[str]:
        """Return the ids of the agents that run on a host."""
        found: set[bytes] = await command(self.redis, "SMEMBERS", self.keys.host_prefix + host)
        return sorted(raw.decode() for raw in found)

    async def turn(self) -> int:
        """Return the next number of round-robin placement."""
        return int(await command(self.redis, "INCR", self.keys.counter))

    async def _measured(self, lookup: Awaitable[Any]) -> Any:
        """Count and time the lookup of one agent."""
        if self._metrics is None:
            return await lookup
        began, status = time.perf_counter(), "failed"
        try:
            found = await lookup
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
        status=AgentStatus(text(b"status")),
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
