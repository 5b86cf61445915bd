"""A counter that appears at 1 has no increase: those that alerts watch are there before anything has happened."""

from __future__ import annotations

import asyncio

from holdfast import App
from holdfast.services.connections import Connections
from holdfast.services.janitor import Janitor
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.system import System
from tests.support.waiting import until

TROUBLE = ("runs_reclaimed", "runs_restored", "stale_settles_refused", "cleanup_errors")


def seen(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"holdfast_{name}_total", labels)


async def test_a_worker_shows_its_counters_of_trouble_from_the_start(redis, redis_settings):
    app, ended = App("desk"), asyncio.Event()

    @app.agent
    async def wait() -> None:
        await ended.wait()

    async with System(redis_settings) as system:
        worker = await system.worker(app)
        metrics, queue = worker.process.metrics, system.queue.name
        assert [seen(metrics, name, queue=queue) for name in TROUBLE] == [0, 0, 0, 0]
        run = await system.submit("wait")
        await until(lambda: seen(metrics, "leases_lost", kind="run") is not None)
        assert seen(metrics, "leases_lost", kind="run") == 0
        ended.set()
        await system.ended(run)


async def test_a_janitor_does_so_for_every_queue(redis, redis_settings):
    async with System(redis_settings) as system, Connections(system.settings) as connections:
        metrics = Metrics()
        Janitor(connections, metrics)
        assert [seen(metrics, name, queue=system.queue.name) for name in TROUBLE] == [0, 0, 0, 0]
