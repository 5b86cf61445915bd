"""Hosts as real processes, and an engine that uses them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.config import (
    DatabaseSettings,
    HostSettings,
    LeaseSettings,
    RedisSettings,
    Settings,
    WorkerSettings,
)
from holdfast.hosts.agent import Agent, AgentStatus, Needs, Placed
from holdfast.hosts.factory import open_engine
from holdfast.hosts.wire_codec import Payload
from holdfast.redis.client import connect
from tests.support.paths import ROOT
from tests.support.runs.system import WorkerChild
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.hosts.engine import HostEngine


def agent(agent_id: str = "x", needs: Needs | None = None, **spec: Any) -> Agent:
    """An ``Idle`` agent; ``spec`` goes to its constructor."""
    document = {
        "id": agent_id,
        "name": agent_id.title(),
        "class_name": "tests.support.hosts.plain_agents.Idle",
        **spec,
    }
    payload = Payload(agent_spec=msgspec.Raw(msgspec.json.encode(document)))
    return Agent(
        agent_id=agent_id, entry="plain", payload=msgspec.json.encode(payload), needs=needs or Needs()
    )


def same_copy(one: Placed, other: Placed) -> bool:
    """Whether both describe one copy of an agent, however often its host has renewed the lease in between."""
    return msgspec.structs.replace(one, lease_ends_at=other.lease_ends_at) == other


class HostChild(WorkerChild):
    """A host in a process of its own."""

    def __init__(self, settings: Settings, name: str, **environ: str) -> None:
        self.name = name
        code = (
            "import os, signal, sys, time; "
            "from holdfast.config import load; from holdfast.services.host import run_host; "
            "signal.signal(signal.SIGUSR1, lambda *_: time.sleep(float(os.environ['BLOCK_SECONDS']))); "
            "from holdfast.telemetry.logs import configure; "
            "s = load().settings; configure(s.log); sys.exit(run_host(s, sys.argv[1]))"
        )
        hosts = settings.hosts
        variables = {
            "HOLDFAST_HOSTS_NAME": name,
            "GRPC_PORT": "0",
            "HOLDFAST_HOSTS_TTL_SECONDS": str(hosts.ttl_seconds),
            "HOLDFAST_HOSTS_PLACING_SECONDS": str(hosts.placing_seconds),
            "HOLDFAST_HOSTS_ALLOWED": "tests.support.hosts",
            "HOLDFAST_HOSTS_TOKEN": hosts.token,
            "HOLDFAST_HOSTS_HEALTH_SECONDS": str(hosts.health_seconds),
            "HOLDFAST_HOSTS_MAX_PROCESSES": str(hosts.max_processes),
            "HEARTBEAT_INTERVAL": str(settings.worker.heartbeat_seconds),
            "BLOCK_SECONDS": str(1.5 * hosts.ttl_seconds),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        super().__init__(settings, environ.pop("app", ""), name, code=code, **variables | environ)

    @property
    def address(self) -> str:
        """Where it listens, once it is ready."""
        return json.loads(self._line("host ready"))["address"]

    def block(self) -> None:
        """Block its event loop, as code does that never awaits, for one and a half ttl of its leases."""
        self.process.send_signal(signal.SIGUSR1)

    def _line(self, event: str) -> str:
        found = re.search(rf'^.*"event":"{event}".*$', self.logged(), re.MULTILINE)
        return found[0] if found else ""

    async def ready(self) -> HostChild:
        """Wait until it serves."""
        await until(lambda: self.process.poll() is not None or self._line("host ready"), seconds=60)
        assert self.process.poll() is None, self.close()
        return self


class Cluster:
    """Hosts on one Redis, and an engine."""

    def __init__(self, redis: RedisSettings, **hosts: Any) -> None:
        # Longer than a host can be without CPU: a test that waits for the end of a lease names a ttl of its own.
        heartbeat = hosts.pop("heartbeat", 2.0)
        self._folder = tempfile.TemporaryDirectory(prefix="hf")
        self.settings = Settings(
            redis=redis,
            database=DatabaseSettings(path=f"{self._folder.name}/holdfast.sqlite"),
            hosts=HostSettings(**{"ttl_seconds": 15.0, "grpc_port": 0, **hosts}),
            worker=WorkerSettings(heartbeat_seconds=heartbeat),
            lease=LeaseSettings(ttl_seconds=15.0),
        )
        self.children: dict[str, HostChild] = {}
        self.redis = connect(redis)
        self.engine: HostEngine = open_engine(self.settings, self.redis)

    async def start(self, *names: str, **environ: str) -> list[HostChild]:
        """Start hosts, and return when all serve."""
        started = [HostChild(self.settings, name, **environ) for name in names]
        self.children |= {child.name: child for child in started}
        await asyncio.gather(*(child.ready() for child in started))
        return started

    async def where(self, agent_id: str, *, not_on: str = "", seconds: float = 30.0) -> Placed:
        """Wait until an agent runs, on another host than ``not_on``."""
        return await until(
            lambda: self.engine.registry.get(agent_id),
            lambda placed: (
                placed is not None and placed.status is AgentStatus.RUNNING and placed.host != not_on
            ),
            what=f"agent {agent_id} to run{f' elsewhere than on {not_on}' * bool(not_on)}",
            seconds=seconds,
        )

    async def close(self) -> None:
        """End all hosts and remove their store."""
        try:
            await self._end_hosts()
        finally:
            self._folder.cleanup()

    async def _end_hosts(self) -> None:
        await self.engine.close()
        await self.redis.aclose()
        for child in self.children.values():
            print(f"--- {child.name}\n{child.close()}", file=sys.stderr)


@contextlib.asynccontextmanager
async def cluster_of(redis: RedisSettings, *names: str, **hosts: Any) -> AsyncIterator[Cluster]:
    """A cluster with hosts of these names."""
    cluster = Cluster(redis, **hosts)
    try:
        await cluster.start(*names)
        yield cluster
    finally:
        await cluster.close()
