"""The system of the demo: the embedded server and real worker processes, all in a temporary directory.

Nothing of it outlives the demo, however that ends, and nothing of the caller's settings reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import yaml

from holdfast.config import load, setting_rows
from holdfast.errors import HoldfastError
from holdfast.redis.embedded import EmbeddedServer
from holdfast.services.dev.leash import leashed

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.config import Settings

LEASE_SECONDS = 3.0
DRAIN_SECONDS = 1.0
SLOTS = 4
_STOP_SECONDS = 10.0


class DemoFailed(HoldfastError):
    """The demo could not go on; the message says what it waited for."""


@dataclass(slots=True)
class WorkerProcess:
    """One worker, as the demo sees it from outside."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    fate: str = ""
    was_ready: bool = False

    @property
    def lives(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has said so in its log."""
        self.was_ready = self.was_ready or b'"worker ready"' in self.log.read_bytes()
        return self.was_ready

    def kill(self) -> None:
        """Kill it as a crash would: it can't say or save anything."""
        self.fate = "kill -9"
        self.process.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to leave, as Kubernetes does."""
        self.fate = "SIGTERM"
        self.process.send_signal(signal.SIGTERM)


class System:
    """A server and workers; entered and left like a file."""

    def __init__(self, app: Path) -> None:
        self._app = app
        self._stack = contextlib.AsyncExitStack()
        self._environment: dict[str, str] = {}
        self.workers: dict[str, WorkerProcess] = {}

    async def __aenter__(self) -> Self:
        folder = tempfile.TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(folder))
        self.server = await self._stack.enter_async_context(EmbeddedServer(self.folder / "redis", port=0))
        self._stack.push_async_callback(self._stop_workers)
        file = self.folder / "holdfast.yaml"
        file.write_text(yaml.safe_dump(self._document()))
        self._environment = _clean_environment() | {"HOLDFAST_CONFIG": str(file)}
        self.settings: Settings = load(environ=self._environment).settings
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, trace)

    def start_worker(self, name: str) -> WorkerProcess:
        """Start a worker process, exactly as an operator would."""
        command = [sys.executable, "-m", "holdfast", "worker", "--app", str(self._app)]
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command
                leashed(command),
                cwd=self.folder,
                env=self._environment | {"WORKER_POD_NAME": name},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.workers[name] = worker = WorkerProcess(name, process, log)
        return worker

    def require_health(self) -> None:
        """Raise if a worker ended that nobody has ended."""
        for worker in self.workers.values():
            if not worker.lives and not worker.fate:
                tail = "\n".join(worker.log.read_text(errors="replace").splitlines()[-8:])
                raise DemoFailed(
                    f"{worker.name} ended by itself, with code {worker.process.returncode}:\n{tail}"
                )

    async def _stop_workers(self) -> None:
        living = [worker for worker in self.workers.values() if worker.lives]
        for worker in living:
            worker.terminate()
        for worker in living:
            try:
                await asyncio.to_thread(worker.process.wait, _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        for worker in self.workers.values():
            worker.process.wait()

    def _document(self) -> dict[str, object]:
        return {
            "redis": {"url": self.server.url},
            "lease": {"ttl_seconds": LEASE_SECONDS},
            "worker": {"drain_seconds": DRAIN_SECONDS, "heartbeat_seconds": 1.0},
            "queue": {"slots": SLOTS, "backoff": {"base_seconds": 0.4}},
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
