"""What ends is gone at once: nothing is left for the collector, which stops everybody while it looks.

A thousand turns a second that each were a circle of references made every fiftieth turn late.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast import App
from holdfast.runs.run import Submission
from tests.support.runs.system import System
from tests.support.schedules.schedulers import stage_of
from tests.support.waiting import until

OURS = ("Invocation", "Context", "Turn", "Hold", "Claimed", "Settlement")


@contextmanager
def collected() -> Iterator[Callable[[], Counter[str]]]:
    """Stop the collector; the callable tells which of our objects only it would have found."""

    def look() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        # Others have a Context too, that of contextvars for one.
        kinds = [
            kind for kind in map(type, gc.garbage) if kind.__module__.startswith(("holdfast.", __name__))
        ]
        found = Counter(kind.__name__ for kind in kinds)
        gc.garbage.clear()
        return Counter({name: found[name] for name in OURS if found[name]})

    for _ in range(5):  # what earlier tests left, and what only the end of that sets free
        if not gc.collect():
            break
    gc.disable()
    try:
        yield look
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_a_run_that_ended_leaves_nothing_to_the_collector(redis, redis_settings):
    app = App("test")

    @app.agent
    async def echo(payload):
        await asyncio.sleep(0)
        return payload

    async with System(redis_settings, slots=8) as system:
        await system.worker(app)
        await system.ended(await system.submit("echo", 0))
        with collected() as look:
            tickets = await system.queue.submit_many([Submission(agent="echo", input=n) for n in range(40)])
            for ticket in tickets:
                await system.ended(ticket.run_id)
            assert max(look().values(), default=0) < 10


async def test_a_turn_that_ended_leaves_nothing_to_the_collector(redis, redis_settings):
    app, turns = App("test"), []

    @app.schedule(every=0.02)
    async def tick() -> None:
        turns.append(1)

    async with stage_of(redis, redis_settings) as stage:
        await stage.start(app)
        await until(lambda: len(turns) >= 2)
        with collected() as look:
            before = len(turns)
            await until(lambda: len(turns) >= before + 30)
            assert max(look().values(), default=0) < 10


@pytest.mark.parametrize("count", [50])
def test_the_look_itself_finds_a_circle(count):
    """Else the two above could not fail."""

    class Turn:
        pass

    with collected() as look:
        for _ in range(count):
            turn = Turn()
            turn.itself = turn
        del turn
        assert look()["Turn"] >= count - 1
