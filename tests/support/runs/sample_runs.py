"""A queue with runs in every state, for tests that ask for whatever there is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from holdfast import App, Context, GiveUp
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.run import Status
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store
from tests.support.runs.system import System

EACH = 6


@dataclass
class Seeds:
    """The ids of runs by their state, and of dead letters of other runs, some to replay and some to drop."""

    runs: dict[str, list[str]] = field(default_factory=dict)
    replayed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def agents() -> App:
    app = App("seeds")

    @app.agent
    async def echo(value: Any) -> Any:
        return value

    @app.agent
    async def fails(value: Any) -> None:
        raise GiveUp("not this")

    @app.agent
    async def asks(ctx: Context, value: Any) -> Any:
        return await ctx.interrupt(value)

    @app.agent
    async def sleeps(ctx: Context, value: Any) -> None:
        await ctx.emit("sleeping", {})
        await asyncio.Event().wait()

    return app


async def seed(system: System) -> Seeds:
    """Bring runs into every state there is; those that run do so on a worker that has vanished."""
    seeds = Seeds()

    async def add(state: str, agent: str, **options: Any) -> list[str]:
        names = [f"{state}-{number}" for number in range(EACH)]
        seeds.runs[state] = names
        for name in names:
            await system.submit(agent, {"n": 1}, run_id=name, thread_id=f"thread-{name}", **options)
        return names

    worker = await system.worker(agents())
    for state, agent in (("succeeded", "echo"), ("failed", "fails")):
        for name in await add(state, agent):
            await system.ended(name)
    for name in (*await add("dropped", "fails"), *await add("replayed", "fails")):
        await system.ended(name)
    for letter in (await DeadLetters(system.queue).list()).letters:
        if letter.run_id in seeds.runs["dropped"]:
            seeds.dropped.append(letter.id)
        elif letter.run_id in seeds.runs["replayed"]:
            seeds.replayed.append(letter.id)
    seeds.dropped += seeds.runs.pop("dropped")
    seeds.replayed += seeds.runs.pop("replayed")
    for name in await add("interrupted", "asks"):
        await system.reaches(name, Status.INTERRUPTED)
    for name in await add("running", "sleeps"):
        await system.reaches(name, Status.RUNNING)
    await worker.vanish()
    await add("queued", "echo")
    await add("delayed", "echo", delay_seconds=3600)
    for name in await add("cancelled", "echo"):
        await system.queue.cancel(name, "asked twice")
    seeds.runs["archived"] = [f"archived-{number}" for number in range(EACH)]
    async with await open_store(system.settings.database) as store:
        await store.archive(
            [
                ArchivedRun(
                    id=name,
                    queue=system.queue.name,
                    agent="echo",
                    status="succeeded" if number % 2 else "failed",
                    finished_at=1.0 + number,
                    input=b'{"n":1}',
                    result=b'"done"' if number % 2 else b"",
                    error=b"" if number % 2 else b'{"kind":"ValueError","message":"no"}',
                )
                for number, name in enumerate(seeds.runs["archived"])
            ]
        )
    return seeds
