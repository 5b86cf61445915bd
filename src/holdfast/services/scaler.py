"""The scaler process: reports to KEDA over gRPC how many workers each queue needs, until SIGTERM.

::

    SIGTERM ─> probes: not serving ─> streams end, KEDA reconnects to another ─> open calls end ─> exit 0

It is ready as soon as it listens, also while Redis is unavailable: KEDA keeps the current workers when a call
returns UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from holdfast.redis.members import Members
from holdfast.scaling.asking import Asker
from holdfast.scaling.external import Scaler
from holdfast.scaling.server import ScalerServer
from holdfast.scaling.waking import Watches
from holdfast.services.connections import Connections
from holdfast.services.heartbeat import Heartbeat
from holdfast.services.process import calm_collector, run_process
from holdfast.services.signals import on_signals
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from holdfast.config import Settings

_log = get_logger(__name__)


class ScalerService:
    """One scaler with its server and background tasks."""

    def __init__(self, connections: Connections, metrics: Metrics, *, name: str = "") -> None:
        settings = connections.settings
        redis, scaler = connections.redis, settings.scaler
        self.name = name or f"scaler-{uuid.uuid4()}"
        self.metrics = metrics
        self._host = scaler.host
        self._server = ScalerServer(scaler)
        self.port = self._server.port
        self._queues = {
            name: connections.queue(settings.queue_named(name)) for name in settings.queue_names()
        }
        self._asker = Asker(redis, settings.redis.url, seconds=scaler.answer_seconds)
        self._watches = Watches(redis, settings.redis, self._asker, poll_seconds=scaler.poll_seconds)
        self._scaler = Scaler(self._queues, self._asker, self._watches, metrics)
        members = Members.of(settings)
        self._heartbeat = Heartbeat(
            members, redis, metrics, kind="scaler", name=self.name, queues=self._queues
        )
        self._stop = asyncio.Event()

    @property
    def leaving(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Begin the shutdown."""
        self._stop.set()

    async def run(self) -> None:
        """Serve calls until asked to stop."""
        try:
            async with self._server.serving(self._scaler), asyncio.TaskGroup() as group:
                upkeep = [group.create_task(each) for each in (self._heartbeat.beat(), self._watches.run())]
                _log.info(
                    "scaler ready", name=self.name, host=self._host, port=self.port, queues=list(self._queues)
                )
                await self._stop.wait()
                _log.info("scaler draining", name=self.name)
                await self._server.leave()  # guard: scaler-not-ready-on-stop
                self._watches.leave()  # guard: scaler-stop-ends-streams
                for task in upkeep:
                    task.cancel()
        finally:
            await self._asker.aclose()
            await self._heartbeat.leave()
            _log.info("scaler left", name=self.name)


def run_scaler(settings: Settings) -> int:
    """Run a scaler until SIGTERM or SIGINT; return its exit code."""
    return run_process(lambda: _until_signal(settings))


async def _until_signal(settings: Settings) -> None:
    metrics = Metrics()
    async with Connections(settings) as connections:
        service = ScalerService(connections, metrics)
        on_signals(service.request_stop)
        calm_collector()
        with Exporter(metrics, settings.metrics, ready=lambda: not service.leaving):
            await service.run()
