"""Agents that do what no agent should, a resident that writes down what it receives, and hosts that run them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import redis

from holdfast import App, Context
from holdfast.config import RedisSettings
from holdfast.hosts.agent import Agent, Needs
from holdfast.hosts.requests import Payload
from tests.support.hosts.host_processes import Cluster, HostChild

APP = f"{__file__}:app"
MARK = "FAULTS_MARK"


def wait_for(file: str) -> None:
    """Wait for the test, which makes this file when it has seen enough."""
    while not Path(file).exists():
        time.sleep(0.01)


class Troubled:
    """``does`` says what it does."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.does, self.spec = spec.get("does", ""), spec
        match self.does:
            case "hang":
                threading.Event().wait()
            case "wait":
                wait_for(spec["file"])
            case "eat":
                self.eaten = [bytes(2**20) for _ in range(1000)]
            case "fork":
                pids = [
                    subprocess.Popen(["sleep", "1000"], start_new_session=own).pid for own in (True, False)
                ]
                Path(spec["file"]).write_text(" ".join(map(str, pids)))

    def start(self) -> None:
        match self.does:
            case "leave":
                threading.Thread(target=self._leave, daemon=True).start()
            case "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _leave(self) -> None:
        wait_for(self.spec["file"])
        os._exit(0)

    def stop(self) -> None:
        if self.does == "deaf":
            threading.Event().wait()


class Listener:
    """Appends a line for each number that comes over a channel of Redis, as the scribe below does."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._redis = redis.Redis.from_url(spec["redis"])
        self._channel = spec["channel"]
        self._file = os.open(spec["file"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def start(self) -> None:
        self._messages = self._redis.pubsub()
        self._messages.subscribe(self._channel)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for message in self._messages.listen():
            if message["type"] == "message":
                os.write(self._file, b"done %d %d\n" % (int(message["data"]), os.getpid()))


def listener(agent_id: str, redis_url: str, file: Path) -> Agent:
    """An agent of the class above, whose channel has its id."""
    document = {
        "id": agent_id,
        "class_name": "tests.support.hosts.faulty_agents.Listener",
        "redis": redis_url,
        "channel": agent_id,
        "file": str(file),
    }
    payload = msgspec.json.encode(Payload(agent_spec=msgspec.Raw(msgspec.json.encode(document))))
    return Agent(agent_id=agent_id, entry="plain", payload=payload)


def troubled(agent_id: str, does: str = "", *, needs: Needs | None = None, **spec: Any) -> Agent:
    """An agent of the class above."""
    document = {
        "id": agent_id,
        "class_name": "tests.support.hosts.faulty_agents.Troubled",
        "does": does,
        **spec,
    }
    payload = msgspec.json.encode(Payload(agent_spec=msgspec.Raw(msgspec.json.encode(document))))
    return Agent(agent_id=agent_id, entry="plain", payload=payload, needs=needs or Needs())


app = App("faults")


@app.resident
class Scribe:
    """Appends a line for each message: when it begins with it and when it is done, the number, its process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _write(self, what: str, number: int) -> None:
        os.write(self._file, f"{what} {number} {os.getpid()}\n".encode())

    async def receive(self, ctx: Context, message: dict) -> int:
        import asyncio

        self._write("begin", message["n"])
        await asyncio.sleep(message.get("seconds", 0))
        self._write("done", message["n"])
        return message["n"]


def written(path: Path, what: str = "done") -> list[int]:
    """The numbers of the messages that a scribe wrote down, in that order."""
    return [number for number, _ in written_by(path, what)]


def written_by(path: Path, what: str = "done") -> list[tuple[int, int]]:
    """The same, each with the process that wrote it down."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
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
