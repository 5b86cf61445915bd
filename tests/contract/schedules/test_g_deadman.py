"""G: at deadline + threshold a turn is stopped at once, not at the next scan."""

from __future__ import annotations

import asyncio
import time

from holdfast import App
from holdfast.schedules.entries import State
from tests.support.waiting import stays, until


def slow_app(lived: list[float], name: str = "slow") -> App:
    app = App("test")

    @app.schedule(every=3600, timeout=0.2, name=name)
    async def slow() -> None:
        began = time.monotonic()
        try:
            await asyncio.Event().wait()
        finally:
            lived.append(time.monotonic() - began)

    return app


async def test_g1_it_is_stopped_at_deadline_and_threshold(stage):
    lived: list[float] = []
    running = await stage.start(slow_app(lived), zombies={"threshold_ms": 300})
    entry = await stage.entry("slow", State.WAITING, runs=1)
    assert 0.4 < lived[0] < 10
    assert (entry.last_outcome, entry.streak) == ("timed_out", 1)
    assert running.count("schedule_zombies_total", kind="deadman") == 1
    await until(lambda: running.scheduler.permits.taken == 0)


async def test_g2_exceptional_ones_have_their_own_threshold(stage):
    lived: list[float] = []
    exceptional = type(stage.system.settings.redis.scheduler.zombie_cleanup.exceptional_agents)
    zombies = {"threshold_ms": 0, "exceptional_agents": exceptional(pattern="big-.*", threshold_ms=700)}
    await stage.start(slow_app(lived, "big-one"), zombies=zombies)
    await stage.entry("big-one", State.WAITING, runs=1)
    assert 0.8 < lived[0] < 10


async def test_g3_the_pattern_matches_whole_names_only(stage):
    lived: list[float] = []
    exceptional = type(stage.system.settings.redis.scheduler.zombie_cleanup.exceptional_agents)
    zombies = {"threshold_ms": 0, "exceptional_agents": exceptional(pattern="big", threshold_ms=60_000)}
    await stage.start(slow_app(lived, "big-one"), zombies=zombies)
    await stage.entry(
        "big-one", State.WAITING, runs=1
    )  # half of the exceptional threshold is waited for that
    assert len(lived) == 1


async def test_g4_switched_off_nothing_is_stopped(stage):
    lived: list[float] = []
    await stage.start(slow_app(lived), zombies={"threshold_ms": 0, "enabled": False})
    await stage.entry("slow", State.RUNNING)
    await stays(lambda: lived == [], seconds=0.6)  # three times its timeout
    assert (await stage.entry("slow")).state is State.RUNNING
