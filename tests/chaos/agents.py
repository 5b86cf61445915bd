"""Agents for the chaos tests: what they do is written to a file, beyond the reach of anything that is killed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

from holdfast import App, Context

app = App("chaos")


def note(ctx: Context, what: str) -> None:
    """One line per thing done; O_APPEND keeps lines of several processes whole."""
    line = f"{time.time():.4f} {what} {ctx.run_id} {ctx.fence} {ctx.attempt} {os.getpid()}\n"
    with Path(os.environ["CHAOS_LEDGER"]).open("a") as ledger:
        ledger.write(line)


@app.agent
async def work(ctx: Context, seconds: float) -> int:
    """Take some time; end with the number of the attempt."""
    note(ctx, "begin")
    await asyncio.sleep(seconds)
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


@app.agent
async def held(ctx: Context, _: None) -> int:
    """Never finish under the first fence; finish at once under any later one."""
    note(ctx, "begin")
    if ctx.fence == 1:
        await asyncio.Event().wait()
    return ctx.attempt


@app.agent
async def blocking(ctx: Context, seconds: float) -> int:
    """Block the event loop, as agent code should not."""
    note(ctx, "begin")
    time.sleep(seconds)
    note(ctx, "end")
    return ctx.attempt


@app.agent
async def killer(ctx: Context, _: None) -> None:
    """Kill the worker that runs it."""
    note(ctx, "begin")
    os.kill(os.getpid(), 9)


@app.agent
async def stubborn(ctx: Context, seconds: float) -> None:
    """Ignore every request to stop."""
    note(ctx, "begin")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    note(ctx, "end")


@app.agent
def threaded(ctx, seconds: float) -> None:
    """Sleep in a thread, deaf to stops."""
    note(ctx, "begin")
    time.sleep(seconds)
    note(ctx, "end")


@app.agent
async def stepper(ctx: Context, steps: int) -> list[int]:
    """Do some steps, each of which is noted when it is really done."""
    note(ctx, "begin")
    done = []
    for number in range(steps):

        async def do(number: int = number) -> int:
            note(ctx, f"step-{number}")
            await asyncio.sleep(0.1)
            return number

        done.append(await ctx.step("do", do))
    return done


@app.agent
async def littering(ctx: Context, seconds: float) -> None:
    """Leave threads behind: one of its own, and one of the event loop's."""
    note(ctx, "begin")
    threading.Thread(target=time.sleep, args=(seconds,), name="litter").start()
    asyncio.get_running_loop().run_in_executor(None, time.sleep, seconds)
    note(ctx, "end")
