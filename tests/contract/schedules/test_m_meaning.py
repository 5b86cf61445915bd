"""M: what the document's settings do that no other group looks at."""

from __future__ import annotations

import asyncio
import functools
import threading

import pytest

from holdfast import App
from holdfast.config import RedisSettings
from holdfast.config.scheduling import BatchSettings, ScheduleKeySettings, SchedulerSettings
from holdfast.errors import ConfigError
from holdfast.schedules.clock import RedisClock
from holdfast.schedules.periodic import PeriodicTask
from holdfast.schedules.reconcile import Reconcile
from holdfast.schedules.registry import checked_keys
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from tests.support.schedules.manual_scheduler import Board
from tests.support.schedules.schedulers import replace
from tests.support.waiting import stays, until

# -- chunk-attempt-multiplier


@pytest.mark.parametrize(("multiplier", "pages"), [(0.0, 10), (0.5, 15), (1.0, 20), (4.0, 50)])
def test_m11_the_multiplier_is_how_much_further_one_look_goes(multiplier, pages):
    assert BatchSettings(chunk_attempt_multiplier=multiplier).scan_pages == pages


@pytest.mark.parametrize(("multiplier", "found"), [(0.0, []), (0.3, ["ours"])])
async def test_m12_behind_many_foreign_ones_a_larger_multiplier_finds_ours_at_once(redis, multiplier, found):
    board = Board(redis)
    await board.add(*(f"foreign{n}" for n in range(6000)), due=-60)
    await board.add("ours", due=-1)
    pod = board.pod(scan_pages=BatchSettings(chunk_attempt_multiplier=multiplier).scan_pages)
    assert [run.name for run in await pod.acquire(10, accept=lambda name, _: name == "ours")] == found


async def test_m13_the_scheduler_looks_as_far_as_the_setting_says(stage):
    running = await stage.start(App("test"), batch_operations=BatchSettings(chunk_attempt_multiplier=2.0))
    assert running.scheduler._acquirer._scan_pages == 30


# -- time-cache-duration-ms


class Hands:
    """A loop's clock that the test moves."""

    def __init__(self) -> None:
        self.time = 0.0
        self.clock = RedisClock(10.0, local=lambda: self.time, wall=lambda: -1.0)

    def hear(self, offset: float, took: float) -> None:
        """Redis, which is ``offset`` ahead, answers in the middle of a call that takes so long."""
        asked = self.time
        self.time += took
        self.clock.synchronize(offset + asked + took / 2, asked)


def test_m14_a_quick_answer_is_trusted_over_slow_ones_until_it_is_too_old():
    hands = Hands()
    assert hands.clock.is_old
    hands.hear(500.0, took=0.01)
    hands.hear(500.9, took=2.0)  # a slow one may be wrong by as much as it took
    assert hands.clock.now() - hands.time == pytest.approx(500.0)
    hands.hear(500.1, took=0.005)
    assert hands.clock.now() - hands.time == pytest.approx(500.1)
    assert not hands.clock.is_old
    hands.time += 10
    assert hands.clock.is_old
    hands.hear(507.0, took=1.0)  # the clock of Redis was set
    assert hands.clock.now() - hands.time == pytest.approx(507.0)


async def test_m15_while_nothing_is_acquired_redis_is_asked_for_its_time_again(stage):
    app, free, began = App("test"), asyncio.Event(), []

    @app.schedule(every=3600)
    async def slow() -> None:
        began.append(1)
        await free.wait()

    running = await stage.start(app, permits=1, interval_ms=20, time_cache_duration_ms=50)
    await until(lambda: began and not running.scheduler.permits.free)
    clock, asked = running.scheduler.clock, []
    original = clock.synchronize
    clock.synchronize = lambda now, asked_at: (asked.append(asked_at), original(now, asked_at))
    await until(lambda: len(asked) >= 2)
    assert asked[1] - asked[0] >= 0.049, "not more often than it is trusted"
    free.set()


# -- executor-shutdown-await-ms, executor-shutdown-force-await-ms


class Pass:
    """A pass that ends when it is let, or when it is cancelled and listens to that."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.began, self.free, self.deaf = asyncio.Event(), asyncio.Event(), deaf
        self.ended = ""
        self.passes = 0

    async def once(self) -> float:
        self.passes += 1
        self.began.set()
        while True:
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                if self.deaf:
                    continue
                self.ended = "cancelled"
                raise
            self.ended = "whole"
            return 0.0


async def begun(one: Pass, *, await_ms: int, force_await_ms: int) -> tuple[PeriodicTask, asyncio.Task[None]]:
    round_ = PeriodicTask("test", one.once, await_ms=await_ms, force_await_ms=force_await_ms)
    task = asyncio.create_task(round_.run())
    await one.began.wait()
    return round_, task


async def test_m16_a_pass_that_is_on_may_end_and_no_other_begins():
    one = Pass()
    round_, task = await begun(one, await_ms=60_000, force_await_ms=0)
    asyncio.get_running_loop().call_later(0.05, one.free.set)
    assert await round_.stop()
    assert (one.ended, one.passes, task.done()) == ("whole", 1, True)


async def test_m17_one_that_takes_longer_is_cancelled():
    one = Pass()
    round_, task = await begun(one, await_ms=20, force_await_ms=60_000)
    assert await round_.stop()
    assert (one.ended, task.cancelled()) == ("cancelled", True)


async def test_m18_one_that_ignores_it_is_left_behind():
    one = Pass(deaf=True)
    round_, task = await begun(one, await_ms=0, force_await_ms=20)
    assert not await round_.stop()
    assert not task.done()
    one.free.set()
    await until(task.done)


async def test_m19_a_round_that_sleeps_ends_at_once():
    round_ = PeriodicTask("test", Pass().once, first_after=3600, await_ms=60_000, force_await_ms=60_000)
    task = asyncio.create_task(round_.run())
    await asyncio.sleep(0)
    assert await asyncio.wait_for(round_.stop(), 10)
    assert task.done()


@pytest.mark.parametrize(("await_ms", "ended"), [(60_000, "whole"), (0, "cancelled")])
async def test_m20_at_shutdown_a_reconcile_that_is_on_has_its_own_time(stage, monkeypatch, await_ms, ended):
    one = Pass()

    async def run_once(_: Reconcile) -> bool:
        return not await one.once()

    monkeypatch.setattr(Reconcile, "run_once", run_once)
    settings = SchedulerSettings().reconcile
    reconcile = replace(settings, executor_shutdown_await_ms=await_ms, executor_shutdown_force_await_ms=5000)
    running = await stage.start(App("test"), reconcile=reconcile)
    await one.began.wait()
    running.process.request_stop()
    await until(lambda: running.scheduler._is_quiet)
    if await_ms:
        one.free.set()
    await running.stop()
    assert one.ended == ended


# -- keys in a cluster


def cluster(scheme: str = "redis+cluster", **keys: str) -> RedisSettings:
    scheduler = SchedulerSettings(keys=ScheduleKeySettings(**keys))
    return RedisSettings(url=f"{scheme}://user:secret@a:7000", scheduler=scheduler)


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster"])
def test_m21_a_cluster_without_a_hash_tag_is_refused_with_the_path_and_the_reason(scheme):
    with pytest.raises(
        ConfigError, match=r"^redis\.scheduler\.keys\.hash-tag is empty, and redis\.url"
    ) as said:
        checked_keys(cluster(scheme))
    assert "must be in one slot" in str(said.value)
    assert "secret" not in str(said.value)


def test_m22_with_a_tag_or_outside_of_a_cluster_it_is_not():
    assert checked_keys(cluster(hash_tag="ps")).waiting == "waiting{ps}"
    assert checked_keys(RedisSettings(url="redis://a")).waiting == "waiting"
    tagged = replace(cluster(), key_prefix="{blue}:")
    assert checked_keys(tagged).waiting == "{blue}:waiting"


async def test_m23_a_scheduler_does_not_start_on_such_a_cluster(stage):
    settings = replace(stage.system.settings, redis=cluster())
    stage.system.settings, before = settings, stage.system.settings
    try:
        with pytest.raises(ConfigError, match="hash-tag is empty"):
            await stage.start(App("test"))
    finally:
        stage.system.settings = before
        stage.schedulers.clear()


# -- max-threads


async def test_m20_no_more_threads_than_the_setting_says_run_sync_agents(stage):
    """Without a limit of schedules, too: each would have a thread of its own."""
    app, free, began = App("test"), threading.Event(), []

    def work(n: int) -> None:
        began.append(n)
        free.wait(60)

    for n in range(3):
        app.register(f"work-{n}", functools.partial(work, n))
    schedules = [Schedule(name=f"s{n}", agent=f"work-{n}", trigger=Every(seconds=3600)) for n in range(3)]
    await stage.board.registry.register(schedules)
    try:
        running = await stage.start(app, permits=0, agent={"max_threads": 2})
        await until(lambda: len(running.scheduler.running) == 3 and len(began) == 2)
        await stays(lambda: len(began) == 2, seconds=0.5)
    finally:
        free.set()
    await until(lambda: len(began) == 3)
