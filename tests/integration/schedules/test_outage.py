"""Redis goes away under a scheduler: a breaker opens, nothing is lost, and the cadence goes on without a herd."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from scheduling import stage_of
from system import until

from holdfast import App
from holdfast.redis.breaker import State


@pytest.fixture
async def stage(redis, proxied_settings):
    async with stage_of(redis, proxied_settings, ttl=2.0) as stage:
        yield stage


async def test_the_cadence_goes_on_after_an_outage(stage, fault_proxy):
    app, times = App("test"), []

    @app.schedule(every=0.2)
    async def tick() -> None:
        times.append(time.monotonic())

    running = await stage.start(
        app,
        interval_ms=200,
        breaker={"failure_threshold": 3, "cooldown_ms": 500, "half_open_duration_ms": 500},
    )
    await until(lambda: len(times) >= 3)
    fault_proxy.refuse()
    await until(lambda: any(b.state is not State.CLOSED for b in running.scheduler.breakers.values()))
    await asyncio.sleep(2)
    fault_proxy.heal()
    before, back = len(times), time.monotonic()
    await until(lambda: len(times) >= before + 5)
    gaps = [b - a for a, b in itertools.pairwise(times[-4:])]
    assert min(gaps) > 0.1, "missed turns are one run, not a herd"
    assert time.monotonic() - back < 8
    await until(lambda: running.scheduler.permits.taken <= 1)  # a look takes some for a moment
