"""Hosts that run agents which misbehave and a resident that writes down what it receives."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from holdfast.config import RedisSettings
from holdfast.hosts.agent import Agent, Needs
from holdfast.hosts.wire_codec import Payload
from tests.support.hosts.host_processes import Cluster, HostChild

APP = f"{Path(__file__).with_name('scribe.py')}:app"
MARK = "FAULTS_MARK"


def listener(agent_id: str, redis_url: str, file: Path) -> Agent:
    """A ``Listener`` whose channel has its id."""
    document = {
        "id": agent_id,
        "class_name": "tests.support.hosts.plain_agents.Listener",
        "redis": redis_url,
        "channel": agent_id,
        "file": str(file),
    }
    payload = msgspec.json.encode(Payload(agent_spec=msgspec.Raw(msgspec.json.encode(document))))
    return Agent(agent_id=agent_id, entry="plain", payload=payload)


def troubled(agent_id: str, does: str = "", *, needs: Needs | None = None, **spec: Any) -> Agent:
    """A ``Troubled`` agent."""
    document = {
        "id": agent_id,
        "class_name": "tests.support.hosts.plain_agents.Troubled",
        "does": does,
        **spec,
    }
    payload = msgspec.json.encode(Payload(agent_spec=msgspec.Raw(msgspec.json.encode(document))))
    return Agent(agent_id=agent_id, entry="plain", payload=payload, needs=needs or Needs())


def written(path: Path, what: str = "done") -> list[int]:
    """The numbers of the messages that a scribe wrote down, in that order."""
    return [number for number, _ in written_by(path, what)]


def written_by(path: Path, what: str = "done") -> list[tuple[int, int]]:
    """The same, each with the process that wrote it down."""
    # Without a line that is being written: one that crosses a page of memory appears in two parts.
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    lines = [line.split() for line in whole.splitlines()]
    return [(int(number), int(pid)) for word, number, pid in lines if word == what]


class Hosts(Cluster):
    """A cluster whose processes can be told from those of any other."""

    def __init__(self, redis: RedisSettings, environ: dict[str, str], **hosts: Any) -> None:
        super().__init__(redis, **hosts)
        self.mark = uuid.uuid4().hex
        settings = self.settings.hosts
        self.environ = {
            MARK: self.mark,
            "app": APP,
            "HOLDFAST_HOSTS_ALLOWED": "tests.support.hosts",
            "HOLDFAST_HOSTS_READY_SECONDS": str(settings.ready_seconds),
            "HOLDFAST_HOSTS_STOP_SECONDS": str(settings.stop_seconds),
            "HOLDFAST_HOSTS_MAX_RESTARTS": str(settings.max_restarts),
            "HOLDFAST_REDIS_SOCKET_TIMEOUT_SECONDS": str(redis.socket_timeout_seconds),
            **environ,
        }

    async def start(self, *names: str, **environ: str) -> list[HostChild]:
        """Start hosts, and return when all serve."""
        return await super().start(*names, **self.environ | environ)

    def processes(self) -> list[psutil.Process]:
        """Everything that any of the hosts has started, and the hosts."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def copies(self, agent_id: str) -> list[int]:
        """The processes that are this agent now."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.name() == f"hf:{agent_id}"[:15]:
                    found.append(process.pid)
        return found

    def zygote(self, name: str) -> int:
        """The process from which a host's agents are forked."""
        host = psutil.Process(self.children[name].process.pid)
        found = []
        for child in host.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if "holdfast.processes.zygote" in child.cmdline():
                    found.append(child.pid)
        (pid,) = found
        return pid


@contextlib.asynccontextmanager
async def hosts_of(
    redis: RedisSettings, *names: str, environ: dict[str, str] | None = None, **hosts: Any
) -> AsyncIterator[Hosts]:
    """Hosts of these names, with the agents of this module."""
    cluster = Hosts(redis, environ or {}, **hosts)
    try:
        await cluster.start(*names)
        yield cluster
    finally:
        await cluster.close()
