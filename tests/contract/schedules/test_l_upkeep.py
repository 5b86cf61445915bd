"""L: both nets in a running scheduler: the leases' reclaim, and the sweep of whoever leads."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App
from holdfast.schedules.orphans import Orphans, cleanup_leadership
from tests.support.schedules.manual_scheduler import registration
from tests.support.waiting import until

QUICK = {"interval_ms": 50}
SWEEPS = "schedule_sweeps_total"


async def damage(stage) -> None:
    await stage.board.redis.zadd(stage.board.keys.working, {"17": 1})


async def test_l21_the_leader_sweeps_every_interval_and_counts_what_it_put_right(stage):
    running = await stage.start(App("test"), orphans=QUICK)
    await damage(stage)
    await until(lambda: running.count("schedule_repaired_total", kind="numeric") == 1)
    await until(lambda: running.count(SWEEPS, status="whole") >= 2)
    assert await stage.board.working() == {}
    assert running.count("schedule_repaired_total", kind="numeric") == 1


async def test_l22_while_another_leads_nothing_is_swept(stage):
    office = cleanup_leadership(stage.board.keys, owner="other", ttl_ms=60_000)
    term = await office.campaign(stage.board.redis)
    running = await stage.start(App("test"), orphans=QUICK)
    await damage(stage)
    await until(lambda: running.count(SWEEPS, status="elsewhere") >= 3)
    assert "17" in await stage.board.working()
    assert running.count(SWEEPS, status="whole") == 0
    await office.resign(stage.board.redis, term)
    await until(lambda: running.count(SWEEPS, status="whole") >= 1)
    assert await stage.board.working() == {}


async def test_l23_with_force_all_pods_everybody_sweeps_whoever_leads(stage):
    office = cleanup_leadership(stage.board.keys, owner="other", ttl_ms=60_000)
    await office.campaign(stage.board.redis)
    running = await stage.start(App("test"), orphans=QUICK | {"force_all_pods": True})
    await damage(stage)
    await until(lambda: running.count("schedule_repaired_total", kind="numeric") == 1)
    assert running.count(SWEEPS, status="elsewhere") == 0


async def test_l24_switched_off_nothing_is_swept(stage):
    running = await stage.start(App("test"), orphans=QUICK | {"enabled": False})
    await damage(stage)
    await stage.board.registry.put([registration("a", first=1.0)])
    await until(lambda: running.count("schedule_registered") >= 1)  # a report later
    assert sum(running.count(SWEEPS, status=word) for word in ("whole", "elsewhere")) == 0


async def test_l25_a_pass_that_hangs_is_cancelled_and_counted_and_the_office_is_free_again(
    stage, monkeypatch
):
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Orphans, "sweep", hang)
    running = await stage.start(App("test"), orphans=QUICK | {"leadership_ttl_ms": 400})
    await until(lambda: running.count(SWEEPS, status="hung") >= 2)


async def test_l26_a_pass_over_its_budget_says_so(stage, monkeypatch):
    sweep, given = Orphans.sweep, []

    async def slow(self: Orphans, *, budget_seconds: float = 0.0):
        given.append(budget_seconds)
        return await sweep(self, budget_seconds=1e-9)

    monkeypatch.setattr(Orphans, "sweep", slow)
    running = await stage.start(App("test"), orphans=QUICK | {"run_budget_ms": 70})
    await until(lambda: running.count(SWEEPS, status="over_budget") >= 1)
    assert given[0] == pytest.approx(0.07)


async def test_l28_a_pass_that_is_due_while_one_is_on_is_left_out_and_counted(stage, monkeypatch):
    sweep, on, most = Orphans.sweep, 0, 0

    async def slow(self: Orphans, *, budget_seconds: float = 0.0):
        nonlocal on, most
        on, most = on + 1, max(most, on + 1)
        await asyncio.sleep(0.13)
        on -= 1
        return await sweep(self, budget_seconds=budget_seconds)

    monkeypatch.setattr(Orphans, "sweep", slow)
    running = await stage.start(App("test"), orphans=QUICK)
    await until(lambda: running.count(SWEEPS, status="whole") >= 2)
    await until(lambda: running.count(SWEEPS, status="skipped") >= 4)
    assert most == 1


async def test_l27_what_nobody_renewed_is_taken_back_and_counted(stage):
    board = stage.board
    await board.add("a", due=-5)
    await board.pod("dead", ttl_ms=1).one()
    running = await stage.start(App("test"))
    await until(lambda: running.count("schedule_reclaimed_total") == 1)
    await until(board.waiting, lambda found: "a" in found)
