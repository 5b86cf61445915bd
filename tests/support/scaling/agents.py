"""Agents for the tests of scaling: what they do is written down where no kill reaches it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast import App, Context

app = App("scaling")


def note(ctx: Context, what: str) -> None:
    """One line per thing done; O_APPEND keeps lines of several processes whole."""
    line = f"{time.time():.4f} {what} {ctx.run_id} {ctx.fence} {ctx.attempt} {os.getpid()}\n"
    with Path(os.environ["SCALING_LEDGER"]).open("a") as ledger:
        ledger.write(line)


@app.agent
async def work(ctx: Context, seconds: float) -> int:
    """Take some time."""
    note(ctx, "begin")
    await asyncio.sleep(seconds)
    note(ctx, "end")
    return ctx.attempt


@app.agent
async def blocks(ctx: Context, seconds: float) -> int:
    """Take some time, and the event loop with it."""
    note(ctx, "begin")
    time.sleep(seconds)
    note(ctx, "end")
    return ctx.attempt


@app.agent
async def gated(ctx: Context, path: str) -> int:
    """Go on until somebody makes a file."""
    note(ctx, "begin")
    while not Path(path).exists():
        await asyncio.sleep(0.02)
    note(ctx, "end")
    return ctx.attempt
