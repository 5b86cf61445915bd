"""K: a turn that ignores its stop does not hold its schedule up, but keeps its permit until it has ended."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

from holdfast import App
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.firing import RunningFirings
from holdfast.schedules.zombies import Overrun, Zombies
from tests.support.waiting import until


async def test_k1_the_scan_lets_the_schedule_go_on_without_its_zombie(stage):
    app, free, ended = App("test"), asyncio.Event(), []

    @app.schedule(every=3600, timeout=0.1)
    async def stubborn() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        ended.append(1)

    running = await stage.start(app, zombies={"threshold_ms": 100, "interval_ms": 200})
    entry = await stage.entry("stubborn", ScheduleState.WAITING, runs=1)
    try:
        assert entry.last_outcome == "timed_out"
        assert running.count("schedule_zombies_total", kind="scan") == 1
        assert running.count("schedule_zombies_total", kind="deadman") == 0, "it was found once"
        await until(lambda: running.scheduler.permits.taken == 1)  # a look takes the others for a moment
        assert running.scheduler.zombies.found == 1
    finally:
        free.set()
    await until(lambda: running.scheduler.permits.taken == 0)
    after = await stage.entry("stubborn")
    assert (after.runs, after.last_outcome, ended) == (1, "timed_out", [1]), "its late end changes nothing"


def turn(name: str, deadline: float) -> SimpleNamespace:
    acquired = SimpleNamespace(name=name, fence=1, deadline=deadline)
    return SimpleNamespace(acquired=acquired, decided=False)


def scan(turns: list[SimpleNamespace], now: float, **options) -> list[str]:
    running, found = RunningFirings(), []
    for each in turns:
        running.add(each)
    Zombies(running, Overrun(30.0), lambda each: found.append(each.acquired.name), **options).scan(now)
    return found


def test_k2_only_what_is_beyond_deadline_and_threshold():
    turns = [turn("over", 60.0), turn("late", 80.0), turn("fine", 200.0)]
    assert scan(turns, now=100.0) == ["over"]


def test_r8_the_clock_is_that_of_redis():
    """This machine may be an hour off: what counts is the time that is handed in."""
    ahead = time.time() + 3600
    assert scan([turn("fine", ahead)], now=ahead) == []
    assert scan([turn("over", time.time())], now=ahead) == ["over"]


def test_k3_one_that_was_told_is_no_zombie_again():
    gone = turn("over", 1.0)
    gone.decided = True
    assert scan([gone], now=100.0) == []


def test_k4_a_scan_over_its_budget_stops_between_items_and_the_next_goes_on_there():
    running, found = RunningFirings(), []
    ended = turn("ended", 2.0)
    for each in (turn("fine", 200.0), turn("over", 1.0), ended, turn("too", 2.0)):
        running.add(each)
    zombies = Zombies(
        running, Overrun(30.0), lambda each: found.append(each.acquired.name), budget_seconds=-1.0
    )
    assert [zombies.scan(100.0), zombies.scan(100.0), found] == [False, False, ["over"]]
    running.remove(ended)
    assert [zombies.scan(100.0), found, zombies.found] == [True, ["over", "too"], 2]


async def test_k4_scans_over_their_budget_are_counted(stage):
    app, begun, free = App("test"), [], asyncio.Event()

    async def waits() -> None:
        begun.append(1)
        await free.wait()

    for name in ("one", "two"):
        app.schedule(name=name, every=3600)(waits)
    scans = {"interval_ms": 20, "run_budget_ms": 1e-6}
    running = await stage.start(app, zombies=scans)
    try:
        await until(lambda: running.count("schedule_zombie_scans_total", status="over_budget") >= 1)
        await until(lambda: running.count("schedule_zombie_scans_total", status="whole") >= 1)
    finally:
        free.set()
