"""A whole scheduler: declared in code, registered, run when due, planned again; by hand, by queue, and to its end."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest

from holdfast import App, AppError, Context, InputError
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.replies import ChangeReply
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every, Once
from tests.support.schedules.schedulers import stage_of
from tests.support.waiting import stays, until


@pytest.fixture
async def stage(redis, redis_settings):
    async with stage_of(redis, redis_settings) as stage:
        yield stage


def test_a_schedule_is_declared_beside_its_agent():
    app = App("test")

    @app.schedule(every="5m", timeout="30s", priority=2)
    @app.schedule(cron="0 3 * * *", tz="Europe/Berlin", name="nightly")
    async def tidy(ctx: Context) -> None: ...

    assert list(app.agents) == ["tidy"]
    assert {name: (one.agent, one.timeout_seconds) for name, one in app.schedules.items()} == {
        "nightly": ("tidy", 300.0),
        "tidy": ("tidy", 30.0),
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give exactly one of every, cron and at"),
        ({"every": "5m", "cron": "* * * * *"}, "every and cron"),
        ({"every": 60, "priority": 10}, "priority"),
        ({"every": 60, "timeout": "soon"}, "timeout"),
        ({"cron": "61 * * * *"}, "expression"),
    ],
)
def test_a_wrong_declaration_stops_the_app(options, said):
    app = App("test")
    with pytest.raises(InputError, match=said):
        app.schedule(**options)(lambda_named())
    assert not app.schedules
    assert not app.agents


def lambda_named():
    async def work() -> None: ...

    return work


def test_two_schedules_have_two_names():
    app = App("test")
    app.schedule(every=60)(work := lambda_named())
    with pytest.raises(AppError, match="already"):
        app.schedule(every=30)(work)


async def test_a_schedule_runs_again_and_again_on_its_cadence(stage):
    app, times = App("test"), []

    @app.schedule(every=0.2, input={"id": 7})
    async def tick(ctx: Context, payload: dict) -> None:
        times.append((float(ctx.run_id.partition("@")[2]), time.time()))
        assert payload == {"id": 7}

    await stage.start(app)
    await until(lambda: len(times) >= 6)
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(times)]
    assert min(gaps) > 0.199
    assert sum(gaps) / len(gaps) < 2
    assert all(began >= due - 0.001 for due, began in times)
    entry = await stage.entry("tick", runs=5)
    assert (entry.last_outcome, entry.streak) == ("succeeded", 0)


async def test_a_sync_agent_runs_in_a_thread(stage):
    app, threads = App("test"), []

    @app.schedule(every=60)
    def work() -> None:
        threads.append(threading.current_thread())

    running = await stage.start(app)
    await stage.entry("work", ScheduleState.WAITING, runs=1)
    assert threads[0] is not threading.main_thread()
    await until(lambda: running.scheduler.permits.taken == 0)


async def test_a_one_shot_runs_once_and_is_done(stage):
    app, ran = App("test"), []
    app.schedule(at=time.time() + 0.2, name="once")(named(ran))
    await stage.start(app)
    assert (await stage.entry("once", ScheduleState.DONE)).runs == 1
    assert len(ran) == 1


def named(ran: list):
    async def work() -> None:
        ran.append(1)

    return work


async def test_a_failure_counts_and_its_error_is_kept(stage):
    app = App("test")

    @app.schedule(every=60, error_interval=0.05, pause_after_failures=3)
    async def broken() -> None:
        raise ValueError("no such city")

    running = await stage.start(app)
    entry = await stage.entry("broken", ScheduleState.PAUSED)
    assert (entry.streak, entry.runs, entry.last_outcome) == (3, 3, "failed")
    assert "no such city" in entry.last_error
    assert entry.paused == "3 failures in a row"
    assert running.count("schedule_runs_total", status="failed") == 3


async def test_a_new_schedule_wakes_the_scheduler(stage):
    """The nudge: without it the next look would come after an hour."""
    app, ran = App("test"), []
    app.register("work", named(ran))
    await stage.start(app, interval_ms=3_600_000)
    await until(lambda: stage.board.redis.pubsub_numsub(stage.board.keys.nudge), lambda found: found[0][1])
    await stage.board.registry.register([Schedule(name="new", agent="work", trigger=Every(seconds=60))])
    await until(lambda: ran)


async def test_a_trigger_runs_now_and_moves_no_turn(stage):
    app, ran = App("test"), []
    app.register("work", named(ran))
    await stage.start(app)
    later = time.time() + 3600
    await stage.board.registry.register([Schedule(name="late", agent="work", trigger=Once(at=later))])
    assert await stage.board.registry.trigger(["late"]) == [ChangeReply.TRIGGERED]
    await until(lambda: ran)
    entry = await stage.entry("late", ScheduleState.WAITING)
    assert entry.next_at == pytest.approx(later, abs=0.01)
    assert len(ran) == 1


async def test_a_stop_ends_a_turn_and_its_schedule_goes_on(stage):
    app, began = App("test"), []

    @app.schedule(every=3600)
    async def slow() -> None:
        began.append(1)
        await asyncio.Event().wait()

    await stage.start(app)
    await until(lambda: began)
    assert await stage.board.registry.stop(["slow"], "enough") == [ChangeReply.STOPPING]
    entry = await stage.entry("slow", ScheduleState.WAITING)
    assert entry.last_outcome == "cancelled"


async def test_a_target_submits_a_run_once_per_turn(stage):
    app = App("test")
    queue = stage.system.queue

    @app.schedule(every=0.3, target=queue.name, input=3, max_runs=2)
    async def later(payload: int) -> int:
        return payload + 1

    await stage.start(app)
    await stage.entry("later", ScheduleState.DONE)
    await stage.system.worker(app)
    runs = [await queue.get(run.id) for run in (await queue.list()).runs]
    assert [(run.agent, run.metadata["schedule"]) for run in runs] == [("later", "later")] * 2
    assert {(await stage.system.ended(run.id)).result for run in runs} == {4}


async def test_what_another_app_has_the_agent_for_is_left_to_it(stage):
    here, there, ran = App("here"), App("there"), []
    there.schedule(every=0.1, name="theirs")(named(ran))
    await stage.start(here)
    await stage.board.registry.register(list(there.schedules.values()))
    await stays(lambda: not ran, seconds=0.3)
    await stage.start(there)
    await until(lambda: len(ran) >= 3)


async def test_disabled_names_are_not_run(stage):
    app, ran, other = App("test"), [], []
    app.schedule(every=0.05, name="nightly-report")(named(ran))
    app.register("other", named(other))
    await stage.board.registry.register([Schedule(name="report", agent="other", trigger=Every(seconds=0.05))])
    await stage.start(app, agent={"disabled_pattern": "nightly-.*"})
    await until(lambda: len(other) >= 3)
    assert not ran


async def test_overlap_cancel_makes_room_for_the_next_turn(stage):
    app, began = App("test"), []

    @app.schedule(every=0.2, overlap="cancel")
    async def slow() -> None:
        began.append(1)
        await asyncio.Event().wait()

    await stage.start(app)
    await until(lambda: len(began) >= 3)
    assert (await stage.entry("slow", runs=2)).last_outcome == "cancelled"


async def test_shards_share_the_schedules(stage):
    app, ran = App("test"), {}

    async def work(ctx: Context) -> None:
        ran.setdefault(ctx.run_id.partition("@")[0], 0)

    app.register("work", work)
    names = [f"s{n}" for n in range(20)]
    await stage.board.registry.register(
        [Schedule(name=n, agent="work", trigger=Every(seconds=0.2)) for n in names]
    )
    first = await stage.start(app, "first", sharding="rendezvous")
    second = await stage.start(app, "second", sharding="rendezvous")

    def know_each_other() -> bool:
        shards = [each.scheduler.shards for each in (first, second)]
        return all(one and len(one.pods) == 2 for one in shards)

    await until(know_each_other)
    ran.clear()
    await until(lambda: len(ran) == 20)
    await until(know_each_other)  # a busy machine may have kept one from saying that it lives
    mine = {n for n in names if first.scheduler.accepts(n)}
    assert 0 < len(mine) < 20
    assert {n for n in names if second.scheduler.accepts(n)} == set(names) - mine
