"""The act in which schedules run: made over HTTP, paused, resumed and triggered beside everything else."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from holdfast_demo.figures import Turns
from holdfast_demo.program import REPLICAS, SCHEDULE
from holdfast_demo.stage import PATIENCE_SECONDS
from holdfast_demo.system import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast_demo.books import Books
    from holdfast_demo.http import Http
    from holdfast_demo.stage import Stage

DIGEST, TIDY = "digest", "tidy"
_EVERY = "500ms"
_PAUSE_SECONDS = 1.5
_LOOK_SECONDS = 0.1
_TURNS = 2


async def keep_schedules(stage: Stage, http: Http, books: Books) -> Turns:
    """Pause and resume a schedule that submits runs, and trigger one that runs in the scheduler."""
    base = stage.system.replicas[REPLICAS[1]].url
    act = stage.begin(SCHEDULE, f"two schedules, every {_EVERY}, are made by POST /schedules")
    queue = stage.system.settings.queue.name
    await http.schedule(base, DIGEST, "greet", every=_EVERY, input={"name": "all"}, target=queue)
    await http.schedule(
        base, TIDY, "greet", every="1h", input={"name": "desk"}, starts_at="2100-01-01T00:00:00Z"
    )
    begun = await _ran(base, http, DIGEST, _TURNS)
    await http.steer(base, DIGEST, "pause", {"reason": "a demonstration"})
    await _settled(books, DIGEST)
    paused_at = time.time()
    act.text = f"{DIGEST} is paused after {begun} turns; {TIDY} is triggered, years before its turn"
    await http.steer(base, TIDY, "trigger")
    await _until(f"{TIDY} to run", lambda: _triggered(base, http))
    await asyncio.sleep(max(0.0, paused_at + _PAUSE_SECONDS - time.time()))
    resumed_at = time.time()
    await http.steer(base, DIGEST, "resume")
    await _ran(base, http, DIGEST, begun + _TURNS)
    await http.steer(base, DIGEST, "pause", {"reason": "the demo ends"})
    turns = await _settled(books, DIGEST)
    stage.end(
        act,
        f"{DIGEST} had {turns} turns, none in {resumed_at - paused_at:.1f} s of pause; {TIDY} ran by hand",
    )
    return Turns(DIGEST, TIDY, paused_at, resumed_at)


async def _ran(base: str, http: Http, name: str, turns: int) -> int:
    ran = 0

    async def enough() -> bool:
        nonlocal ran
        ran = (await http.look(base, name))["runs"]
        return ran >= turns

    await _until(f"{turns} turns of {name}", enough)
    return ran


async def _triggered(base: str, http: Http) -> bool:
    return (await http.look(base, TIDY))["last_outcome"] == "succeeded"


async def _settled(books: Books, name: str) -> int:
    """Wait until a paused schedule runs no more, and what it submitted has ended; return its turns."""

    async def quiet() -> bool:
        return not await books.is_running(name) and all(run.ended for run in await books.scheduled(name))

    await _until(f"{name} to come to rest", quiet)
    return len(await books.scheduled(name))


async def _until(what: str, true: Callable[[], Awaitable[bool]]) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await true():  # noqa: ASYNC110 - what is waited for is in other processes
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise DemoFailed(f"waited {PATIENCE_SECONDS:g} s for {what}") from None
