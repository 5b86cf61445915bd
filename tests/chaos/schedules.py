"""Schedules for the chaos tests: each turn is written to a file, beyond the reach of anything that is killed."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast import App, Context

app = App("chaos-schedules")


def note(ctx: Context, what: str) -> None:
    """One line per thing done; O_APPEND keeps lines of several processes whole."""
    line = f"{time.time():.4f} {what} {ctx.run_id} {ctx.fence} {ctx.attempt} {os.getpid()}\n"
    with Path(os.environ["CHAOS_LEDGER"]).open("a") as ledger:
        ledger.write(line)


@app.schedule(every=0.5, name="tick-a")
@app.schedule(every=0.5, name="tick-b")
@app.schedule(every=0.5, name="tick-c")
async def tick(ctx: Context) -> None:
    """Take a little time."""
    note(ctx, "begin")
    await asyncio.sleep(0.1)
    note(ctx, "end")


@app.schedule(every=3600)
async def long(ctx: Context) -> None:
    """Take longer than its first scheduler lives, if told so."""
    note(ctx, "begin")
    await asyncio.sleep(float(os.environ.get("CHAOS_LONG_SECONDS", "4")))
    note(ctx, "end")
