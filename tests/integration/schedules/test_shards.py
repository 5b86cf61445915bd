"""Schedulers with shares: one that leaves or dies is replaced without waiting for its heartbeat to be missed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from holdfast import App, Context
from holdfast.redis.keys import member_key, members_key
from holdfast.redis.members import Members
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from tests.support.schedules.schedulers import SHORT_TTL_SECONDS, RunningScheduler, Stage, stage_of
from tests.support.waiting import until

NAMES = [f"s{n}" for n in range(20)]


@pytest.fixture
async def stage(redis, redis_settings):
    """Nobody hears a heartbeat here, or misses one: a test ends long before."""
    async with stage_of(redis, redis_settings, ttl=SHORT_TTL_SECONDS, heartbeat=600.0) as stage:
        yield stage


@pytest.fixture
async def lasting_stage(redis, redis_settings):
    """No lease ends here, either: of a change a scheduler hears by its notification only."""
    async with stage_of(redis, redis_settings, ttl=600.0, heartbeat=600.0) as stage:
        yield stage


async def two(stage: Stage, app: App, **changes) -> tuple[RunningScheduler, RunningScheduler]:
    first = await stage.start(app, "first", sharding="rendezvous", **changes)
    second = await stage.start(app, "second", sharding="rendezvous", **changes)
    await until(lambda: shares_of(first) == shares_of(second) == ("first", "second"))
    return first, second


def shares_of(running: RunningScheduler) -> tuple[str, ...]:
    shards = running.scheduler.shards
    return shards.pods if shards else ()


async def test_a_scheduler_that_drains_has_no_share_from_then_on(lasting_stage):
    """Fails if the others hear of it with a heartbeat only, at the end of its leases, or when it has left."""
    app, began, free = App("test"), asyncio.Event(), asyncio.Event()

    @app.schedule(every=3600)
    async def work() -> None:
        began.set()
        await free.wait()

    schedulers = await two(lasting_stage, app, zombies={"executor_shutdown_await_ms": 600_000})
    await until(began.is_set)
    busy, other = sorted(schedulers, key=lambda one: not len(one.scheduler.running))
    try:
        busy.process.request_stop()
        await until(lambda: shares_of(other) == (other.process.name,))
        assert len(busy.scheduler.running) == 1
    finally:
        free.set()


async def test_a_scheduler_that_runs_no_schedules_has_no_share(stage, log_lines):
    """Fails if names belong to one with `redis.scheduler.enabled: false`, or if it reports a backlog."""
    off = await stage.start(
        App("test"), "off", sharding="rendezvous", enabled=False, health_summary_period_seconds=0.01
    )
    members = Members(prefix="", heartbeat_seconds=600.0)
    found = await until(lambda: members.find(stage.board.redis, "scheduler", "off"))
    assert found.fields["state"] == "disabled"
    on = await stage.start(App("test"), "on", sharding="rendezvous")
    assert await until(lambda: shares_of(on)) == ("on",)
    assert shares_of(off) == ()
    assert not [line for line in log_lines() if line["event"].startswith("Scheduler health")]


async def test_a_dead_scheduler_has_no_share_from_the_end_of_its_leases_on(stage):
    """Fails if it keeps its share for three heartbeats, here half an hour: each turn would be late by a ttl."""
    first, second = await two(stage, App("test"))
    await second.vanish()
    await until(lambda: shares_of(first) == ("first",))


async def test_a_dead_schedulers_share_is_run_by_others_once_it_is_overdue_by_a_ttl(stage, redis):
    """Fails if its share stands still until nobody counts it any more, here never."""
    app, ran = App("test"), Counter()

    async def work(ctx: Context) -> None:
        ran[ctx.run_id.partition("@")[0]] += 1

    app.register("work", work)
    schedules = [Schedule(name=name, agent="work", trigger=Every(seconds=0.3)) for name in NAMES]
    await stage.board.registry.register(schedules)
    first, second = await two(stage, app)
    share = {name for name in NAMES if second.scheduler.accepts(name)}
    assert 0 < len(share) < len(NAMES)
    await until(lambda: set(ran) == set(NAMES))
    await second.vanish()
    # Its record stays, as that of a process which only its work has left.
    await redis.expire(member_key("scheduler", "second"), 3600)
    await redis.zadd(members_key(), {"scheduler:second": time.time() + 3600})
    ran.clear()
    await until(lambda: all(ran[name] >= 2 for name in NAMES))
    assert shares_of(first) == ("first", "second")
    assert not any(first.scheduler.accepts(name) for name in share)
