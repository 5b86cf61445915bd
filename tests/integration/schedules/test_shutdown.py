"""A scheduler that leaves: turns may finish, the others go back, due at once; asking twice changes nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast import App, Context
from holdfast.schedules.entries import ScheduleState
from tests.support.schedules.manual_scheduler import redis_now
from tests.support.schedules.schedulers import SHORT_TTL_SECONDS, stage_of
from tests.support.waiting import until


@pytest.fixture
async def stage(redis, redis_settings):
    async with stage_of(redis, redis_settings) as stage:
        yield stage


@pytest.fixture
async def stage_of_short_leases(redis, redis_settings):
    async with stage_of(redis, redis_settings, ttl=SHORT_TTL_SECONDS) as stage:
        yield stage


def slow_app(began: list[str], seconds: float) -> App:
    app = App("test")

    @app.schedule(every=3600)
    async def slow(ctx: Context) -> None:
        began.append(ctx.run_id)
        await asyncio.sleep(seconds)

    return app


async def test_a_turn_may_finish(stage):
    began: list[str] = []
    running = await stage.start(slow_app(began, 0.4), zombies={"executor_shutdown_await_ms": 30_000})
    await until(lambda: began)
    await running.stop()
    entry = await stage.entry("slow", ScheduleState.WAITING)
    assert (entry.runs, entry.last_outcome, len(began)) == (1, "succeeded", 1)


async def test_a_turn_that_does_not_finish_goes_back_and_runs_elsewhere(stage):
    began: list[str] = []
    app = slow_app(began, 60)
    running = await stage.start(app, zombies={"executor_shutdown_await_ms": 100})
    await until(lambda: began)
    started = time.monotonic()
    await running.stop()
    assert time.monotonic() - started < 10  # of the 60 s that it would have taken
    entry = await stage.entry("slow", ScheduleState.WAITING)
    assert (entry.runs, entry.owner) == (0, "")
    assert entry.next_at <= await redis_now(stage.board.redis)
    assert running.scheduler.permits.taken == 0
    await stage.start(app, zombies={"executor_shutdown_await_ms": 0})
    await until(lambda: len(began) == 2)


async def test_what_goes_back_is_spread_over_the_jitter(stage):
    began: list[str] = []
    running = await stage.start(
        slow_app(began, 60), zombies={"executor_shutdown_await_ms": 0}, jitter={"shutdown_seconds": 3600}
    )
    await until(lambda: began)
    before = await redis_now(stage.board.redis)
    await running.stop()
    entry = await stage.entry("slow", ScheduleState.WAITING)
    assert before < entry.next_at <= await redis_now(stage.board.redis) + 3600


async def test_an_agent_that_ignores_the_shutdown_does_not_hold_it_up(stage):
    app, free, began = App("test"), asyncio.Event(), []

    @app.schedule(every=3600)
    async def stubborn() -> None:
        began.append(1)
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    short = {"executor_shutdown_await_ms": 0, "executor_shutdown_force_await_ms": 200}
    running = await stage.start(app, zombies=short)
    await until(lambda: began)
    try:
        await running.stop()
        assert (await stage.entry("stubborn")).state is ScheduleState.WAITING
        assert running.scheduler.left_behind == 1
    finally:
        free.set()


async def test_asking_twice_changes_nothing(stage):
    running = await stage.start(slow_app([], 0.1))
    running.process.request_stop()
    await running.stop()
    running.scheduler.quiet()
    assert running.task.done()


async def test_the_others_are_told_when_a_scheduler_leaves(stage):
    """They saw nothing to wait for while its turn ran; what it planned last is not to wait for their next look."""
    app, free, began = App("test"), asyncio.Event(), []

    @app.schedule(every=0.3)
    async def tick() -> None:
        began.append(time.monotonic())
        await free.wait()

    first = await stage.start(app, "first", interval_ms=60_000)
    await until(lambda: began)
    await stage.start(app, "second", interval_ms=60_000)
    channel = stage.board.keys.nudge
    await until(lambda: stage.board.redis.pubsub_numsub(channel), lambda found: found[0][1] >= 2)
    first.process.request_stop()
    free.set()
    await until(lambda: len(began) == 2)
    await first.stop()


async def test_a_scheduler_that_vanishes_leaves_its_turn_to_others(stage_of_short_leases):
    stage = stage_of_short_leases
    began: list[str] = []
    app = slow_app(began, 60)
    first = await stage.start(app, "first")
    await until(lambda: began)
    await stage.start(app, "second", zombies={"executor_shutdown_await_ms": 0})
    vanished = time.monotonic()
    await first.vanish()
    await until(lambda: len(began) == 2)
    assert (
        time.monotonic() - vanished < stage.system.settings.lease.ttl_seconds + 10
    )  # of the 60 s of its turn
    assert began[0] == began[1], "the same turn"
