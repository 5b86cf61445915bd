"""Schedules whose agents run in processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from holdfast import App, Context

app = App("scheduled")
LEDGER = Path(os.environ.get("ISOLATED_LEDGER", "/dev/null"))


class Given(msgspec.Struct):
    x: int


@app.schedule(every=3600, input={"x": 1})
@app.agent(isolation="process")
async def notes(ctx: Context, given: Given) -> object:
    await ctx.emit("not kept", given)
    turns = await ctx.step("turn", lambda: 5)
    LEDGER.write_text(f"{os.getpid()} {ctx.attempt} {given.x} {turns}")
    return object()  # nobody reads what a turn returns


@app.schedule(every=3600, timeout=6.0)  # its process has begun by then, however busy the machine
@app.agent(isolation="process")
async def spins() -> None:
    LEDGER.with_suffix(".spins").write_text(str(os.getpid()))
    while True:
        time.sleep(0.001)  # and not without: other tests need the CPU
