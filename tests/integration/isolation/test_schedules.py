"""A schedule's turn in a process of its own: run, and killed when its time is over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.agents.loader import load_app
from holdfast.schedules.entries import ScheduleState
from tests.support.processes.isolation import AGENTS, gone
from tests.support.schedules.schedulers import stage_of
from tests.support.waiting import until


@pytest.fixture
async def stage(redis, redis_settings):
    async with stage_of(redis, redis_settings, ttl=10.0) as stage:  # no turn here is lost on a busy machine
        yield stage


async def test_turns_run_in_processes_and_one_that_spins_is_killed(stage, tmp_path, monkeypatch, end_at_last):
    ledger = tmp_path / "ledger"
    monkeypatch.setenv("ISOLATED_LEDGER", str(ledger))
    monkeypatch.setattr("holdfast.schedules.context._GRACE_SECONDS", 0.2)
    app = load_app(str(Path(AGENTS).with_name("isolatedschedules.py")))
    running = await stage.start(app, zombies={"threshold_ms": 100})
    await stage.entry("notes", ScheduleState.WAITING, runs=1, seconds=60)
    pid, attempt, given, turns = map(int, ledger.read_text().split())
    assert pid != os.getpid()
    assert (attempt, given, turns) == (1, 1, 5)
    spinning = ledger.with_suffix(".spins")
    await until(lambda: spinning.exists() and spinning.read_text(), seconds=60)
    end_at_last(int(spinning.read_text()))
    await gone(int(spinning.read_text()))
    await stage.entry("spins", ScheduleState.WAITING, seconds=60)
    assert running.count("processes_killed_total", queue="schedules", agent="spins", reason="timed_out") == 1
