"""F: permits are taken before acquiring, and given back exactly once, however a turn ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from tests.support.schedules.manual_scheduler import registration
from tests.support.waiting import stays, until


class Crowd:
    """Agents that count themselves, and stay until they are let go."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self.free = asyncio.Event()

    async def work(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.free.wait()
        self.now -= 1
        self.done += 1


def schedules(number: int, agent: str = "work", **options) -> list[Schedule]:
    return [
        Schedule(name=f"{agent}-{n}", agent=agent, trigger=Every(seconds=3600), **options)
        for n in range(number)
    ]


async def test_f1_never_more_at_once_than_permits(stage):
    app, crowd = App("test"), Crowd()
    app.register("work", crowd.work)
    await stage.board.registry.register(schedules(30))
    running = await stage.start(app, permits=4)
    await until(lambda: crowd.now == 4)
    await stays(lambda: crowd.now == 4, seconds=0.2)
    crowd.free.set()
    await until(lambda: crowd.done == 30)
    assert crowd.most == 4
    await until(lambda: running.scheduler.permits.taken == 0)


@pytest.mark.parametrize("permits", [0, -1])
async def test_f2_no_limit_is_no_limit(stage, permits):
    app, crowd = App("test"), Crowd()
    app.register("work", crowd.work)
    await stage.board.registry.register(schedules(150))
    await stage.start(app, permits=permits)
    await until(lambda: crowd.now == 150)
    crowd.free.set()
    await until(lambda: crowd.done == 150)


async def test_f3_at_rest_all_permits_are_free_whatever_happened(stage):
    app = App("test")

    async def good() -> None: ...

    async def bad() -> None:
        raise ValueError

    async def slow() -> None:
        await asyncio.Event().wait()

    async def rude() -> None:
        raise SystemExit

    for call in (good, bad, slow, rude):
        app.register(call.__name__, call)
    registry = stage.board.registry
    for name in ("good", "bad", "rude", "nobody"):
        await registry.register(schedules(5, name))
    await registry.register(schedules(5, "slow", timeout_seconds=0.2))
    await registry.put([registration("damaged", spec=b"{", first=1.0)])
    running = await stage.start(app, permits=7, zombies={"threshold_ms": 0})
    for name in ("good", "bad", "rude", "slow"):
        for n in range(5):
            await stage.entry(f"{name}-{n}", ScheduleState.WAITING, runs=1)
    await stage.entry("damaged", ScheduleState.WAITING, runs=1)
    await until(lambda: running.scheduler.permits.taken == 0)
    assert (await stage.entry("nobody-0")).runs == 0


async def test_f4_a_thread_that_ignores_its_stop_keeps_its_permit(stage):
    app, free, began = App("test"), threading.Event(), []

    def deaf() -> None:
        began.append(1)
        free.wait(30)

    app.register("deaf", deaf)
    await stage.board.registry.register(schedules(1, "deaf", timeout_seconds=0.1))
    running = await stage.start(app, permits=2, zombies={"threshold_ms": 0})
    await stage.entry("deaf-0", ScheduleState.WAITING, runs=1)
    try:
        # A look takes the other one for a moment.
        await until(lambda: (running.scheduler.permits.taken, len(running.scheduler.running)) == (1, 0))
    finally:
        free.set()
    await until(lambda: running.scheduler.permits.taken == 0)


async def test_f5_an_acquisition_that_fails_gives_its_permits_back(stage):
    running = await stage.start(App("test"), breaker={"failure_threshold": 1000})
    await stage.board.redis.set(stage.board.keys.waiting, "damaged")
    await until(lambda: running.count("schedule_acquire_failures_total") >= 2)
    await until(lambda: running.scheduler.permits.taken == 0)  # a look takes them for a moment
    assert running.count("schedule_script_errors_total", kind="ResponseError") >= 2
    await stage.board.redis.delete(stage.board.keys.waiting)


async def test_f6_a_name_that_is_no_text_costs_no_permit_and_is_counted_once(stage):
    app, ran = App("test"), []

    @app.schedule(every=0.05)
    async def tick() -> None:
        ran.append(1)

    board = stage.board
    await board.redis.hset(board.keys.definitions, b"\xff", registration("x").spec)
    await board.redis.zadd(board.keys.waiting, {b"\xff": 1.0})
    running = await stage.start(app, permits=2)
    await until(lambda: len(ran) >= 5)
    assert running.count("schedule_repaired_total", kind="unreadable") == 1
    assert running.count("schedule_reclaimed_total") == 0
