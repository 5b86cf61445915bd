"""G: at deadline + threshold a turn is stopped at once, not at the next scan."""

from __future__ import annotations

import asyncio
import time

from holdfast import App
from holdfast.schedules.entries import ScheduleState
from tests.support.waiting import stays, until


def slow_app(ended: list[float], name: str = "slow") -> App:
    """An app whose turn ends when it is stopped, and notes when: by the clock that Redis has, too."""
    app = App("test")

    @app.schedule(every=3600, timeout=0.2, name=name)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(time.time())

    return app


async def test_g1_it_is_stopped_at_deadline_and_threshold(stage):
    ended: list[float] = []
    running = await stage.start(slow_app(ended), zombies={"threshold_ms": 2000})
    entry = await stage.entry("slow", ScheduleState.WAITING, runs=1)
    assert 1.0 < ended[0] - entry.last_start < 20  # 2.2 s, as well as the scheduler knows the clock of Redis
    assert (entry.last_outcome, entry.streak) == ("timed_out", 1)
    assert running.count("schedule_zombies_total", kind="deadman") == 1
    await until(lambda: running.scheduler.permits.taken == 0)


async def test_g2_exceptional_ones_have_their_own_threshold(stage):
    ended: list[float] = []
    exceptional = type(stage.system.settings.redis.scheduler.zombie_cleanup.exceptional_agents)
    zombies = {"threshold_ms": 0, "exceptional_agents": exceptional(pattern="big-.*", threshold_ms=2000)}
    await stage.start(slow_app(ended, "big-one"), zombies=zombies)
    entry = await stage.entry("big-one", ScheduleState.WAITING, runs=1)
    assert 1.0 < ended[0] - entry.last_start < 20  # 2.2 s, as well as the scheduler knows the clock of Redis


async def test_g3_the_pattern_matches_whole_names_only(stage):
    ended: list[float] = []
    exceptional = type(stage.system.settings.redis.scheduler.zombie_cleanup.exceptional_agents)
    zombies = {"threshold_ms": 0, "exceptional_agents": exceptional(pattern="big", threshold_ms=60_000)}
    await stage.start(slow_app(ended, "big-one"), zombies=zombies)
    await stage.entry(
        "big-one", ScheduleState.WAITING, runs=1
    )  # half of the exceptional threshold is waited for that
    assert len(ended) == 1


async def test_g4_switched_off_nothing_is_stopped(stage):
    ended: list[float] = []
    await stage.start(slow_app(ended), zombies={"threshold_ms": 0, "enabled": False})
    await stage.entry("slow", ScheduleState.RUNNING)
    await stays(lambda: ended == [], seconds=0.6)  # three times its timeout
    assert (await stage.entry("slow")).state is ScheduleState.RUNNING
