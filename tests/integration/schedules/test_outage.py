"""Redis goes away under a scheduler: a breaker opens, nothing is lost, and the cadence goes on without a herd."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest

from holdfast import App, Context
from holdfast.config import BreakerSettings, RedisSettings, SenderSettings
from holdfast.redis.client import connect
from holdfast.redis.scripts import load
from holdfast.reliability.breaker import BreakerState
from holdfast.schedules.breakers import _PROBE_SECONDS
from tests.support.schedules.schedulers import stage_of
from tests.support.waiting import stays, until


@pytest.fixture
async def stage(redis, proxied_settings):
    # Nothing here waits for a timeout, and a short one would end where this machine is slow.
    patient = msgspec.structs.replace(
        proxied_settings, socket_timeout_seconds=30.0, connect_timeout_seconds=30.0
    )
    async with stage_of(redis, patient, ttl=2.0) as stage:
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
    await until(
        lambda: any(b.state is not BreakerState.CLOSED for b in running.scheduler.breakers.by_name.values())
    )
    await asyncio.sleep(2)
    fault_proxy.heal()
    before, back = len(times), time.monotonic()
    await until(lambda: len(times) >= before + 5)
    assert len(times) - before <= (times[-1] - back) / 0.2 + 2, "missed turns are one run, not a herd"
    await until(lambda: running.scheduler.permits.taken <= 1)  # a look takes some for a moment


@pytest.mark.parametrize("threshold", [3, 5])
async def test_a_redis_that_is_back_is_asked_at_once_however_long_the_cooldown_is(
    stage, fault_proxy, threshold
):
    """Fails if the first turn after an outage waits for the cooldown, here an hour."""
    app, ran = App("test"), []

    @app.schedule(every=0.2)
    async def tick() -> None:
        ran.append(1)

    running = await stage.start(
        app, interval_ms=50, breaker={"failure_threshold": threshold, "cooldown_ms": 3_600_000}
    )
    await until(lambda: ran)
    fault_proxy.refuse()
    await until(lambda: running.scheduler.breakers.furthest.state is BreakerState.OPEN)
    fault_proxy.heal()
    ran.clear()
    await until(lambda: len(ran) >= 3)


async def test_the_first_turn_comes_with_the_first_probe_that_redis_answers(stage, fault_proxy):
    """A probe comes every half second and takes a second at most, so this is within two seconds of Redis's return.

    Fails if a turn waits for anything after that probe: for a second one, or for the cooldown.
    """
    assert 3 * _PROBE_SECONDS <= 2
    app, ran, answered = App("test"), [], []

    @app.schedule(every=0.2)
    async def tick() -> None:
        ran.append(1)

    running = await stage.start(
        app, interval_ms=60_000, breaker={"failure_threshold": 3, "cooldown_ms": 3_600_000}
    )
    scheduler = running.scheduler
    probe = scheduler.breakers.takes_writes

    async def counted() -> bool:
        answers = await probe()
        if answers:
            answered.append(len(ran))
        return answers

    scheduler.breakers.takes_writes = counted
    await until(lambda: ran)
    fault_proxy.refuse()
    await until(lambda: scheduler.breakers.furthest.state is BreakerState.OPEN)
    await stays(lambda: not answered, seconds=2 * _PROBE_SECONDS)
    fault_proxy.heal()
    await until(lambda: answered and len(ran) > answered[0])
    assert len(answered) == 1, "the turn came before a second probe was needed"


@pytest.mark.parametrize("permits", [10, 2])
async def test_after_a_hang_no_schedule_waits_for_the_end_of_a_lease_that_no_scheduler_knows(
    start_valkey, permits
):
    """A frozen Redis executes, when it goes on, the acquisitions that its callers had given up.

    Fails if what they leased is left to the leases' end: no schedule would run for a ttl, then as attempt 2.
    """
    server = start_valkey()
    settings = RedisSettings(
        url=server.url, socket_timeout_seconds=0.5, connect_timeout_seconds=0.5, max_connections=50
    )
    app, ran, started, free = App("test"), [], [], asyncio.Event()

    async def tick(ctx: Context) -> None:
        ran.append((time.monotonic(), ctx.run_id.partition("@")[0], ctx.attempt))

    for number in range(10):
        app.schedule(every=0.2, name=f"tick-{number}")(tick)

    @app.schedule(every=3600)
    async def hold() -> None:
        started.append(time.monotonic())
        await free.wait()

    async with contextlib.aclosing(connect(settings)) as redis, stage_of(redis, settings, ttl=30.0) as stage:
        running = await stage.start(app, interval_ms=50, permits=permits)
        await until(lambda: started and len(ran) >= 20)
        server.freeze()
        await until(lambda: running.scheduler.breakers.furthest.state is BreakerState.OPEN)
        await asyncio.sleep(1)  # the probes of the breaker are given up too
        server.thaw()
        back = time.monotonic()
        ran.clear()
        await until(lambda: len({name for _, name, _ in ran}) == 10)
        assert {attempt for _, _, attempt in ran} == {1}
        assert ran[0][0] - back < 10, "a third of the ttl: about 2 s unless the machine is busy"
        assert running.count("schedule_reclaimed_total") == 0
        assert len(started) == 1, "a turn that runs here keeps its lease"
        free.set()


async def test_a_redis_that_takes_writes_again_is_asked_at_once_however_long_the_cooldown_is(stage):
    """Fails if schedules stand still for the cooldown after Redis was full or read-only, as in a failover."""
    app, ran, redis = App("test"), [], stage.board.redis

    @app.schedule(every=0.2)
    async def tick() -> None:
        ran.append(1)

    running = await stage.start(
        app, interval_ms=50, breaker={"failure_threshold": 3, "cooldown_ms": 3_600_000}
    )
    breakers = running.scheduler.breakers.by_name.values()
    await until(lambda: ran)
    try:
        await redis.config_set("maxmemory", 1)
        # The breaker of Redis also counts the end of a turn: then that of acquisitions stays one failure short.
        await until(lambda: any(breaker.state is BreakerState.OPEN for breaker in breakers))
        await stays(lambda: all(breaker.trips <= 1 for breaker in breakers), seconds=2.5)
    finally:
        await redis.config_set("maxmemory", 0)
    ran.clear()
    await until(lambda: len(ran) >= 3)


async def test_a_breaker_that_errors_have_opened_keeps_its_cooldown_though_redis_answers(stage):
    running = await stage.start(
        App("test"), interval_ms=20, breaker={"failure_threshold": 3, "cooldown_ms": 3_600_000}
    )
    keys, redis = stage.board.keys, stage.board.redis
    # Not the key of the probe, which would fail, too: it is what answers while the acquisitions fail.
    await redis.set(keys.definitions, "overwritten")
    await redis.zadd(keys.waiting, {"due": 0})
    breaker = running.scheduler.breakers.acquisition
    await until(lambda: breaker.state is BreakerState.OPEN)
    await stays(lambda: breaker.state is BreakerState.OPEN and breaker.trips == 1, seconds=2.5)
    await redis.delete(keys.definitions, keys.waiting)


async def test_a_target_that_does_not_answer_is_not_asked_by_every_turn(stage, fault_proxy):
    """Fails if a scheduler submits without a breaker: its turns would go on trying, each with a permit."""
    app, system = App("test"), stage.system
    breaker = BreakerSettings(failure_threshold=2, window_seconds=3600, cooldown_seconds=3600)
    system.settings = msgspec.structs.replace(
        system.settings,
        sender=SenderSettings(max_retries=100, retry_delay_seconds=0.01, retry_backoff=1.0),
        redis=msgspec.structs.replace(system.settings.redis, breaker=breaker),
    )

    @app.schedule(every=0.1, target=system.queue.name)
    async def later() -> None: ...

    fault_proxy.drop_replies(f"EVALSHA {load('holdfast.runs', 'submit').sha}", times=1000)
    running = await stage.start(app)
    entry = await stage.entry("later", runs=3)
    assert entry.last_outcome == "failed"
    assert fault_proxy.dropped == 2
    assert running.count("redis_breaker_state", queue=system.queue.name) == 2
