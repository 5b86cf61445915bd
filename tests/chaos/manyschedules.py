"""Schedules of every kind for random histories: each turn is written to a file when it begins and when it has ended."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast import App, Context
from holdfast.agents.context import SyncContext

app = App("chaos-many")


def note(ctx: Context | SyncContext, what: str) -> None:
    """One line per thing done; O_APPEND keeps lines of several processes whole."""
    line = f"{time.time():.4f} {what} {ctx.run_id} {ctx.fence} {ctx.attempt} {os.getpid()}\n"
    with Path(os.environ["CHAOS_LEDGER"]).open("a") as ledger:
        ledger.write(line)


@app.agent
async def tick(ctx: Context) -> None:
    """Take a little time."""
    note(ctx, "begin")
    await asyncio.sleep(0.1)
    note(ctx, "end")


for _number in range(12):
    app.schedule(every=0.5, name=f"tick-{_number}")(tick)


@app.schedule(every=0.5, priority=1)
def thread(ctx: SyncContext) -> None:
    """The same in a thread."""
    note(ctx, "begin")
    time.sleep(0.1)
    note(ctx, "end")


@app.schedule(every=0.4, error_interval=0.4)
async def flaky(ctx: Context) -> None:
    """Fail every second turn or so."""
    note(ctx, "begin")
    await asyncio.sleep(0.05)
    note(ctx, "end")
    if ctx.fence % 2:
        raise ValueError("it does that")


@app.schedule(every=1.0)
async def slow(ctx: Context) -> None:
    """Take longer than its interval."""
    note(ctx, "begin")
    await asyncio.sleep(1.5)
    note(ctx, "end")


@app.schedule(every=0.4, overlap="allow", overlap_most=3)
async def beside(ctx: Context) -> None:
    """Overlap with itself."""
    note(ctx, "begin")
    await asyncio.sleep(0.9)
    note(ctx, "end")
