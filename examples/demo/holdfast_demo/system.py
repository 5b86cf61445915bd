"""The system of the demo: the embedded server, an Event API, and real workers, a scheduler and api replicas.

Nothing of it outlives the demo, however that ends, and nothing of the caller's settings reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import yaml

from holdfast import HoldfastError
from holdfast.config import load, setting_rows
from holdfast.redis.embedded import EmbeddedServer
from holdfast.services.dev.leash import leashed
from holdfast_demo.processes import Watched
from holdfast_demo.receiver import Receiver

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast import Settings

LEASE_SECONDS = 3.0
DRAIN_SECONDS = 1.0
SLOTS = 4
_STOP_SECONDS = 10.0


class DemoFailed(HoldfastError):
    """The demo could not go on; the message says what it waited for."""


class System:
    """A server and processes; entered and left like a file."""

    def __init__(self, app: Path) -> None:
        self._app = app
        self._stack = contextlib.AsyncExitStack()
        self._environment: dict[str, str] = {}
        self.receiver = Receiver()
        self.workers: dict[str, Watched] = {}
        self.replicas: dict[str, Watched] = {}
        self.schedulers: dict[str, Watched] = {}
        self.hosts: dict[str, Watched] = {}

    async def __aenter__(self) -> Self:
        folder = tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(folder))
        self.server = await self._stack.enter_async_context(EmbeddedServer(self.folder / "redis", port=0))
        await self._stack.enter_async_context(self.receiver)
        self._stack.push_async_callback(self._stop_processes)
        file = self.folder / "holdfast.yaml"
        file.write_text(yaml.safe_dump(self._document()))
        self._environment = _clean_environment() | {"HOLDFAST_CONFIG": str(file)}
        self.settings: Settings = load(environ=self._environment).settings
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, trace)

    @property
    def processes(self) -> list[Watched]:
        """Every process that was started, the dead ones too."""
        return [
            *self.workers.values(),
            *self.schedulers.values(),
            *self.replicas.values(),
            *self.hosts.values(),
        ]

    def start_worker(self, name: str) -> None:
        """Start a worker process, exactly as an operator would."""
        self.workers[name] = self._start(name, "worker", WORKER_POD_NAME=name)

    def start_replica(self, name: str) -> None:
        """Start an api process, which is a janitor and a relay, too."""
        self.replicas[name] = self._start(name, "api")

    def start_scheduler(self, name: str) -> None:
        """Start a scheduler process."""
        self.schedulers[name] = self._start(name, "scheduler", WORKER_POD_NAME=name)

    def start_host(self, name: str) -> None:
        """Start a host of residents."""
        self.hosts[name] = self._start(name, "host", HOLDFAST_HOSTS_NAME=name)

    def _start(self, name: str, kind: str, **environ: str) -> Watched:
        command = [sys.executable, "-m", "holdfast", kind, "--app", str(self._app)]
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command
                leashed(command),
                cwd=self.folder,
                env=self._environment | environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Watched(name, kind, process, log)

    def require_health(self) -> None:
        """Raise if a process ended that the demo has not ended."""
        for each in self.processes:
            if not each.lives and not each.fate:
                tail = "\n".join(each.log.read_text(errors="replace").splitlines()[-8:])
                raise DemoFailed(f"{each.name} ended by itself, with code {each.process.returncode}:\n{tail}")

    async def _stop_processes(self) -> None:
        living = [each for each in self.processes if each.lives]
        for each in living:
            each.terminate()
        for each in living:
            try:
                await asyncio.to_thread(each.process.wait, _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
        for each in self.processes:
            each.process.wait()

    def _document(self) -> dict[str, object]:
        return {
            "redis": {"url": self.server.url},
            "lease": {"ttl_seconds": LEASE_SECONDS},
            "worker": {"drain_seconds": DRAIN_SECONDS, "heartbeat_seconds": 1.0},
            "queue": {"slots": SLOTS, "backoff": {"base_seconds": 0.4}},
            # The disk may still be busy with what was installed a moment ago.
            "database": {"path": str(self.folder / "holdfast.sqlite"), "timeout_seconds": 30.0},
            "event_api": {"url": self.receiver.url},
            "relay": {"retry_first_seconds": 0.2, "retry_most_seconds": 1.0, "breaker_seconds": 0.5},
            "api": {"port": 0, "linger_seconds": 0.0, "drain_seconds": 1.0},
            "hosts": {"grpc_port": 0, "ttl_seconds": LEASE_SECONDS},
            "log": {"format": "json"},
        }


def _clean_environment() -> dict[str, str]:
    """The caller's environment without any setting of Holdfast in it."""
    ours = {name for row in setting_rows() for name in row.env}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("HOLDFAST_")
    }
