"""Scalers of KEDA for tests: in this process or in one of their own, and a client that speaks as KEDA does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from holdfast.config import MessagingSettings, QueueSettings, RedisSettings, Settings, WorkerSettings
from holdfast.config.scaler import ScalerSettings
from holdfast.config.scaling import ScalingSettings
from holdfast.redis.client import Redis
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission
from holdfast.scaling.proto import externalscaler_pb2 as wire
from holdfast.scaling.proto.externalscaler_pb2_grpc import ExternalScalerStub
from holdfast.services.connections import Connections
from holdfast.services.scaler import ScalerService
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.system import WorkerChild
from tests.support.waiting import until

QUEUE, OTHER = "agent-queue", "browser-jobs"


def settings_of(redis: RedisSettings, **scaler: Any) -> Settings:
    """Two queues: the default one with 3 slots, the other with 5.

    Redis may take long to answer: the default 2 s are over where a busy machine has no CPU for us or for Redis.
    """
    return Settings(
        redis=redis,
        messaging=MessagingSettings(queue=QUEUE),
        queue=QueueSettings(name=QUEUE),
        queues={OTHER: QueueSettings(name=OTHER, slots=5, scaling=ScalingSettings(age_weight=1.0))},
        worker=WorkerSettings(heartbeat_seconds=0.5),
        scaler=ScalerSettings(**{"port": 0, "poll_seconds": 0.2, "answer_seconds": 30.0, **scaler}),
    )


def ref(queue: str = QUEUE, **metadata: str) -> wire.ScaledObjectRef:
    """What KEDA sends of a ScaledObject; it adds its own keys."""
    given = {"scalerAddress": "dns:///scaler:9800", **({"queue": queue} if queue else {}), **metadata}
    return wire.ScaledObjectRef(name="workers", namespace="ns", scalerMetadata=given)


class Caller:
    """Calls a scaler as KEDA does."""

    def __init__(self, port: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        self.channel = aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        self.stub: Any = ExternalScalerStub(self.channel)

    async def active(self, queue: str = QUEUE, **metadata: str) -> bool:
        return (await self.stub.IsActive(ref(queue, **metadata), timeout=30)).result

    async def spec(self, queue: str = QUEUE, **metadata: str) -> wire.MetricSpec:
        (spec,) = (await self.stub.GetMetricSpec(ref(queue, **metadata), timeout=30)).metricSpecs
        return spec

    async def value(self, queue: str = QUEUE, metric: str = "", **metadata: str) -> wire.MetricValue:
        """Ask for the metric that the scaler itself has named, as KEDA does."""
        metric = metric or (await self.spec(queue, **metadata)).metricName
        request = wire.GetMetricsRequest(scaledObjectRef=ref(queue, **metadata), metricName=metric)
        (value,) = (await self.stub.GetMetrics(request, timeout=30)).metricValues
        return value

    def stream(self, queue: str = QUEUE, **metadata: str) -> Any:
        return self.stub.StreamIsActive(ref(queue, **metadata))


async def heard(stream: Any, seconds: float = 30.0) -> Any:
    """The next thing that a stream says: True, False, or aio.EOF at its end."""
    said = await asyncio.wait_for(stream.read(), seconds)
    return said if said is aio.EOF else said.result


@contextlib.asynccontextmanager
async def serving(settings: Settings, name: str = "s") -> AsyncIterator[ScalerService]:
    """A scaler in this process."""
    async with Connections(settings) as connections:
        service = ScalerService(connections, Metrics(), name=name)
        task = asyncio.create_task(service.run())
        try:
            yield service
        finally:
            service.request_stop()
            await asyncio.wait_for(task, 30)


@contextlib.asynccontextmanager
async def calling(settings: Settings) -> AsyncIterator[Caller]:
    """A scaler in this process, and a caller of it."""
    async with serving(settings) as service:
        caller = Caller(service.port)
        try:
            yield caller
        finally:
            await caller.channel.close()


def queue_of(redis: Redis, name: str = QUEUE, **options: Any) -> RunQueue:
    return RunQueue(QueueSettings(name=name, **options), redis)


async def submit(redis: Redis, count: int = 1, name: str = QUEUE, **options: Any) -> RunQueue:
    """Submit runs that nobody takes."""
    queue = queue_of(redis, name)
    await queue.ensure()
    for _ in range(count):
        await queue.submit(Submission(agent="a", **options))
    return queue


class ScalerChild(WorkerChild):
    """A scaler in a process of its own."""

    def __init__(self, settings: Settings, name: str = "s", **environ: str) -> None:
        code = (
            "import sys; from holdfast.config import load; from holdfast.services.scaler import run_scaler; "
            "from holdfast.telemetry.logs import configure; "
            "s = load().settings; configure(s.log); sys.exit(run_scaler(s))"
        )
        variables = {
            "HOLDFAST_SCALER_PORT": str(settings.scaler.port),
            "HOLDFAST_SCALER_POLL_SECONDS": str(settings.scaler.poll_seconds),
            "HOLDFAST_SCALER_ANSWER_SECONDS": str(settings.scaler.answer_seconds),
            "HEARTBEAT_INTERVAL": str(settings.worker.heartbeat_seconds),
        }
        super().__init__(settings, "", name, code=code, **variables | environ)

    @property
    def _ready(self) -> str:
        found = re.search(r'^.*"event":"scaler ready".*$', self.logged(), re.MULTILINE)
        return found[0] if found else ""

    @property
    def port(self) -> int:
        return json.loads(self._ready)["port"]

    async def ready(self) -> ScalerChild:
        await until(lambda: self.process.poll() is not None or self._ready, seconds=60)
        assert self.process.poll() is None, self.close()
        return self


@contextlib.asynccontextmanager
async def children(settings: Settings, *names: str, **environ: str) -> AsyncIterator[list[ScalerChild]]:
    """Scalers of these names, each in a process of its own."""
    started = [ScalerChild(settings, name, **environ) for name in names]
    try:
        yield [await child.ready() for child in started]
    finally:
        for child in started:
            print(child.close(), file=sys.stderr)
