"""Scaling: how soon the depth of many queues is known, KEDA is answered, and a stream hears of the first run.

The scaler is the real command in a process of its own, asked over gRPC as KEDA does. Bare = an empty call of
the same server (``grpc.health.v1``): what gRPC itself costs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench import harness
from bench.figures import Figure, Goal, median_of, percentile
from holdfast.config import QueueSettings, RedisSettings, Settings
from holdfast.runs.run import Submission
from holdfast.scaling.depth import needs
from holdfast.scaling.proto import externalscaler_pb2 as wire
from holdfast.scaling.proto.externalscaler_pb2_grpc import ExternalScalerStub
from holdfast.services.connections import Connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bench.harness import Plan, Server

_QUEUES = 50
_TOGETHER = 50


async def measure(plan: Plan) -> list[Figure]:
    async with harness.server() as on:
        figures = await _depths(on, plan)
        async with _scaler(on) as channel:
            figures += await _answers(channel, plan)
            figures += await _wakes(on, channel, plan)
    return figures


def _names() -> list[str]:
    return [f"queue-{number}" for number in range(_QUEUES)]


async def _depths(on: Server, plan: Plan) -> list[Figure]:
    """The depth of all queues, each with work, in one call."""
    settings = Settings(
        redis=RedisSettings(url=on.url), queues={name: QueueSettings(name=name) for name in _names()}
    )
    async with Connections(settings) as connections:
        queues = [connections.queue(settings.queue_named(name)) for name in _names()]
        for queue in queues:
            await queue.ensure()
            await queue.submit_many([Submission(agent="noop") for _ in range(20)])
        took = await _timed(lambda: needs(connections.redis, queues), plan.pick(1000, 50))
        for queue in queues:
            await on.redis.delete(*queue.keys.lanes)
    plan.say(f"depth of {_QUEUES} queues: {statistics.median(took):.2f} ms")
    return [
        Figure(f"depth of {_QUEUES} queues, p50", statistics.median(took), "ms", goal=Goal("<", 5)),
        Figure(f"depth of {_QUEUES} queues, p99", percentile(took, 0.99), "ms"),
    ]


@contextlib.asynccontextmanager
async def _scaler(on: Server) -> AsyncIterator[aio.Channel]:
    environ = {
        "REDIS_URL": on.url,
        "HOLDFAST_SCALER_PORT": "0",
        "HOLDFAST_WORKER_QUEUES": ",".join(_names()),
        "HOLDFAST_SCALER_POLL_SECONDS": "60",  # so that only the wake-up is measured
    }
    with tempfile.TemporaryDirectory(prefix="hfbench") as cwd:
        command = (
            "-c",
            "import sys; sys.stderr = sys.stdout; from holdfast.cli import main; main(sys.argv[1:])",
        )
        async with harness.Child.of(*command, "scaler", "--json", cwd=cwd, **environ) as child:
            ready = await child.result()
            while ready["event"] != "scaler ready":
                ready = await child.result()
            async with aio.insecure_channel(f"127.0.0.1:{json.dumps(ready['port'])}") as channel:
                await channel.channel_ready()
                yield channel


def _ref(number: int) -> wire.ScaledObjectRef:
    return wire.ScaledObjectRef(
        name="w", namespace="n", scalerMetadata={"queue": f"queue-{number % _QUEUES}"}
    )


async def _answers(channel: aio.Channel, plan: Plan) -> list[Figure]:
    stub, health = ExternalScalerStub(channel), health_pb2_grpc.HealthStub(channel)

    async def ask(number: int = 0) -> None:
        name = f"holdfast-queue-{number % _QUEUES}"
        await stub.GetMetrics(wire.GetMetricsRequest(scaledObjectRef=_ref(number), metricName=name))

    async def empty() -> None:
        await health.Check(health_pb2.HealthCheckRequest())

    count = plan.pick(5000, 200)
    await _timed(ask, 50)
    one = await _timed(ask, count)
    bare = await _timed(empty, count)
    many: list[float] = []

    async def timed(number: int) -> None:
        many.extend(await _timed(lambda: ask(number), 1))

    for _ in range(plan.pick(100, 5)):
        await asyncio.gather(*(timed(number) for number in range(_TOGETHER)))
    plan.say(f"GetMetrics: {statistics.median(one):.2f} ms, an empty call {statistics.median(bare):.2f} ms")
    return [
        median_of("GetMetrics, p50", "ms", one, bare),
        Figure("GetMetrics, p99", percentile(one, 0.99), "ms", goal=Goal("<", 10)),
        Figure(f"GetMetrics of {_TOGETHER} queues at once, p99", percentile(many, 0.99), "ms"),
    ]


async def _wakes(on: Server, channel: aio.Channel, plan: Plan) -> list[Figure]:
    """From the submit of a first run to the stream that says so; a hundred streams are open."""
    stub = ExternalScalerStub(channel)
    streams = [stub.StreamIsActive(_ref(number)) for number in range(2 * _QUEUES)]
    took: list[float] = []
    for stream in streams:
        assert (await stream.read()).result is False
    for number in range(plan.pick(_QUEUES, 5)):  # each queue once: it stays active, as nobody takes its run
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await on.redis.xadd(f"queue-{number}", {"message_data": "{}"})
        assert (await streams[number].read()).result is True
        took.append(1000 * (time.monotonic() - began))
    for stream in streams:
        stream.cancel()
    plan.say(f"wake-up: {statistics.median(took):.2f} ms")
    return [
        Figure("first run to pushed stream, p50", statistics.median(took), "ms", goal=Goal("<", 1000)),
        Figure("first run to pushed stream, p99", percentile(took, 0.99), "ms", goal=Goal("<", 1000)),
    ]


async def _timed(call: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """The milliseconds of each of these calls, one after the other."""
    took: list[float] = []
    for _ in range(count):
        began = time.monotonic()
        await call()
        took.append(1000 * (time.monotonic() - began))
    return took
