"""A host: agents as its processes, each under a lease in the registry, for as long as both last.

::

    create   grant (Redis) ─> process ─> ready ─> started (Redis): it has a location from now on
    exit     unexpected: restarting ─> ready ─> started;  too often: crashed
    renewal  kept | lost: another host has it, stop ours | stop: it is unwanted | forgotten: register it again
    no renewal for ttl x 7/8: the zygote kills it ─> waiting ─> renewed ─> process ─> ready ─> started

Invariant: a copy runs only under a fence that was granted to this host, and a copy that the registry disowns
is stopped. A process runs only while its lease is trusted: the zygote and the kernel kill it by their clock,
independently of this process, before another host can start the agent.

The keeper renews from its own thread and sends each new end of a lease to the zygote from there. So a blocked
event loop ends no agent: this host keeps the leases, and no other host can start a second copy. The result of
a renewal (lost, stop, forgotten) is handled by the loop; a lost or forgotten lease is not extended meanwhile,
and the zygote kills its process when the last renewal is not trusted any more, without the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import msgspec

from holdfast.clock import boot_time
from holdfast.errors import Conflict, InputError, NotAllowed, NotFound, ProcessesFull, ProcessFailed
from holdfast.hosts.agent import Agent
from holdfast.hosts.agent import AgentStatus as Placing
from holdfast.hosts.container_limits import allotted
from holdfast.hosts.health import AgentHealth
from holdfast.hosts.host_metrics import MESSAGES, count_messages
from holdfast.hosts.placement import HostLoad as Seen
from holdfast.leases.keeper import Hold
from holdfast.leases.lease import Lease, RenewalReply
from holdfast.processes.info import EventKind, ProcessStatus
from holdfast.processes.limits import Limits
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping

    from holdfast.config import HostSettings
    from holdfast.hosts.registry import AgentRegistry
    from holdfast.leases.keeper import Keeper
    from holdfast.processes.info import AgentProcessInfo, ProcessEvent
    from holdfast.processes.processes import Processes
    from holdfast.telemetry.metrics import Metrics

_DISOWNED: Final = {
    RenewalReply.STOP: "unwanted",
    RenewalReply.LOST: "lost",
    RenewalReply.FORGOTTEN: "forgotten",
}
"""Why a copy is stopped, as metrics and logs name it."""
_POLL_SECONDS: Final = 0.02
"""How often a repeated call polls for the end of its agent's restart."""

_log = get_logger(__name__)


class Elsewhere(Conflict):
    """The agent runs on another host."""


class Copy(msgspec.Struct):
    """An agent that this host runs, or is about to."""

    agent: Agent
    fence: int
    since: float
    hold: Hold
    """Its lease; ``hold.until`` is the end of its process, and each renewal moves it."""
    standing: RenewalReply = RenewalReply.KEPT
    """The result of the last renewal that is not handled yet."""
    lease_ended: bool = False
    """Whether its process ended with the lease while its status in the registry is still running."""
    stopping: bool = False
    reported_pid: int = 0
    """The pid that the registry has; a new one is reported after the next renewal."""
    created: bool = False
    """Whether it was ever ready: until then the call that creates it handles its failure."""


class Host:
    """The agents of one host."""

    def __init__(
        self,
        name: str,
        address: str,
        registry: AgentRegistry,
        processes: Processes,
        keeper: Keeper,
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
        self.changed = asyncio.Event()  # its agents have changed: send a heartbeat now
        self.metrics = metrics
        self._labels = dict(labels or {})
        self._keeper = keeper
        keeper.after_call = self._after_renewal
        self._leases = registry.leases(name, address)
        self._to_correct: asyncio.Queue[Copy] = asyncio.Queue()
        self.copies: dict[str, Copy] = {}
        # Weak: a lock exists only while a task holds it or waits for it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # guard: agent-locks-weak
        self._events: asyncio.Queue[ProcessEvent] = asyncio.Queue()
        self._undisturbed_since = time.monotonic()
        self._outages = redis_outages("reports on agents to the registry", "agents go on")
        self._health = AgentHealth(settings.health_seconds, settings.unhealthy_after)

    # -- calls

    async def create(self, agent: Agent, *, seen: int | None = None) -> tuple[AgentProcessInfo, int]:
        """Start an agent and return when it is ready, with its fence; repeating it returns the same agent."""
        if self.draining:  # guard: draining-host-refuses
            raise ProcessesFull(f"host {self.name} is draining")
        async with self._turn(agent.agent_id):
            # Before the grant: a grant that is released raises the fence for nothing.
            # guard: full-host-refuses
            if agent.agent_id not in self.copies and len(self.copies) >= self.settings.max_processes:
                raise ProcessesFull(f"host {self.name} is full ({len(self.copies)} agents)")
            wanted_here = seen is None and await self._want(agent)
            try:
                requested_at = boot_time()
                fence = await self._granted(agent, seen)
                known = await self._running_already(agent.agent_id, fence, requested_at)
                if known is not None:
                    return known, fence
                began = time.monotonic()
                process = await self._start(agent, fence, requested_at)
            except (InputError, NotAllowed, ProcessFailed):
                # guard: refused-agent-unwanted
                if wanted_here:  # the caller gets the error, and no host should try again
                    await self.registry.unwant(agent.agent_id)
                raise
            guild = self.metrics.guild_label(agent.guild_id)
            self.metrics.host_create_seconds.labels(guild).observe(time.monotonic() - began)
            return process, fence

    async def stop(
        self, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Stop an agent; with ``moving`` it stays wanted, for another host."""
        # The caller may end first, as an agent that stops itself does: the registry is updated regardless.
        await asyncio.shield(self._stop(agent_id, timeout_seconds, moving=moving))

    def info(self, agent_id: str) -> tuple[Copy, AgentProcessInfo]:
        """Return an agent of this host and its process."""
        copy, process = self.copies.get(agent_id), self.processes.get(agent_id)
        if copy is None or process is None:
            raise NotFound(f"agent {agent_id} is not on host {self.name}")
        return copy, process

    def all(self) -> Iterable[tuple[Copy, AgentProcessInfo]]:
        """Yield every agent of this host that has a process."""
        for agent_id in tuple(self.copies):
            with contextlib.suppress(NotFound):
                yield self.info(agent_id)

    def seen(self) -> Seen:
        """Return this host as its heartbeat describes it."""
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

    # -- background tasks

    async def watch(self) -> None:
        """Report events of processes to the registry in their order, until cancelled."""
        loop = asyncio.get_running_loop()

        def on_event(event: ProcessEvent) -> None:
            loop.call_soon_threadsafe(self._on_event, event)

        unsubscribe = self.processes.subscribe(on_event)
        try:
            while True:
                await self._tolerate_outages(self._handle(await self._events.get()))
        finally:
            unsubscribe()

    async def renew(self) -> None:
        """Renew all leases, and handle the results of the renewals, until cancelled."""
        async with self._keeper, asyncio.TaskGroup() as group:
            group.create_task(self._keeper.watch())
            while True:
                copy = await self._to_correct.get()
                # guard: agent-ends-concurrently
                group.create_task(self._tolerate_outages(self._correct(copy)))

    async def nurse(self) -> None:
        """Kill unhealthy agents, which restarts them, until cancelled."""
        while self.settings.health_seconds > 0:
            await asyncio.sleep(self.settings.health_seconds / 2)
            for agent_id, why in self._health.unwell(time.monotonic()):
                _log.warning("resident unresponsive, restarting", agent_id=agent_id, why=why)
                await asyncio.wrap_future(self.processes.crash(agent_id))

    @property
    def calm_seconds(self) -> float:
        """How long Redis has responded without an error."""
        return time.monotonic() - self._undisturbed_since

    def disturbed(self) -> None:
        """Note that Redis failed, or that this process was frozen: other hosts may have been affected too."""
        self._undisturbed_since = time.monotonic()

    # -- steps

    def _on_event(self, event: ProcessEvent) -> None:
        # Health reports are recorded at once: other events wait for Redis, and an outage of it must not make
        # a healthy agent look unresponsive.
        if event.kind is not EventKind.REPORT:
            if event.process.status is ProcessStatus.WAITING:
                self._lease_ended(event.process)
            self._health.began(event.process.agent_id)
            self._events.put_nowait(event)
        elif event.report == "health":
            self._health.heard(event.process.agent_id, event.data)
        elif event.report == MESSAGES:
            count_messages(self.metrics, event.process.labels.get("name", ""), event.data)

    def _lease_ended(self, process: AgentProcessInfo) -> None:
        copy = self.copies.get(process.agent_id)
        if copy is not None and copy.fence == process.fence and copy.reported_pid:
            copy.lease_ended = True

    async def _want(self, agent: Agent) -> bool:
        wanted = await self.registry.want(agent)
        if wanted.status is Placing.STOPPING:
            raise Conflict(f"agent {agent.agent_id} is being stopped: start it again when it has ended")
        return wanted.new

    async def _running_already(
        self, agent_id: str, fence: int, requested_at: float
    ) -> AgentProcessInfo | None:
        """Return the copy of a repeated call, after its restart if it is being restarted."""
        copy = self.copies.get(agent_id)
        if copy is not None and copy.fence == fence:
            # The grant has renewed the lease too: a copy that waits for its lease starts now.
            copy.hold.renewed(requested_at)  # guard: repeated-grant-renews
            self.processes.keep()
        while copy is not None and copy.fence == fence and self.copies.get(agent_id) is copy:
            process = self.processes.get(agent_id)
            if process is None or process.status.ended:
                return None
            # guard: repeated-create-ends-with-lease
            if process.status is ProcessStatus.WAITING and boot_time() >= copy.hold.until:
                raise Conflict(f"agent {agent_id} waits for its lease, which Redis did not renew: try again")
            if process.status is ProcessStatus.RUNNING:  # guard: report-running-only
                await self._report_started(copy, process)
                return process
            await asyncio.sleep(_POLL_SECONDS)
        return None

    async def _granted(self, agent: Agent, seen: int | None) -> int:
        """Request a grant of an agent from the registry; return its fence."""
        grant = await self.registry.grant(self.name, self.address, agent.agent_id, seen=seen)
        match grant.word:
            case "granted" | "mine":
                return grant.fence
            case "held":
                raise Elsewhere(f"agent {agent.agent_id} runs on host {grant.address}")
            case "stale":
                raise Conflict(f"agent {agent.agent_id} was placed anew since (fence {grant.fence})")
            case _:
                raise Conflict(f"agent {agent.agent_id} is not wanted any more")

    async def _start(self, agent: Agent, fence: int, requested_at: float) -> AgentProcessInfo:
        agent_id = agent.agent_id
        # guard: draining-host-returns-grant
        if self.draining:  # since the grant; from here on the drain finds the copy and moves it
            await self.registry.release(self.name, agent_id, fence, "moving")
            raise ProcessesFull(f"host {self.name} is draining")
        copy = self.copies[agent_id] = self._keep(agent, fence, requested_at)
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
            # The call was cancelled: the process is stopped, and the agent is left to the next host.
            await asyncio.shield(self._end(copy, "moving"))  # guard: abandoned-start-ended
            raise
        copy.created = True
        if not self._lives(agent_id):  # it was ready, and has ended for good since
            await self._let_go(copy, "crashed", process.last_error)
            raise ProcessFailed(f"agent {agent_id!r} ended as soon as it was ready")
        word = await self._report_started(copy, process)
        if word == "kept":  # guard: start-of-unwanted-ended
            return process
        await self._end(copy, "stopped")
        raise Conflict(f"agent {agent_id} was {'stopped' if word == 'unwanted' else 'placed anew'} meanwhile")

    def _keep(self, agent: Agent, fence: int, requested_at: float) -> Copy:
        """Start to renew the lease of an agent, until its process has ended."""
        lease = Lease(agent.agent_id, self.name, fence)
        copy = Copy(
            agent, fence, time.time(), self._keeper.hold(self._leases, lease, granted_at=requested_at)
        )
        copy.hold.on_standing = partial(self._renewed, copy)
        return copy

    def _after_renewal(self, succeeded: bool) -> None:
        """Send the new ends of leases to the zygote, on the keeper's thread: the loop may be blocked."""
        if succeeded:
            self.processes.keep()  # guard: renewals-reach-zygote
        else:
            self.disturbed()

    def _renewed(self, copy: Copy, standing: RenewalReply) -> None:
        copy.standing = standing
        reported = not copy.lease_ended and self._unreported(copy) is None  # guard: untold-status-retried
        if not copy.stopping and not (standing is RenewalReply.KEPT and reported):
            self._to_correct.put_nowait(copy)

    async def _spawn(self, copy: Copy) -> AgentProcessInfo:
        agent = copy.agent
        try:
            payload: Any = msgspec.json.decode(agent.payload)
        except RecursionError as exc:  # guard: deep-document-refused
            raise InputError(f"agent {agent.agent_id}: its documents are nested too deeply") from exc
        # A caller may request less memory than the operator allows, not more.
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
            until=lambda: copy.hold.until,  # guard: agent-ends-with-lease
        )

    def _unreported(self, copy: Copy) -> AgentProcessInfo | None:
        """Return the running process of a copy that the registry does not have yet, as after an outage."""
        process = self.processes.get(copy.agent.agent_id)
        if process is None or process.status is not ProcessStatus.RUNNING:
            return None
        return process if process.fence == copy.fence and process.pid != copy.reported_pid else None

    async def _report_started(self, copy: Copy, process: AgentProcessInfo) -> str:
        word = await self.registry.started(
            self.name, self.address, copy.agent.agent_id, copy.fence, process.pid
        )
        if word == "kept":
            copy.reported_pid = process.pid
        return word

    async def _report_waiting(self, copy: Copy) -> None:
        """Remove the location of an agent whose process ended with its lease, until it runs again."""
        process = self.processes.get(copy.agent.agent_id)
        error = process.last_error if process is not None else ""
        await self.registry.release(self.name, copy.agent.agent_id, copy.fence, "waiting", error)
        copy.reported_pid, copy.lease_ended = 0, False

    async def _stop(self, agent_id: str, timeout_seconds: float | None, *, moving: bool) -> None:
        async with self._turn(agent_id):
            copy = self.copies.get(agent_id)
            if copy is None:
                raise NotFound(f"agent {agent_id} is not on host {self.name}")
            if not moving:
                await self.registry.unwant(agent_id)
            await self._end(copy, "moving" if moving else "stopped", timeout_seconds)

    async def _end(self, copy: Copy, status: str, timeout_seconds: float | None = None) -> None:
        """Stop a copy, then release it: no other host starts the agent before."""
        copy.stopping = True
        await self.processes.end(copy.agent.agent_id, timeout_seconds)  # guard: end-before-release
        await self._let_go(copy, status)

    async def _let_go(self, copy: Copy, status: str, error: str = "") -> None:
        agent_id = copy.agent.agent_id
        if self.copies.get(agent_id) is copy:
            del self.copies[agent_id]
            self.changed.set()
        copy.hold.drop()
        await asyncio.wrap_future(self.processes.forget(agent_id))
        self.metrics.host_agents_ended.labels(status).inc()
        await self.registry.release(self.name, agent_id, copy.fence, status, error)

    async def _handle(self, event: ProcessEvent) -> None:
        process = event.process
        copy = self.copies.get(process.agent_id)
        if copy is None or copy.stopping or copy.fence != process.fence:  # guard: event-of-own-fence
            return
        if event.kind is EventKind.READY and process.restarts:
            await self._report_started(copy, process)
        elif process.status is ProcessStatus.WAITING:
            self.metrics.host_lease_ends.inc()  # reported to the registry after the next renewal
        elif process.status is ProcessStatus.BACKING_OFF:
            self.metrics.host_restarts.inc()
            await self.registry.release(
                self.name, process.agent_id, copy.fence, "restarting", process.last_error
            )
        # guard: crash-of-live-copy
        elif process.status is ProcessStatus.CRASHED and copy.created and not self._lives(process.agent_id):
            _log.error(
                "agent crashed, restart limit exceeded", agent_id=process.agent_id, error=process.last_error
            )
            await self._let_go(copy, "crashed", process.last_error)

    async def _correct(self, copy: Copy) -> None:
        """Handle the result of the last renewal; after a failure the next renewal has the same result."""
        agent_id = copy.agent.agent_id
        async with self._turn(agent_id):
            if self.copies.get(agent_id) is not copy or copy.stopping:
                return
            standing, copy.standing = copy.standing, RenewalReply.KEPT
            # guard: forgotten-agent-regained
            if standing is RenewalReply.FORGOTTEN and await self._regained(copy):
                standing = RenewalReply.KEPT
            if standing is RenewalReply.KEPT:
                if copy.lease_ended:
                    await self._report_waiting(copy)
                process = self._unreported(copy)
                if process is not None:
                    await self._report_started(copy, process)
                return
            why = _DISOWNED[standing]
            self.metrics.host_disowned.labels(why).inc()
            _log.warning("agent copy stopped", agent_id=agent_id, fence=copy.fence, why=why)
            await self._end(copy, "stopped")  # guard: lost-agent-ended

    async def _regained(self, copy: Copy) -> bool:
        """Register an agent again that Redis has lost; return False if it has another host by now."""
        before = copy.fence - 1
        await self.registry.want(copy.agent, fence=before)
        grant = await self.registry.grant(self.name, self.address, copy.agent.agent_id, seen=before)
        copy.reported_pid = 0
        return grant.given and grant.fence == copy.fence  # guard: regained-fence

    def _lives(self, agent_id: str) -> bool:
        """Return whether the agent was started again since its crash."""
        process = self.processes.get(agent_id)
        return process is not None and not process.status.ended

    @contextlib.asynccontextmanager
    async def _turn(self, agent_id: str) -> AsyncGenerator[None]:
        """Serialize the operations on an agent."""
        turn = self._turns.setdefault(agent_id, asyncio.Lock())
        async with turn:  # guard: agent-lock
            yield

    async def _tolerate_outages(self, operation: Awaitable[None]) -> bool:
        """Await an operation that is repeated anyway; return False if Redis failed."""
        try:
            with self._outages:
                await operation
        except TROUBLE as exc:
            self.disturbed()
            self.metrics.redis_errors.labels(type(exc).__name__).inc()
            if not isinstance(exc, DISCONNECTS):
                _log.error("registry call rejected, possibly a damaged key", error=str(exc))
            return False
        return True
