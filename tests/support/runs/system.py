"""A whole small system for tests: settings, a sender, and workers that run in this process or in their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any, Self

import msgspec
from redis.asyncio.cluster import RedisCluster

from holdfast import App
from holdfast.config import (
    BackoffSettings,
    DatabaseSettings,
    EventApiSettings,
    LeaseSettings,
    QueueSettings,
    RedisSettings,
    RelaySettings,
    Settings,
    WorkerSettings,
)
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.keys import registered_store_key
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Run, Status, Submission
from holdfast.services.connections import Connections
from holdfast.services.worker import WorkerProcess
from tests.support.processes import forked
from tests.support.redis.key_ttls import check_keys
from tests.support.waiting import PATIENCE_SECONDS, until

QUICK_BACKOFF = BackoffSettings(base_seconds=0.02, cap_seconds=0.1, jitter=0.0, forbidden_seconds=0.1)


class RunningWorker:
    """A worker process that runs as a task of the test."""

    def __init__(self, settings: Settings, app: App) -> None:
        self.process = WorkerProcess(settings, app)
        self.task = asyncio.create_task(self.process.run())

    async def ready(self) -> RunningWorker:
        await until(lambda: self.process.ready or self.task.done())
        if self.task.done():
            self.task.result()
        return self

    async def stop(self) -> None:
        self.process.request_stop()
        await asyncio.wait_for(self.task, 30)

    async def vanish(self) -> None:
        """End without any goodbye, as kill -9 would, but for the process itself."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def reach_deadline(self) -> None:
        """Have the time of the run that is performed be over now, however long it took to begin."""
        [attempt] = self.process.workers[0].running
        invocation = attempt.invocation
        invocation._deadlines.set(invocation._expire, asyncio.get_running_loop().time())


class System:
    """One queue on one Redis, with short times."""

    def __init__(self, redis: RedisSettings, **queue: Any) -> None:
        # Long enough for a process without CPU for some seconds: a lost lease would be a second start of a run.
        lease = LeaseSettings(ttl_seconds=queue.pop("ttl", 6.0))
        worker = WorkerSettings(
            drain_seconds=queue.pop("drain", 5.0), heartbeat_seconds=queue.pop("heartbeat", 1.0)
        )
        self._folder = tempfile.TemporaryDirectory(prefix="hf")
        database = queue.pop("database", None) or DatabaseSettings(
            path=f"{self._folder.name}/holdfast.sqlite"
        )
        event_api = queue.pop("event_api", EventApiSettings())
        queue_relay = RelaySettings(private_webhooks=queue.pop("private_webhooks", True))
        queue.setdefault("backoff", QUICK_BACKOFF)
        queue.setdefault("block_ms", 1000)
        self.settings = Settings(
            redis=redis,
            lease=lease,
            worker=worker,
            queue=QueueSettings(**queue),
            database=database,
            event_api=event_api,
            relay=queue_relay,
        )
        self.settings = msgspec.structs.replace(
            self.settings,
            messaging=msgspec.structs.replace(self.settings.messaging, queue=self.settings.queue.name),
        )
        self._connections = Connections(self.settings)
        self.queue: RunQueue = self._connections.sender(self.settings.queue)
        self.workers: list[RunningWorker] = []

    async def __aenter__(self) -> Self:
        # A process that gets no CPU for five seconds takes a connection for one that can't be had.
        await until(self.queue.ensure, lambda _: True, what="the queue to be made", tolerate=DISCONNECTS)
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            if not worker.task.done():
                worker.process.request_stop()
                worker.process.request_stop()
        for worker in self.workers:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(worker.task, 30)
        try:
            with contextlib.suppress(*DISCONNECTS):  # a test may have ended its server
                if not isinstance(self.queue.redis, RedisCluster):
                    await check_keys(self.queue.redis)
                    # Its store is gone with its folder: the next system on this Redis has one of its own.
                    await self.queue.redis.delete(registered_store_key())
        finally:
            self._folder.cleanup()
            await self._connections.__aexit__(None, None, None)

    async def worker(
        self, app: App, name: str = "", *, timeout_seconds: float | None = None, **changes: Any
    ) -> RunningWorker:
        """Start a worker; ``timeout_seconds`` is its queue's, the changes are of its own settings."""
        worker, queue = self.settings.worker, self.settings.queue
        settings = msgspec.structs.replace(
            self.settings,
            worker=msgspec.structs.replace(worker, name=name, **changes),
            queue=msgspec.structs.replace(queue, timeout_seconds=timeout_seconds or queue.timeout_seconds),
        )
        running = RunningWorker(settings, app)
        self.workers.append(running)
        return await running.ready()

    async def submit(self, agent: str, payload: Any = None, **options: Any) -> str:
        return (await self.queue.submit(Submission(agent=agent, input=payload, **options))).run_id

    async def ended(self, run_id: str, seconds: float = PATIENCE_SECONDS) -> Run:
        """Wait until a run has ended and return it."""
        return await until(
            lambda: self.queue.get(run_id),
            lambda run: run.status.ended,
            what=f"the end of run {run_id}",
            seconds=seconds,
            tolerate=DISCONNECTS,
        )

    async def adopted(self, run_id: str) -> Run:
        """Wait until a worker has met a foreign entry, and its run has ended."""
        await until(
            lambda: self.queue.redis.exists(self.queue.keys.run(run_id)), what=f"a record of {run_id}"
        )
        return await self.ended(run_id)

    async def reaches(self, run_id: str, status: Status, seconds: float = PATIENCE_SECONDS) -> Run:
        return await until(
            lambda: self.queue.get(run_id),
            lambda run: run.status is status,
            what=f"run {run_id} to be {status}",
            seconds=seconds,
        )

    async def events(self, run_id: str) -> list[str]:
        return [
            fields[b"type"].decode()
            for _, fields in await self.queue.redis.xrange(self.queue.keys.feed(run_id))
        ]

    async def nothing_left(self) -> None:
        """Every lane is empty and nothing is pending or delayed."""
        depth = await self.queue.depth()
        assert (depth.undelivered, depth.pending, depth.delayed) == (0, 0, 0), depth


class WorkerChild:
    """A worker in a process of its own, which can be killed, stopped and told to go."""

    service = "worker"

    def __init__(
        self,
        settings: Settings,
        app: str,
        name: str,
        *,
        code: str = "",
        template: str = "holdfast",
        **environ: str,
    ) -> None:
        variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")},
            "REDIS_URL": settings.redis.url,
            "MESSAGING_QUEUE_NAME": settings.queue.name,
            "WORKER_POD_NAME": name,
            "HOLDFAST_LEASE_TTL_SECONDS": str(settings.lease.ttl_seconds),
            "HOLDFAST_DRAIN_SECONDS": str(settings.worker.drain_seconds),
            "HOLDFAST_LOG_FORMAT": "json",
            "HOLDFAST_DATABASE_PATH": settings.database.path,
            "DATABASE_URL": settings.database.url,
            **environ,
        }
        code = code or (
            "import sys; from holdfast.config import load; from holdfast.agents.loader import load_app; "
            f"from holdfast.services.{self.service} import run_{self.service} as run; "
            "from holdfast.telemetry.logs import configure; "
            "s = load().settings; configure(s.log); sys.exit(run(s, load_app(sys.argv[1])))"
        )
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it ends with the process
        self.process = forked.Popen(
            [sys.executable, "-c", code, app],
            template=template,
            env=variables,
            stdout=subprocess.DEVNULL,
            # Not a pipe: nobody reads it meanwhile, and a process that logs much would stand still.
            stderr=self._log,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.process.terminate()

    async def exited(self, seconds: float = PATIENCE_SECONDS) -> int:
        await until(lambda: self.process.poll() is not None, what="the process to exit", seconds=seconds)
        return self.process.returncode

    def close(self) -> str:
        """End it whatever it does, and return what it logged."""
        if self.process.poll() is None:
            self.thaw()
            self.process.kill()
        self.process.wait()
        return self.logged()

    def logged(self) -> str:
        """What it has logged so far."""
        if not self._log.closed:
            # The process shares the offset of the file: reading must not move it.
            size = os.fstat(self._log.fileno()).st_size
            self._seen = os.pread(self._log.fileno(), size, 0).decode(errors="replace")
        if self.process.poll() is not None:
            self._log.close()
        return self._seen
