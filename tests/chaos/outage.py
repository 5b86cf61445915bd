"""Many schedules for a Redis that goes away: each turn is written to a file when it begins and when it ends."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast import App, Context

app = App("chaos-outage")


def note(ctx: Context, what: str) -> None:
    """One line per thing done; O_APPEND keeps lines of several processes whole."""
    line = f"{time.time():.4f} {what} {ctx.run_id} {ctx.fence} {ctx.attempt} {os.getpid()}\n"
    with Path(os.environ["CHAOS_LEDGER"]).open("a") as ledger:
        ledger.write(line)


@app.agent
async def beat(ctx: Context) -> None:
    """Take a little time."""
    note(ctx, "begin")
    try:
        await asyncio.sleep(0.05)
    finally:
        note(ctx, "end")


for _number in range(int(os.environ["CHAOS_COUNT"])):
    app.schedule(every=float(os.environ["CHAOS_EVERY"]), name=f"beat-{_number}")(beat)
