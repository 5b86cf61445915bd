"""A host: agents as its processes, each under a lease in the registry, for as long as both last.

::

    create   grant (Redis) ─> process ─> ready ─> started (Redis): found from here on
    exit     unasked: restarting ─> ready ─> started;  too often: crashed
    renew    kept | lost: another has it, stop ours | unwanted: stop it | forgotten: tell Redis again
    no renewal for ttl x 7/8: the zygote ends the process ─> waiting ─> renewed ─> process ─> ready ─> started

Invariant: a copy runs only under a fence that was granted to this host, and one that the registry disowns is
stopped. A process runs only while its lease is trusted: the zygote and the kernel end it by their clock,
whatever this process does, before another host can start the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import msgspec

from holdfast.clock import boot_time
from holdfast.errors import Conflict, InputError, NotAllowed, NotFound, ProcessesFull, ProcessFailed
from holdfast.hosts.agent import Agent
from holdfast.hosts.agent import Status as Placing
from holdfast.hosts.allotted import allotted
from holdfast.hosts.health import Health
from holdfast.hosts.measuring import MESSAGES, count_messages
from holdfast.hosts.placement import Host as Seen
from holdfast.processes.info import EventKind, Status
from holdfast.processes.limits import Limits
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping

    from holdfast.config import HostSettings
    from holdfast.hosts.registry import Registry
    from holdfast.processes.info import AgentProcessInfo, ProcessEvent
    from holdfast.processes.processes import Processes
    from holdfast.telemetry.metrics import Metrics

_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.02
"""How often a repeated call looks whether the restart of its agent is over."""

_log = get_logger(__name__)


class Elsewhere(Conflict):
    """The agent lives on another host."""


class Copy(msgspec.Struct):
    """An agent that this host runs, or is about to."""

    agent: Agent
    fence: int
    since: float
    until: float
    """How long its lease is trusted, by boot_time(): each renewal moves it, from when it was asked."""
    stopping: bool = False
    told: int = 0
    """The process that the registry knows of; another one is told with the next renewal at the latest."""
    created: bool = False
    """Whether it was ever ready: until then whoever creates it says what becomes of it."""


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
        self.changed = asyncio.Event()  # what it holds, so that others are told before the next heartbeat
        self.metrics = metrics
        self._labels = dict(labels or {})
        self.copies: dict[str, Copy] = {}
        # Weak: a lock lives while somebody has it or waits for it, and no longer.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # guard: agent-locks-weak
        self._news: asyncio.Queue[ProcessEvent] = asyncio.Queue()
        self._calm_since = time.monotonic()
        self._outages = redis_outages("leases of agents", "agents go on until their leases end")
        self._health = Health(settings.health_seconds, settings.unhealthy_after)

    # -- what it is asked for

    async def create(self, agent: Agent, *, seen: int | None = None) -> tuple[AgentProcessInfo, int]:
        """Start an agent and return when it can receive, with its fence; again is the same agent."""
        if self.draining:  # guard: draining-host-refuses
            raise ProcessesFull(f"host {self.name} leaves")
        async with self._turn(agent.agent_id):
            # Before it is granted: a grant that is given back raises the fence for nothing.
            # guard: full-host-refuses
            if agent.agent_id not in self.copies and len(self.copies) >= self.settings.max_processes:
                raise ProcessesFull(f"host {self.name} is full ({len(self.copies)} agents)")
            asked_for_here = seen is None and await self._want(agent)
            try:
                granted = await self._granted(agent, seen)
                known = await self._running_already(granted)
                if known is not None:
                    return known, granted.fence
                began = time.monotonic()
                process = await self._start(granted)
            except (InputError, NotAllowed, ProcessFailed):
                # guard: refused-agent-unwanted
                if asked_for_here:  # and by nobody else: its caller is told, and nobody need try it again
                    await self.registry.unwant(agent.agent_id)
                raise
            guild = self.metrics.guild_label(agent.guild_id)
            self.metrics.host_create_seconds.labels(guild).observe(time.monotonic() - began)
            return process, granted.fence

    async def stop(
        self, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Stop an agent; one that moves is wanted elsewhere."""
        # Whoever asked may be gone before the end, as an agent that stops itself is: it is told all the same.
        await asyncio.shield(self._stop(agent_id, timeout_seconds, moving=moving))

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

    def seen(self) -> Seen:
        """Return this host as others see it who look for one."""
        needs = [copy.agent.needs for copy in self.copies.values()]
        may_use = allotted()
        return Seen(
            name=self.name,
            address=self.address,
            agents=len(self.copies),
            capacity=self.settings.max_processes,
            cpu=may_use.cpus - sum(each.cpu for each in needs),
            memory_mb=may_use.memory_bytes / 2**20 - sum(each.memory_mb for each in needs),
            labels=self.settings.labels,
            holds=tuple(sorted({label for each in needs for label in each.labels})),
            draining=self.draining,
        )

    # -- what it does by itself

    async def watch(self) -> None:
        """Tell the registry what happens to processes, in the order it happens; until cancelled."""
        loop = asyncio.get_running_loop()

        def hear(event: ProcessEvent) -> None:
            loop.call_soon_threadsafe(self._hear, event)

        leave = self.processes.subscribe(hear)
        try:
            while True:
                await self._patiently(self._happened(await self._news.get()))
        finally:
            leave()

    async def renew(self, at_least_every: float = float("inf")) -> None:
        """Renew all leases, again and again, until cancelled; the end of a slow agent holds up no renewal."""
        async with asyncio.TaskGroup() as corrections:

            async def once() -> None:
                for copy, word in await self.renew_once():
                    # guard: agent-ends-concurrently
                    corrections.create_task(self._patiently(self._correct(copy, word)))

            every = min(self.registry.ttl_seconds / 3, at_least_every)
            while True:
                renewed = await self._patiently(once())
                # After a failure again soon: agents end when no renewal succeeds in time.
                await asyncio.sleep(every if renewed else min(every, _RETRY_SECONDS))

    async def renew_once(self) -> list[tuple[Copy, str]]:
        """Renew all leases; returns the copies that something must be done about, and the registry's word."""
        # Also of those that are being stopped: nobody else may start them before they have ended.
        copies = list(self.copies.values())  # guard: renew-stopping-agents
        waiting = {copy.agent.agent_id for copy in copies if self._waits_untold(copy)}
        held = [(copy.agent.agent_id, copy.fence) for copy in copies]
        until = self._trusted_from_now()
        words = await self.registry.renew(self.name, self.address, held)
        for copy, word in zip(copies, words, strict=True):
            if word in {"kept", "unwanted"}:
                copy.until = max(copy.until, until)  # guard: trust-from-asking
        self.processes.keep()  # guard: renewals-reach-zygote
        found: list[tuple[Copy, str]] = []
        for copy, word in zip(copies, words, strict=True):
            if copy.stopping:
                continue
            if word == "kept" and copy.agent.agent_id in waiting:
                found.append((copy, "waiting"))
            elif word != "kept" or self._untold(copy) is not None:  # guard: untold-status-retried
                found.append((copy, word))
        return found

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

    def disturbed(self) -> None:
        """Note that Redis did not answer, or that this process stood still: others may have too."""
        self._calm_since = time.monotonic()

    # -- how

    def _hear(self, event: ProcessEvent) -> None:
        # Reports are heard at once: news wait for Redis, and who is well must not seem silent meanwhile.
        if event.kind is not EventKind.REPORT:
            self._health.began(event.process.agent_id)
            self._news.put_nowait(event)
        elif event.report == "health":
            self._health.heard(event.process.agent_id, event.data)
        elif event.report == MESSAGES:
            count_messages(self.metrics, event.process.labels.get("name", ""), event.data)

    async def _want(self, agent: Agent) -> bool:
        wanted = await self.registry.want(agent)
        if wanted.status is Placing.STOPPING:
            raise Conflict(f"agent {agent.agent_id} is being stopped: ask again when it has ended")
        return wanted.new

    def _trusted_from_now(self) -> float:
        """Until when a lease is trusted that Redis is asked for now."""
        return boot_time() + self.settings.trust_seconds

    async def _running_already(self, granted: Copy) -> AgentProcessInfo | None:
        """The copy that a repeated call asks for; one that is being restarted is waited for."""
        agent_id = granted.agent.agent_id
        copy = self.copies.get(agent_id)
        if copy is not None and copy.fence == granted.fence:
            # The grant has renewed its lease, too: one that waits for its lease starts now.
            copy.until = max(copy.until, granted.until)  # guard: repeated-grant-renews
            self.processes.keep()
        while copy is not None and copy.fence == granted.fence and self.copies.get(agent_id) is copy:
            process = self.processes.get(agent_id)
            if process is None or process.status.ended:
                return None
            # guard: repeated-create-ends-with-lease
            if process.status is Status.WAITING and boot_time() >= copy.until:
                raise Conflict(f"agent {agent_id} waits for its lease, which Redis did not renew: ask again")
            if process.status is Status.RUNNING:  # guard: report-running-only
                await self._tell(copy, process)
                return process
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def _granted(self, agent: Agent, seen: int | None) -> Copy:
        until = self._trusted_from_now()
        grant = await self.registry.grant(self.name, self.address, agent.agent_id, seen=seen)
        match grant.word:
            case "granted" | "mine":
                return Copy(agent, grant.fence, time.time(), until)
            case "held":
                raise Elsewhere(f"agent {agent.agent_id} runs on host {grant.address}")
            case "stale":
                raise Conflict(f"agent {agent.agent_id} was placed anew since (fence {grant.fence})")
            case _:
                raise Conflict(f"agent {agent.agent_id} is not wanted any more")

    async def _start(self, copy: Copy) -> AgentProcessInfo:
        agent_id, fence = copy.agent.agent_id, copy.fence
        # guard: draining-host-returns-grant
        if self.draining:  # since it was granted; from here on those who move all agents see it
            await self.registry.release(self.name, agent_id, fence, "moving")
            raise ProcessesFull(f"host {self.name} leaves")
        self.copies[agent_id] = copy
        self.changed.set()
        try:
            process = await self._spawn(copy)
        except ProcessesFull:
            await self._let_go(copy, "moving")
            raise
        except (ProcessFailed, InputError) as exc:
            await self._let_go(copy, "crashed", str(exc))
            raise
        except BaseException:
            # Whoever asked is gone: what may have been started is ended, and the agent is for the next host.
            await asyncio.shield(self._end(copy, "moving"))  # guard: abandoned-start-ended
            raise
        copy.created = True
        if not self._lives(agent_id):  # it was ready, and has ended for good since
            await self._let_go(copy, "crashed", process.last_error)
            raise ProcessFailed(f"agent {agent_id!r} ended as soon as it was ready")
        word = await self._tell(copy, process)
        if word == "kept":  # guard: start-of-unwanted-ended
            return process
        await self._end(copy, "stopped")
        raise Conflict(f"agent {agent_id} was {'stopped' if word == 'unwanted' else 'placed anew'} meanwhile")

    async def _spawn(self, copy: Copy) -> AgentProcessInfo:
        agent = copy.agent
        try:
            payload: Any = msgspec.json.decode(agent.payload)
        except RecursionError as exc:  # guard: deep-document-refused
            raise InputError(f"agent {agent.agent_id}: its documents are nested too deeply") from exc
        # Who asks for an agent may ask for less than the operator allows, not for more.
        bounds = [each for each in (agent.needs.memory_mb, self.settings.memory_mb) if each]
        megabytes = min(bounds, default=0)  # guard: memory-limit-of-operator
        memory = int(megabytes * 2**20)
        if megabytes and not memory:
            raise InputError(f"agent {agent.agent_id}: needs.memory_mb is {megabytes:g}, less than a byte")
        limits = Limits(memory_bytes=memory or None, nice=self.settings.nice or None)  # guard: agent-niceness
        labels = {**self._labels, "guild_id": agent.guild_id, "name": agent.name}
        return await self.processes.create(
            agent.agent_id,
            agent.entry,
            payload,
            fence=copy.fence,
            limits=limits,
            labels=labels,
            until=lambda: copy.until,  # guard: agent-ends-with-lease
        )

    def _untold(self, copy: Copy) -> AgentProcessInfo | None:
        """The process of a copy that runs, but that the registry has not heard of: Redis was away then."""
        process = self.processes.get(copy.agent.agent_id)
        if process is None or process.status is not Status.RUNNING:
            return None
        return process if process.fence == copy.fence and process.pid != copy.told else None

    async def _tell(self, copy: Copy, process: AgentProcessInfo) -> str:
        word = await self.registry.started(
            self.name, self.address, copy.agent.agent_id, copy.fence, process.pid
        )
        if word == "kept":
            copy.told = process.pid
        return word

    def _waits_untold(self, copy: Copy) -> bool:
        """Whether the end of its lease has ended an agent that the registry still calls running."""
        process = self.processes.get(copy.agent.agent_id)
        return bool(copy.told) and process is not None and process.status is Status.WAITING

    async def _tell_waiting(self, copy: Copy) -> None:
        """Have nobody find an agent that the end of its lease has ended, until it runs again."""
        process = self.processes.get(copy.agent.agent_id)
        error = process.last_error if process is not None else ""
        await self.registry.release(self.name, copy.agent.agent_id, copy.fence, "waiting", error)
        copy.told = 0

    async def _stop(self, agent_id: str, timeout_seconds: float | None, *, moving: bool) -> None:
        async with self._turn(agent_id):
            copy = self.copies.get(agent_id)
            if copy is None:
                raise NotFound(f"agent {agent_id} is not on host {self.name}")
            if not moving:
                await self.registry.unwant(agent_id)
            await self._end(copy, "moving" if moving else "stopped", timeout_seconds)

    async def _end(self, copy: Copy, status: str, timeout_seconds: float | None = None) -> None:
        """End a copy, then say so: nobody starts it elsewhere before."""
        copy.stopping = True
        await self.processes.end(copy.agent.agent_id, timeout_seconds)  # guard: end-before-release
        await self._let_go(copy, status)

    async def _let_go(self, copy: Copy, status: str, error: str = "") -> None:
        agent_id = copy.agent.agent_id
        if self.copies.get(agent_id) is copy:
            del self.copies[agent_id]
            self.changed.set()
        await asyncio.wrap_future(self.processes.forget(agent_id))
        self.metrics.host_agents_ended.labels(status).inc()
        await self.registry.release(self.name, agent_id, copy.fence, status, error)

    async def _happened(self, event: ProcessEvent) -> None:
        process = event.process
        copy = self.copies.get(process.agent_id)
        if copy is None or copy.stopping or copy.fence != process.fence:  # guard: event-of-own-fence
            return
        if event.kind is EventKind.READY and process.restarts:
            await self._tell(copy, process)
        elif process.status is Status.WAITING:
            self.metrics.host_lease_ends.inc()  # the registry is told with the next renewal
        elif process.status is Status.BACKING_OFF:
            self.metrics.host_restarts.inc()
            await self.registry.release(
                self.name, process.agent_id, copy.fence, "restarting", process.last_error
            )
        # guard: crash-of-live-copy
        elif process.status is Status.CRASHED and copy.created and not self._lives(process.agent_id):
            _log.error("an agent crashed too often", agent_id=process.agent_id, error=process.last_error)
            await self._let_go(copy, "crashed", process.last_error)

    async def _correct(self, copy: Copy, word: str) -> None:
        agent_id = copy.agent.agent_id
        async with self._turn(agent_id):
            if self.copies.get(agent_id) is not copy or copy.stopping:
                return
            if word == "forgotten" and await self._regained(copy):  # guard: forgotten-agent-regained
                word = "kept"
            if word == "waiting":
                await self._tell_waiting(copy)
                word = "kept"
            if word == "kept":
                process = self._untold(copy)
                if process is not None:
                    await self._tell(copy, process)
                return
            self.metrics.host_disowned.labels(word).inc()
            _log.warning("a copy of an agent is stopped", agent_id=agent_id, fence=copy.fence, why=word)
            await self._end(copy, "stopped")  # guard: lost-agent-ended

    async def _regained(self, copy: Copy) -> bool:
        """Tell a Redis that has lost an agent of it again; False if it has another host by now."""
        before = copy.fence - 1
        await self.registry.want(copy.agent, fence=before)
        grant = await self.registry.grant(self.name, self.address, copy.agent.agent_id, seen=before)
        copy.told = 0
        return grant.given and grant.fence == copy.fence  # guard: regained-fence

    def _lives(self, agent_id: str) -> bool:
        """Whether it was started again since it crashed."""
        process = self.processes.get(agent_id)
        return process is not None and not process.status.ended

    @contextlib.asynccontextmanager
    async def _turn(self, agent_id: str) -> AsyncGenerator[None]:
        """One thing at a time happens to an agent."""
        turn = self._turns.setdefault(agent_id, asyncio.Lock())
        async with turn:  # guard: agent-lock
            yield

    async def _patiently(self, what: Awaitable[None]) -> bool:
        """What is done again soon may fail while Redis is away; False if it has."""
        try:
            with self._outages:
                await what
        except TROUBLE as exc:
            self.disturbed()
            self.metrics.redis_errors.labels(type(exc).__name__).inc()
            if not isinstance(exc, DISCONNECTS):
                _log.error("the registry refuses a call: is a key of it damaged?", error=str(exc))
            return False
        return True
