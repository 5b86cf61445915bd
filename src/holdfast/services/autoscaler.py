"""The local autoscaler: real worker processes, as many as each queue needs, on this machine.

One pool for each queue, so that a worker type grows and shrinks by its own depth and its own settings. It
counts only its own processes: run one autoscaler for a queue; other workers of the queue are additional.
"""

from __future__ import annotations

import asyncio
import platform
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.errors import AppError
from holdfast.redis.members import Members
from holdfast.scaling.arrivals import Arrivals
from holdfast.scaling.local import bounded, describe_range
from holdfast.services.child_output import Logged, Spoken, resolved_format
from holdfast.services.connections import Connections
from holdfast.services.dev.check import check_app
from holdfast.services.dev.console import Console
from holdfast.services.heartbeat import Heartbeat
from holdfast.services.process import run_process
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import StoreRegistration
from holdfast.services.worker_pool import POLL_SECONDS, AutoscaledPool, NumberAllocator
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from holdfast.config import QueueSettings, Settings
    from holdfast.scaling.local import Bounds
    from holdfast.services.child_output import ScalingVoice

STOP_MARGIN_SECONDS: Final = 2.0
"""How long a worker gets beyond its drain before it is signalled again."""
_BLOCK_SECONDS: Final = 5.0
_KIND: Final = "autoscaler"

T = TypeVar("T")


class Autoscaler:
    """The pools of one machine."""

    def __init__(
        self,
        settings: Settings,
        app_path: str,
        output: ScalingVoice,
        *,
        queues: Sequence[QueueSettings],
        log_format: str = "json",
        first_port: int = 0,
        hurry: asyncio.Event | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._settings = settings
        self._app_path = app_path
        self._output = output
        self._log_format = log_format
        self._poll_seconds = poll_seconds
        self._queues = queues
        self._first_port = first_port or settings.metrics.port + 1
        self._numbers = NumberAllocator()
        self._stop = asyncio.Event()
        self._hurry = hurry or asyncio.Event()
        self._ended = asyncio.Event()
        self.metrics = Metrics(())
        self.pools: list[AutoscaledPool] = []
        self.ready = False

    def request_stop(self) -> None:
        """Stop every worker, then return; a second call makes them hand back now."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def unless_stopped(self, awaitable: Coroutine[None, None, T]) -> T | None:
        """Await a coroutine that must not delay the stop; return None if the stop came first."""
        waits = asyncio.create_task(awaitable), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return waits[0].result() if waits[0].done() else None
        finally:
            for wait in waits:
                wait.cancel()

    async def run(self) -> None:
        """Scale until stopped, and return when the last worker has exited."""
        try:
            await self._run()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Stop, and wait until the last worker has exited."""
        self._stop.set()
        await self._ended.wait()

    async def replace(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Restart every worker, for new code."""
        await asyncio.gather(*(pool.replace(grace_seconds, hurry) for pool in self.pools))

    async def check_store(self) -> None:
        """Reject a store that every worker would reject: they would be restarted for ever."""
        async with Connections(self._settings) as connections:
            await StoreRegistration(connections, _KIND, platform.node()).check()

    async def _run(self) -> None:
        async with Connections(self._settings, self.metrics) as connections:
            heartbeat = self._heartbeat(connections)
            self.pools = [self._pool(connections, queue) for queue in self._queues]
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(heartbeat.beat(), name="heartbeat")
                running = [
                    group.create_task(pool.run(self._stop, self._hurry), name=pool.name)
                    for pool in self.pools
                ]
                self._report_ranges()
                self.ready = True
                await asyncio.wait(running)
                self.ready = False
                beat.cancel()
            await heartbeat.leave()

    def _pool(self, connections: Connections, settings: QueueSettings) -> AutoscaledPool:
        queue = connections.queue(settings)
        command = (sys.executable, "-m", "holdfast", "worker", "--app", self._app_path, "--queue", queue.name)
        return AutoscaledPool(
            queue,
            Arrivals(queue, connections.blocking(_BLOCK_SECONDS), block_seconds=_BLOCK_SECONDS),
            (command, self._environment),
            numbers=self._numbers,
            output=self._output,
            metrics=self.metrics,
            members=Members.of(self._settings),
            ttl_seconds=self._settings.lease.ttl_seconds,
            grace_seconds=self._settings.worker.drain_seconds + STOP_MARGIN_SECONDS,
            poll_seconds=self._poll_seconds,
        )

    def _environment(self, number: int) -> Mapping[str, str]:
        settings = self._settings
        environment = {
            "REDIS_URL": settings.redis.url,
            "HOLDFAST_LOG_FORMAT": self._log_format,
            "PYTHONUNBUFFERED": "1",
        }
        if not settings.database.url:
            # One file for all processes: agents may change the working directory.
            environment["HOLDFAST_DATABASE_PATH"] = str(Path(settings.database.path).absolute())
        if settings.metrics.port:
            environment["METRICS_PORT"] = str(self._first_port + number - 1)
        return environment

    def _heartbeat(self, connections: Connections) -> Heartbeat:
        settings = self._settings
        members = Members.of(settings)
        name = f"{_KIND}-{uuid.uuid4()}"
        queues = [queue.name for queue in self._queues]
        return Heartbeat(members, connections.redis, self.metrics, kind=_KIND, name=name, queues=queues)

    def _report_ranges(self) -> None:
        for queue in self._queues:
            self._output.introduce(
                f"{queue.name}-1"
            )  # before the first line: all lines have one column of names
        for queue in self._queues:
            self._output.tell(queue.name, describe_range(queue))


def run_autoscaler(settings: Settings, app_path: str, bounds: Bounds | None = None) -> int:
    """Run the autoscaler until SIGTERM or SIGINT; return its exit code."""
    return run_process(lambda: _until_signal(settings, app_path, bounds))


async def _until_signal(settings: Settings, app_path: str, bounds: Bounds | None) -> None:
    log_format = resolved_format(settings.log)
    output = Logged() if log_format == "json" else Spoken(Console(sys.stderr, ourselves=_KIND))
    queues = [bounded(queue, bounds) for queue in settings.worker_queues()]
    scaler = Autoscaler(settings, app_path, output, queues=queues, log_format=log_format)
    on_signals(scaler.request_stop)
    # Before the first run arrives: without a worker at the start no other process would notice.
    verdict = await scaler.unless_stopped(check_app(app_path))
    if verdict is not None and verdict.problem:
        raise AppError(verdict.problem)
    await scaler.unless_stopped(scaler.check_store())
    with Exporter(scaler.metrics, settings.metrics, ready=lambda: scaler.ready):
        await scaler.run()
