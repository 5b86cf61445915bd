"""A host: agents as its processes, each under a lease in the registry, for as long as both last.

::

    create   grant (Redis) ─> process ─> ready ─> started (Redis): found from here on
    exit     unasked: restarting ─> ready ─> started;  too often: crashed
    renew    kept | lost: another has it, stop ours | unwanted: stop it | forgotten: tell Redis again

Invariant: a copy runs only under a fence that was granted to this host, and one that the registry disowns is
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Conflict, InputError, NotFound, ProcessesFull, ProcessFailed
from holdfast.hosts.agent import Agent
from holdfast.hosts.health import Health
from holdfast.processes.info import EventKind, Status
from holdfast.processes.limits import Limits
from holdfast.redis.client import TROUBLE
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping

    from holdfast.config import HostSettings
    from holdfast.hosts.registry import Registry
    from holdfast.processes.info import AgentProcessInfo, ProcessEvent
    from holdfast.processes.processes import Processes
    from holdfast.telemetry.metrics import Metrics

_log = get_logger(__name__)


class Elsewhere(Conflict):
    """The agent lives on another host."""


class Copy(msgspec.Struct):
    """An agent that this host runs, or is about to."""

    agent: Agent
    fence: int
    since: float
    stopping: bool = False


class Host:
    """The agents of one host."""

    def __init__(
        self,
        name: str,
        address: str,
        registry: Registry,
        processes: Processes,
        settings: HostSettings,
        metrics: Metrics,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.registry = registry
        self.processes = processes
        self.settings = settings
        self.draining = False
        self.metrics = metrics
        self._labels = dict(labels or {})
        self.copies: dict[str, Copy] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._news: asyncio.Queue[ProcessEvent] = asyncio.Queue()
        self._calm_since = time.monotonic()
        self._health = Health(settings.health_seconds, settings.unhealthy_after)

    # -- what it is asked for

    async def create(self, agent: Agent, *, seen: int | None = None) -> tuple[AgentProcessInfo, int]:
        """Start an agent and return when it can receive, with its fence; again is the same agent."""
        if self.draining:
            raise ProcessesFull(f"host {self.name} leaves")
        async with self._turn(agent.agent_id):
            # Before it is granted: a grant that is given back raises the fence for nothing.
            if agent.agent_id not in self.copies and len(self.copies) >= self.settings.max_processes:
                raise ProcessesFull(f"host {self.name} is full ({len(self.copies)} agents)")
            if seen is None:
                await self.registry.want(agent)
            fence = await self._granted(agent, seen)
            copy = self.copies.get(agent.agent_id)
            known = self.processes.get(agent.agent_id)
            if copy is not None and copy.fence == fence and known is not None and known.is_alive:
                return known, fence
            with self.metrics.host_create_seconds.time():
                return await self._start(agent, fence), fence

    async def stop(
        self, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Stop an agent; one that moves is wanted elsewhere."""
        async with self._turn(agent_id):
            copy = self.copies.get(agent_id)
            if copy is None:
                raise NotFound(f"agent {agent_id} is not on host {self.name}")
            if not moving:
                await self.registry.unwant(agent_id)
            await self._end(copy, "moving" if moving else "stopped", timeout_seconds)

    def info(self, agent_id: str) -> tuple[Copy, AgentProcessInfo]:
        """An agent of this host and its process."""
        copy, process = self.copies.get(agent_id), self.processes.get(agent_id)
        if copy is None or process is None:
            raise NotFound(f"agent {agent_id} is not on host {self.name}")
        return copy, process

    def all(self) -> Iterable[tuple[Copy, AgentProcessInfo]]:
        """Every agent of this host that has a process."""
        for agent_id in tuple(self.copies):
            with contextlib.suppress(NotFound):
                yield self.info(agent_id)

    # -- what it does by itself

    async def watch(self) -> None:
        """Tell the registry what happens to processes, in the order it happens; until cancelled."""
        loop = asyncio.get_running_loop()

        def hear(event: ProcessEvent) -> None:
            loop.call_soon_threadsafe(self._news.put_nowait, event)

        leave = self.processes.subscribe(hear)
        try:
            while True:
                event = await self._news.get()
                if event.kind is not EventKind.REPORT:
                    await self._patiently(self._happened(event))
                elif event.report == "health":
                    self._health.heard(event.process.agent_id, event.data)
        finally:
            leave()

    async def renew(self) -> None:
        """Renew all leases, again and again, until cancelled."""
        while True:
            await self._patiently(self.renew_once())
            await asyncio.sleep(self.registry.ttl_seconds / 3)

    async def renew_once(self) -> None:
        """Renew all leases, and act on what the registry says of each."""
        copies = [copy for copy in self.copies.values() if not copy.stopping]
        held = [(copy.agent.agent_id, copy.fence) for copy in copies]
        words = await self.registry.renew(self.name, self.address, held)
        for copy, word in zip(copies, words, strict=True):
            if self.copies.get(copy.agent.agent_id) is copy and word != "kept":
                await self._correct(copy, word)

    async def nurse(self) -> None:
        """End agents that are not well, again and again, until cancelled: they are started anew then."""
        while self.settings.health_seconds > 0:
            await asyncio.sleep(self.settings.health_seconds / 2)
            for agent_id, why in self._health.unwell(time.monotonic()):
                _log.warning("an agent is not well and is started again", agent_id=agent_id, why=why)
                await asyncio.wrap_future(self.processes.crash(agent_id))

    @property
    def calm_seconds(self) -> float:
        """For how long Redis has answered without trouble."""
        return time.monotonic() - self._calm_since

    # -- how

    async def _granted(self, agent: Agent, seen: int | None) -> int:
        grant = await self.registry.grant(self.name, self.address, agent.agent_id, seen=seen)
        match grant.word:
            case "granted" | "mine":
                return grant.fence
            case "held":
                raise Elsewhere(f"agent {agent.agent_id} lives on host {grant.address}")
            case "stale":
                raise Conflict(f"agent {agent.agent_id} was placed anew since (fence {grant.fence})")
            case _:
                raise Conflict(f"agent {agent.agent_id} is not wanted any more")

    async def _start(self, agent: Agent, fence: int) -> AgentProcessInfo:
        agent_id = agent.agent_id
        copy = self.copies[agent_id] = Copy(agent, fence, time.time())
        try:
            process = await self._spawn(agent, fence)
        except ProcessesFull:
            await self._let_go(copy, "moving")
            raise
        except (ProcessFailed, InputError) as exc:
            await self._let_go(copy, "crashed", str(exc))
            raise
        except BaseException:
            # Whoever asked is gone: what may have been started is ended, and the agent is for the next host.
            await asyncio.shield(self._end(copy, "moving"))
            raise
        word = await self.registry.started(self.name, self.address, agent_id, fence, process.pid)
        if word == "kept":
            return process
        await self._end(copy, "stopped")
        raise Conflict(f"agent {agent_id} was {'stopped' if word == 'unwanted' else 'placed anew'} meanwhile")

    async def _spawn(self, agent: Agent, fence: int) -> AgentProcessInfo:
        payload: Any = msgspec.json.decode(agent.payload)
        megabytes = agent.needs.memory_mb or self.settings.memory_mb
        limits = Limits(memory_bytes=int(megabytes * 2**20)) if megabytes else Limits()
        labels = {**self._labels, "guild_id": agent.guild_id, "name": agent.name}
        return await self.processes.create(
            agent.agent_id, agent.entry, payload, fence=fence, limits=limits, labels=labels
        )

    async def _end(self, copy: Copy, status: str, timeout_seconds: float | None = None) -> None:
        """End a copy, then say so: nobody starts it elsewhere before."""
        copy.stopping = True
        await self.processes.end(copy.agent.agent_id, timeout_seconds)
        await self._let_go(copy, status)

    async def _let_go(self, copy: Copy, status: str, error: str = "") -> None:
        agent_id = copy.agent.agent_id
        if self.copies.get(agent_id) is copy:
            del self.copies[agent_id]
        await asyncio.wrap_future(self.processes.forget(agent_id))
        self.metrics.host_agents_ended.labels(status).inc()
        await self.registry.release(self.name, agent_id, copy.fence, status, error)

    async def _happened(self, event: ProcessEvent) -> None:
        process = event.process
        self._health.began(process.agent_id)
        copy = self.copies.get(process.agent_id)
        if copy is None or copy.stopping or copy.fence != process.fence:
            return
        if event.kind is EventKind.READY and process.restarts:
            await self.registry.started(self.name, self.address, process.agent_id, copy.fence, process.pid)
        elif process.status is Status.BACKING_OFF:
            self.metrics.host_restarts.inc()
            await self.registry.release(
                self.name, process.agent_id, copy.fence, "restarting", process.last_error
            )
        elif process.status is Status.CRASHED:
            _log.error("an agent crashed too often", agent_id=process.agent_id, error=process.last_error)
            await self._let_go(copy, "crashed", process.last_error)

    async def _correct(self, copy: Copy, word: str) -> None:
        agent_id = copy.agent.agent_id
        if word == "forgotten":
            await self.registry.want(copy.agent, fence=copy.fence)
            copy.fence = await self._granted(copy.agent, None)
            await self.registry.started(
                self.name, self.address, agent_id, copy.fence, self.info(agent_id)[1].pid
            )
            return
        self.metrics.host_disowned.labels(word).inc()
        _log.warning("a copy of an agent is stopped", agent_id=agent_id, fence=copy.fence, why=word)
        async with self._turn(agent_id):
            if self.copies.get(agent_id) is copy:
                await self._end(copy, "stopped")

    @contextlib.asynccontextmanager
    async def _turn(self, agent_id: str) -> AsyncGenerator[None]:
        """One thing at a time happens to an agent."""
        turn = self._turns.setdefault(agent_id, asyncio.Lock())
        async with turn:
            yield
        if agent_id not in self.copies and not turn.locked():
            self._turns.pop(agent_id, None)

    async def _patiently(self, what: Awaitable[None]) -> None:
        """What is done again soon may fail while Redis is away."""
        try:
            await what
        except TROUBLE as exc:
            self._calm_since = time.monotonic()
            _log.warning("the registry does not answer", error=str(exc))
