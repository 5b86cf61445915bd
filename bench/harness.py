"""What every measurement needs: a server of its own, worker processes, and what both of them cost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psutil
from redis.asyncio import Redis

from holdfast.config import QueueSettings, RedisSettings, Settings
from holdfast.redis.embedded import EmbeddedServer
from holdfast.services.connections import Connections

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.runs.queue import RunQueue

HERE = Path(__file__).parent
QUEUE = "agent-queue"
SLOTS = 500
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG")
_POLL_SECONDS = 0.002
_numbers = itertools.count(1)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    quick: bool

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A Valkey that nobody else uses."""

    url: str
    redis: Redis

    async def cpu_seconds(self) -> float:
        used = await self.redis.info("cpu")
        return used["used_cpu_user"] + used["used_cpu_sys"]

    async def commands(self) -> dict[str, dict[str, float]]:
        """Calls and microseconds per command since the last reset."""
        stats = await self.redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): row for name, row in stats.items()}

    @contextlib.asynccontextmanager
    async def queue(self) -> AsyncIterator[RunQueue]:
        """The queue, as a producer has it."""
        settings = Settings(redis=RedisSettings(url=self.url), queue=QueueSettings(name=QUEUE))
        async with Connections(settings) as connections:
            queue = connections.sender(settings.queue_named(QUEUE))
            await queue.ensure()
            yield queue


@contextlib.asynccontextmanager
async def server(*, aof: bool = True) -> AsyncIterator[Server]:
    """A fresh server: every side of every round begins with an empty one, and an empty file."""
    with tempfile.TemporaryDirectory(prefix="hfbench", ignore_cleanup_errors=True) as directory:
        embedded = EmbeddedServer(directory, append_only=aof)
        async with embedded, Redis.from_url(embedded.url) as redis:
            yield Server(embedded.url, redis)


class Child:
    """A process of ours: killed at the end, whatever happened."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._stats = psutil.Process(process.pid)

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, *command: str, cwd: Path | str, **environ: str) -> AsyncIterator[Self]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=cwd,
            env={name: os.environ[name] for name in _KEPT if name in os.environ} | environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**26,
        )
        try:
            yield cls(process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def cpu_seconds(self) -> float:
        used = self._stats.cpu_times()
        return used.user + used.system

    def memory(self) -> tuple[float, float]:
        """RSS and PSS in MB (of 2**20 bytes, as in the goal); PSS is 0 where it is not known."""
        info = self._stats.memory_full_info()
        return info.rss / 2**20, getattr(info, "pss", 0) / 2**20

    async def line(self) -> str:
        assert self.process.stdout is not None
        text = await self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"a measured process ended with {await self.process.wait()}")
        return text.decode().strip()

    async def result(self) -> Any:
        return json.loads(await self.line())

    async def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        await self.process.stdin.drain()


@contextlib.asynccontextmanager
async def bare(url: str, *command: object, uvloop: bool = False) -> AsyncIterator[Child]:
    """A process of ``bench.bare`` that is ready."""
    options = ("--uvloop",) if uvloop else ()
    words = ("-m", "bench.bare", *options, url, *map(str, command))
    async with Child.of(*words, cwd=HERE.parent) as child:
        assert await child.line() == "ready"
        yield child


@contextlib.asynccontextmanager
async def process(on: Server, kind: str, agents: str, **environ: str) -> AsyncIterator[Child]:
    """A process of ours by the real command line, which has told the others that it is there."""
    name = f"bench-{next(_numbers)}"
    app = f"{HERE / agents}:app"
    settings = {
        "REDIS_URL": on.url,
        "WORKER_POD_NAME": name,
        "HOLDFAST_HOSTS_NAME": name,
        "LOG_LEVEL": "WARNING",
        # Each is in a folder of its own, and the agents of benchmarks remember nothing.
        "HOLDFAST_DATABASE_PER_WORKER": "true",
    } | environ
    # In an empty directory, so that no holdfast.yaml is found.
    with tempfile.TemporaryDirectory(prefix="hfbench") as cwd:
        async with Child.of("-m", "holdfast", kind, "--app", app, cwd=cwd, **settings) as child:

            async def joined() -> bool:
                if child.process.returncode is not None:
                    raise RuntimeError(f"the {kind} ended with {child.process.returncode}")
                return await on.redis.exists(f"member:{kind}:{name}") == 1

            await until(joined)
            yield child


def worker(
    on: Server, *, slots: int = SLOTS, uvloop: bool = True, **environ: str
) -> contextlib.AbstractAsyncContextManager[Child]:
    """A worker process which has joined its queue."""
    settings = {
        "WORKER_POD_MESSAGES_BATCH_SIZE": str(slots),
        "MAX_PENDING_PER_WORKER": str(max(slots, 256)),
        "HOLDFAST_WORKER_EVENT_LOOP": "uvloop" if uvloop else "asyncio",
    }
    return process(on, "worker", "agents.py", **settings | environ)


@dataclasses.dataclass(slots=True)
class Cost:
    """What something took: seconds, and CPU of the server and of the process that was measured."""

    seconds: float = 0.0
    server_cpu: float = 0.0
    child_cpu: float = 0.0


@contextlib.asynccontextmanager
async def metered(on: Server, child: Child | None = None) -> AsyncIterator[Cost]:
    """Measure what happens inside; without a child, this process is the one."""
    spent = child.cpu_seconds if child else time.process_time
    cost = Cost()
    before, own = await on.cpu_seconds(), spent()
    began = time.monotonic()
    yield cost
    cost.seconds = time.monotonic() - began
    cost.server_cpu = await on.cpu_seconds() - before
    cost.child_cpu = spent() - own


async def until(
    condition: Callable[[], Awaitable[bool]], seconds: float = 60.0, *, every: float = _POLL_SECONDS
) -> None:
    """Wait for something that only looking can tell."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  it happens in another process
            await asyncio.sleep(every)


async def emptied(on: Server, stream: str) -> None:
    """Wait until everything in ``stream`` is done and deleted."""

    async def empty() -> bool:
        return await on.redis.xlen(stream) == 0

    # Seldom, for something that takes seconds: who looks takes CPU from those who are measured.
    await until(empty, 120, every=0.02)
