"""The host process: long-lived agents as its processes, over gRPC, until SIGTERM; then they move first.

::

    waits for Redis and its name ─> open: takes agents
    SIGTERM ─> draining: no new agents ─> each moves to another host ─> deregister ─> gRPC ends ─> exit 0
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError, NoHost, ProcessError
from holdfast.hosts.directory import KIND, describe
from holdfast.hosts.factory import keeper_of, members_of, open_cluster, registry_of
from holdfast.hosts.failover import Rescue
from holdfast.hosts.host import Host
from holdfast.hosts.host_metrics import measure
from holdfast.hosts.server import HostServer
from holdfast.hosts.servicer import AgentHostServicer
from holdfast.processes.cgroups import Cgroups
from holdfast.processes.processes import Processes
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.members import OwnRecord
from holdfast.redis.outages import redis_outages
from holdfast.services.connections import Connections
from holdfast.services.entries import default_entry, process_options
from holdfast.services.names import is_taken
from holdfast.services.process import calm_collector, run_process
from holdfast.services.resident import APP
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import StoreRegistration, check_schema
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from holdfast.config import Settings
    from holdfast.hosts.agent import Placed
    from holdfast.redis.client import Redis

_MOVES_AT_ONCE: Final = 8
_BATCH_SECONDS: Final = 0.2
"""Changes within this time are one heartbeat."""
_LEAVE_SECONDS: Final = 2.0
_NAME_SECONDS: Final = 1.0

_log = get_logger(__name__)


class HostService:
    """One host with its server and background tasks."""

    def __init__(
        self, settings: Settings, redis: Redis, processes: Processes, metrics: Metrics, *, app: str = ""
    ) -> None:
        hosts = settings.hosts
        self._settings = settings
        self._redis = redis
        self._members = members_of(settings)
        self._server = HostServer(hosts, metrics)
        self.address = f"{_bracketed(hosts.address or '127.0.0.1')}:{self._server.port}"
        name = hosts.name or platform.node()
        labels = {APP: app} if app else {}
        registry = registry_of(settings, redis, metrics)
        # guard: location-renewal-interval
        keeper = keeper_of(settings, metrics, at_least_every=self._members.heartbeat_seconds)
        self.host = Host(name, self.address, registry, processes, keeper, hosts, metrics, labels)
        self._engine = open_cluster(settings, redis)
        self._record = OwnRecord(self._members, KIND, name)
        self._outages = redis_outages("heartbeats of this host", "its agents go on")
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def request_stop(self) -> None:
        """Begin the shutdown: agents move first. After a second call the rest is left to other hosts."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Serve until asked to stop."""
        servicer = AgentHostServicer(self.host, default_entry=default_entry(self._settings.hosts))
        try:
            async with self._server.serving(servicer):
                if await self._has_name():  # guard: host-name-before-serving
                    await self._serve()
        finally:
            await self._engine.close()

    @property
    def ready(self) -> bool:
        """Whether the host accepts agents."""
        return self._server.is_open and not self.host.draining  # guard: host-readiness

    async def _serve(self) -> None:
        rescue = Rescue(self.host.registry, self._engine, self.host)
        try:
            async with asyncio.TaskGroup() as group:
                await self._server.open()
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
                upkeep.pop().cancel()  # no more agents are placed here
                await self._drain()
                for task in upkeep:
                    task.cancel()
        finally:
            await self._leave()

    # -- shutdown

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
                if placed is not None:
                    await self._place_elsewhere(placed)
            except (HoldfastError, *TROUBLE) as exc:
                _log.warning("agent move failed", agent_id=agent_id, error=str(exc))

    async def _place_elsewhere(self, placed: Placed) -> None:
        try:
            if not self._hurry.is_set():
                await self._engine.place(placed.agent, placed.fence, avoid=self.host.name)
                return
        except NoHost as exc:
            _log.warning("agent waiting for host", agent_id=placed.agent.agent_id, error=str(exc))
        await self.host.registry.unplaced(placed.agent.agent_id, placed.fence)

    async def _leave(self) -> None:
        with contextlib.suppress(*TROUBLE, TimeoutError):  # the record expires
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._record.leave(self._redis)

    # -- heartbeat

    async def _has_name(self) -> bool:
        """Wait while another live process has our name: calls would reach either of the two."""
        while not self._stop.is_set():
            try:
                with self._outages:
                    if not await self._name_is_taken():  # guard: host-name-unique
                        return True
            except TROUBLE as exc:
                if not isinstance(exc, DISCONNECTS):
                    _log.error("host name lookup rejected by Redis", error=str(exc))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_NAME_SECONDS):
                    await self._stop.wait()
        return False

    async def _name_is_taken(self) -> bool:
        other = await self._members.find(self._redis, KIND, self.host.name)
        if other is None or not is_taken(other):
            return False
        _log.warning(
            "host name in use, waiting (hosts.name must be unique)",
            name=self.host.name,
            address=other.fields.get("address"),
            host=other.fields.get("host"),
            pid=other.fields.get("pid"),
        )
        return True

    async def _beat(self) -> None:
        while True:
            measure(self.host, self.host.seen())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._members.heartbeat_seconds):
                    await asyncio.sleep(_BATCH_SECONDS)
                    await self.host.changed.wait()
            self.host.changed.clear()
            await self._announce()

    async def _announce(self) -> None:
        try:
            with self._outages:
                await self._record.announce(self._redis, describe(self.host.seen()))
        except TROUBLE as exc:
            if not isinstance(exc, DISCONNECTS):
                _log.error("heartbeat rejected by Redis", error=str(exc))


def run_host(settings: Settings, app: str = "") -> int:
    """Run a host until SIGTERM or SIGINT; return its exit code. ``app`` has the residents that it may run."""
    # Children read these variables: they are forked from the zygote, not from this process.
    os.environ["REDIS_URL"] = settings.redis.url
    if not settings.database.url:  # an app may change the directory on import
        os.environ["HOLDFAST_DATABASE_PATH"] = str(Path(settings.database.path).absolute())
    # The zygote is started first: before any thread, connection or event loop of this process exists.
    cgroups = Cgroups() if settings.hosts.cgroups else None
    options = dataclasses.replace(process_options(settings, app), cgroups=cgroups)
    with Processes(options) as processes:
        _prepare(processes)
        calm_collector()
        return run_process(lambda: _until_signal(settings, processes, app))


def _prepare(processes: Processes) -> None:
    """Wait until agents can be started: a host that can't start agents must not report ready."""
    try:
        processes.warm_up().result()
    except ProcessError as exc:
        last = str(exc).strip().rpartition("\n")[2]
        raise ProcessError(
            f"this host can't import the modules of its agents (hosts.preload, or the app): {last}"
        ) from exc


async def _until_signal(settings: Settings, processes: Processes, app: str) -> None:
    metrics = Metrics()
    async with Connections(settings) as connections:
        service = HostService(settings, connections.redis, processes, metrics, app=app)
        on_signals(service.request_stop)
        # Residents keep their state in the store; other agents do not use it.
        registration = StoreRegistration(connections, KIND, service.host.name) if app else None
        await (registration.check() if registration else check_schema(settings.database))
        with Exporter(metrics, settings.metrics, ready=lambda: service.ready):
            async with asyncio.TaskGroup() as group:
                keep = group.create_task(registration.keep()) if registration else None
                await service.run()
                if keep is not None:
                    keep.cancel()


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
