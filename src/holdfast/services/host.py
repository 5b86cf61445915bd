"""The host process: long-lived agents as its processes, over gRPC, until SIGTERM; then they move first.

::

    SIGTERM ─> draining: no new agents ─> each stops here, starts elsewhere ─> goodbye ─> gRPC ends ─> exit 0
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from typing import TYPE_CHECKING, Final

import psutil

from holdfast.errors import HoldfastError, NoHost
from holdfast.hosts.calls import Calls
from holdfast.hosts.directory import KIND, describe, open_directory
from holdfast.hosts.engine import Engine
from holdfast.hosts.host import Host
from holdfast.hosts.placement import Host as Seen
from holdfast.hosts.registry import Registry
from holdfast.hosts.rescue import Rescue
from holdfast.hosts.server import Server
from holdfast.hosts.servicer import AgentHostServicer
from holdfast.processes.options import ProcessOptions
from holdfast.processes.processes import Processes
from holdfast.processes.restarts import RestartPolicy
from holdfast.redis.client import TROUBLE
from holdfast.redis.keys import HostKeys
from holdfast.redis.members import Member, Members
from holdfast.services.connections import Connections
from holdfast.services.resident import APP
from holdfast.services.signals import ignore_signals, on_signals
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.config import HostSettings, Settings
    from holdfast.redis.client import Redis

ENTRIES: Final[Mapping[str, str]] = {
    "plain": "holdfast.processes.plain:run",
    "resident": "holdfast.services.resident:run",
}
DEFAULT_ENTRY: Final = "plain"
_MOVES_AT_ONCE: Final = 8
_GOODBYE_SECONDS: Final = 2.0

_log = get_logger(__name__)


def registry_of(settings: Settings, redis: Redis) -> Registry:
    """The registry that the settings name."""
    hosts = settings.hosts
    keys = HostKeys.of(prefix=settings.redis.key_prefix, hash_tag=hosts.hash_tag)
    return Registry(keys, redis, ttl_seconds=hosts.ttl_seconds, placing_seconds=hosts.placing_seconds)


def members_of(settings: Settings) -> Members:
    """The heartbeats of hosts; they must not outlive the leases on their agents."""
    beat = min(settings.worker.heartbeat_seconds, settings.hosts.ttl_seconds / 3)
    return Members(prefix=settings.redis.key_prefix, heartbeat_seconds=beat)


def engine_of(settings: Settings, redis: Redis) -> Engine:
    """An engine for the hosts that the settings name; the caller closes it."""
    calls = Calls(settings.hosts)
    directory = open_directory(settings.hosts, calls, members_of(settings), redis)
    return Engine(registry_of(settings, redis), directory, calls, settings.hosts)


class HostService:
    """One host with all that goes on in it."""

    def __init__(
        self, settings: Settings, redis: Redis, processes: Processes, metrics: Metrics, *, app: str = ""
    ) -> None:
        hosts = settings.hosts
        self._settings = settings
        self._redis = redis
        self._members = members_of(settings)
        self._server = Server(hosts, metrics)
        self.address = f"{_bracketed(hosts.address or '127.0.0.1')}:{self._server.port}"
        name = hosts.name or platform.node()
        labels = {APP: app} if app else {}
        self.host = Host(name, self.address, registry_of(settings, redis), processes, hosts, metrics, labels)
        self._engine = engine_of(settings, redis)
        self._since = f"{time.time():.3f}"
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def request_stop(self) -> None:
        """Leave: agents move first. Asked twice, what has not moved yet is left for others to place."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Serve until asked to stop."""
        servicer = AgentHostServicer(self.host, default_entry=DEFAULT_ENTRY)
        rescue = Rescue(self.host.registry, self._engine, self.host)
        try:
            async with self._server.serving(servicer), asyncio.TaskGroup() as group:
                await self._announce()
                upkeep = [
                    group.create_task(each)
                    for each in (
                        self._beat(),
                        self.host.watch(),
                        self.host.renew(),
                        self.host.nurse(),
                        rescue.run(),
                    )
                ]
                _log.info("host ready", name=self.host.name, address=self.address, port=self._server.port)
                await self._stop.wait()
                upkeep.pop().cancel()  # nothing more comes here
                await self._drain()
                for task in upkeep:
                    task.cancel()
        finally:
            await self._engine.close()
            await self._leave()

    # -- leaving

    async def _drain(self) -> None:
        self.host.draining = True
        await self._server.leave()
        await self._announce()
        began, count = time.monotonic(), len(self.host.copies)
        slots = asyncio.Semaphore(_MOVES_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for agent_id in tuple(self.host.copies):
                group.create_task(self._move(agent_id, slots))
        _log.info("host drained", agents=count, seconds=round(time.monotonic() - began, 3))

    async def _move(self, agent_id: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            copy = self.host.copies.get(agent_id)
            if copy is None:
                return
            try:
                await self.host.stop(agent_id, moving=True)
                placed = await self.host.registry.get(agent_id)
                if placed is not None and not self._hurry.is_set():
                    await self._engine.place(placed.agent, placed.fence, avoid=self.host.name)
            except NoHost as exc:
                _log.warning("an agent waits for a host", agent_id=agent_id, error=str(exc))
            except (HoldfastError, *TROUBLE) as exc:
                _log.warning("an agent could not be moved", agent_id=agent_id, error=str(exc))

    async def _leave(self) -> None:
        with contextlib.suppress(*TROUBLE, TimeoutError):  # its record ends by itself
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._members.leave(self._redis, KIND, self.host.name)

    # -- presence

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._members.heartbeat_seconds)
            self._measure()
            await self._announce()

    def _measure(self) -> None:
        metrics, seen = self.host.metrics, self._seen(self._settings.hosts)
        metrics.host_agents.set(seen.agents)
        metrics.host_capacity.set(seen.capacity)
        metrics.host_density.set(seen.density)
        usage = self.host.processes.usage().values()
        metrics.host_memory_bytes.set(sum(each.memory_bytes for each in usage))
        metrics.host_cpu_seconds.set(sum(each.cpu_seconds for each in usage))

    async def _announce(self) -> None:
        try:
            await self._members.announce(self._redis, Member(KIND, self.host.name, self._fields()))
        except TROUBLE as exc:
            _log.warning("Redis does not answer", error=str(exc))

    def _fields(self) -> dict[str, str]:
        return describe(self._seen(self._settings.hosts)) | {
            "host": platform.node(),
            "pid": str(os.getpid()),
            "since": self._since,
        }

    def _seen(self, settings: HostSettings) -> Seen:
        needs = [copy.agent.needs for copy in self.host.copies.values()]
        memory = psutil.virtual_memory()
        return Seen(
            name=self.host.name,
            address=self.address,
            agents=len(self.host.copies),
            capacity=settings.max_processes,
            cpu=(os.cpu_count() or 1) - sum(each.cpu for each in needs),
            memory_mb=memory.total / 2**20 - sum(each.memory_mb for each in needs),
            labels=settings.labels,
            holds=tuple(sorted({label for each in needs for label in each.labels})),
            draining=self.host.draining,
        )


def run_host(settings: Settings, app: str = "") -> int:
    """Run a host until SIGTERM or SIGINT; return its exit code. ``app`` has the residents that it may run."""
    # What children read of their environment: they are forked from a process that is not this one.
    os.environ["REDIS_URL"] = settings.redis.url
    # The zygote is started first: before any thread, connection or event loop of this process exists.
    with Processes(process_options(settings, app)) as processes:
        processes.warm_up()
        asyncio.run(_until_signal(settings, processes, app))
        ignore_signals()
    return 0


def process_options(settings: Settings, app: str = "") -> ProcessOptions:
    """How this host runs its agents; without an app it has no residents."""
    hosts = settings.hosts
    own = ("holdfast.services.resident",) if app else ()
    return ProcessOptions(
        entries=ENTRIES if app else {DEFAULT_ENTRY: ENTRIES[DEFAULT_ENTRY]},
        class_prefixes=hosts.allowed,
        preload=own + hosts.preload,
        max_processes=hosts.max_processes,
        restarts=RestartPolicy(max_restarts=hosts.max_restarts, window_seconds=hosts.restart_window_seconds),
        ready_timeout_seconds=hosts.ready_seconds,
        stop_timeout_seconds=hosts.stop_seconds,
    )


async def _until_signal(settings: Settings, processes: Processes, app: str) -> None:
    metrics = Metrics()
    async with Connections(settings) as connections:
        service = HostService(settings, connections.redis, processes, metrics, app=app)
        on_signals(service.request_stop)
        with Exporter(metrics, settings.metrics, ready=lambda: not service.host.draining):
            await service.run()


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
