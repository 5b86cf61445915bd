"""The agents that are measured. A worker loads this file, so it imports nothing that a worker has not got."""

from __future__ import annotations

import asyncio
import time

from holdfast import App, Context

app = App("bench")


@app.agent
async def noop(_: object) -> None:
    """Do nothing: what is left is what a run costs."""


@app.agent
async def age(sent: float) -> float:
    """How long ago the run was sent; the monotonic clock is the same for all processes of a machine."""
    return time.monotonic() - sent


@app.agent
async def hold(ctx: Context, _: object) -> None:
    """Say when it began, then keep the lease for as long as it is let."""
    await ctx.emit("began", time.monotonic())
    await asyncio.sleep(3600)


@app.agent
async def chatter(ctx: Context, events: int) -> list[float]:
    """Emit one event after the other; return when that began and ended."""
    began = time.monotonic()
    for number in range(events):
        await ctx.emit("tick", number)
    return [began, time.monotonic()]
