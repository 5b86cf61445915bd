"""What a scheduler tells of its turns: in its log, in the record of a schedule, and in its metrics."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from holdfast import App, Context
from holdfast.config import WorkerSettings
from holdfast.reliability.breaker import BreakerState as Breaker
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from tests.support.schedules.schedulers import SHORT_TTL_SECONDS, stage_of
from tests.support.waiting import stays, until


@pytest.fixture
async def stage(redis, redis_settings):
    async with stage_of(redis, redis_settings) as stage:
        yield stage


@pytest.fixture
async def stage_of_short_leases(redis, redis_settings):
    async with stage_of(redis, redis_settings, ttl=SHORT_TTL_SECONDS) as stage:
        yield stage


def told(lines: list[dict], event: str) -> list[dict]:
    return [line for line in lines if line["event"].startswith(event)]


async def test_a_failed_turn_is_logged_with_its_traceback_its_schedule_its_turn_and_its_attempt(
    stage, log_lines
):
    app, turns = App("test"), []

    @app.schedule(every=60)
    async def broken(ctx: Context) -> None:
        turns.append(ctx.run_id)
        raise ValueError("no such city")

    await stage.start(app)
    await stage.entry("broken", ScheduleState.WAITING, runs=1)
    (line,) = told(log_lines(), "turn failed")
    assert (line["level"], line["schedule"], line["turn"]) == ("warning", "broken", turns[0])
    assert (line["attempt"], line["error"]) == (1, "ValueError: no such city")
    assert 'raise ValueError("no such city")' in line["exception"]


async def test_a_good_turn_is_logged_with_its_schedule_and_turn(stage, log_lines):
    app, turns = App("test"), []

    @app.schedule(every=60)
    async def fine(ctx: Context) -> None:
        turns.append(ctx.run_id)

    await stage.start(app)
    await stage.entry("fine", ScheduleState.WAITING, runs=1)
    (line,) = told(log_lines(), "turn ended")
    assert (line["level"], line["schedule"], line["turn"]) == ("info", "fine", turns[0])
    assert (line["outcome"], line["attempt"]) == ("succeeded", 1)


async def test_the_last_error_stays_after_a_good_run_with_its_time(stage):
    app, ran = App("test"), []

    @app.schedule(every=60, error_interval=0.05)
    async def mended() -> None:
        ran.append(1)
        if len(ran) == 1:
            raise ValueError("only once")

    before = time.time()
    await stage.start(app)
    failed = await stage.entry("mended", ScheduleState.WAITING, runs=1)
    entry = await stage.entry("mended", ScheduleState.WAITING, runs=2)
    assert (entry.last_outcome, entry.last_error) == ("succeeded", "ValueError: only once")
    assert entry.last_error_at == failed.last_error_at
    assert before - 1 < (entry.last_error_at or 0) <= (entry.last_start or 0)


async def test_a_turn_of_a_dead_scheduler_is_the_next_attempt(stage_of_short_leases):
    stage = stage_of_short_leases
    app, attempts = App("test"), []

    @app.schedule(every=60)
    async def work(ctx: Context) -> None:
        attempts.append((ctx.run_id, ctx.attempt))
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    first = await stage.start(app, "first")
    await until(lambda: attempts)
    await first.vanish()
    stage.schedulers.remove(first)
    await stage.start(app, "second")
    await stage.entry("work", ScheduleState.WAITING, runs=1)
    (turn, one), (again, two) = attempts
    assert (one, two) == (1, 2)
    assert turn == again


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_failures_that_pause_a_schedule_are_logged_also_those_of_parallel_turns(
    stage, log_lines, overlap
):
    """The second of two turns side by side has read the streak before the first one failed: only Redis counts both."""
    app, going = App("test"), []
    both = asyncio.Event()

    @app.schedule(every=0.1, error_interval=0.05, overlap=overlap, overlap_most=2, pause_after_failures=2)
    async def broken() -> None:
        going.append(1)
        if overlap == "allow":
            both.set() if len(going) >= 2 else await both.wait()
        raise ValueError("no such city")

    await stage.start(app)
    entry = await stage.entry("broken", ScheduleState.PAUSED)
    assert entry.paused.endswith("failures in a row")
    await until(lambda: told(log_lines(), "schedule paused"))
    (line,) = told(log_lines(), "schedule paused")
    assert (line["level"], line["schedule"], line["error"]) == ("error", "broken", "ValueError: no such city")
    assert "schedules resume broken" in line["advice"]


async def test_the_watchdog_names_the_schedule_whose_turn_blocks(stage, log_lines):
    app, turns = App("test"), []

    @app.schedule(every=60)
    async def greedy(ctx: Context) -> None:
        turns.append(ctx.run_id)
        end = time.monotonic() + 30
        while time.monotonic() < end and not barks():
            sum(range(1000))

    def barks() -> list[dict]:
        return [line for line in told(log_lines(), "the event loop is blocked") if line.get("schedule")]

    settings = stage.system.settings
    stage.system.settings = msgspec.structs.replace(settings, worker=WorkerSettings(blocked_seconds=0.1))
    await stage.start(app)
    await stage.entry("greedy", ScheduleState.WAITING, runs=1)
    assert [(line["schedule"], line["turn"]) for line in barks()] == [("greedy", turns[0])]
    assert "in greedy" in barks()[0]["where"] or "greedy" in barks()[0]["stack"]


async def test_while_redis_is_away_the_breaker_is_in_the_log_and_in_the_metrics(
    redis, proxied_settings, fault_proxy, log_lines
):
    app = App("test")

    @app.schedule(every=0.2)
    async def tick() -> None: ...

    patient = msgspec.structs.replace(
        proxied_settings, socket_timeout_seconds=30.0, connect_timeout_seconds=30.0
    )
    async with stage_of(redis, patient) as stage:
        running = await stage.start(
            app,
            interval_ms=50,
            health_summary_period_seconds=0.05,  # the gauges are set as often
            breaker={"failure_threshold": 3, "cooldown_ms": 500, "half_open_duration_ms": 500},
        )
        await stage.entry("tick", runs=1)
        fault_proxy.refuse()
        await until(lambda: running.count("schedule_breaker_state", kind="redis") > 0)
        await until(lambda: told(log_lines(), "Redis unavailable"))
        assert running.count("schedule_breaker_events_total", kind="redis", reason="trip") >= 1
        fault_proxy.heal()
        await until(lambda: told(log_lines(), "Redis available again"))
        assert not told(log_lines(), "circuit breaker open"), "the outage has its own lines"
        await until(lambda: running.count("schedule_breaker_state", kind="redis") == 0)
        # The other one closes with the next acquisition, if the end of a turn was what closed this one.
        await until(
            lambda: all(one.state is Breaker.CLOSED for one in running.scheduler.breakers.by_name.values())
        )


@pytest.mark.parametrize("made_later", [False, True])
async def test_a_target_that_nobody_serves_is_warned_of_once(stage, log_lines, made_later):
    app, known = App("test"), stage.system.queue.name

    @app.schedule(every=0.02, target="medya", name="lost")
    async def work() -> None: ...

    @app.schedule(every=3600, target=known, name="fine")
    async def other() -> None: ...

    if made_later:
        await stage.board.registry.register(list(app.schedules.values()))
        app = App("without")
    await stage.start(app)
    await stage.entry("lost", runs=3)
    (said,) = told(log_lines(), "nobody serves queue")
    assert "queue 'medya' by these settings; known are " in said["event"]
    assert (said["schedule"], said["queue"], said["level"]) == ("lost", "medya", "warning")
    assert known in said["known"]


async def test_a_warning_names_the_due_schedules_whose_agent_this_app_has_not(stage, log_lines):
    gone = [Schedule(name=f"gone-{n}", agent="old", trigger=Every(seconds=3600)) for n in range(4)]
    await stage.board.registry.register(gone)
    await stage.start(App("test"), health_summary_period_seconds=0.05)
    (said, *_) = await until(lambda: told(log_lines(), "schedules are due that this app has no agent for"))
    assert (said["level"], said["schedules"]) == ("warning", 4)
    assert said["without_agent"] == [f"gone-{n} (agent old)" for n in range(3)]
    assert "deploy it, or `holdfast schedules remove gone-0 --force`" in said["advice"]
    await stays(
        lambda: len(told(log_lines(), "schedules are due that this app has no agent for")) == 1, seconds=0.5
    )
