"""The app that the command line's tests run."""

from __future__ import annotations

import asyncio

from holdfast import App, Context, GiveUp

app = App("cli-tests")


@app.agent
async def echo(ctx: Context, value):
    """Repeat the value."""
    await ctx.emit("thinking", {"value": value})
    return value


@app.agent
async def give_up(value):
    raise GiveUp("not\x1b[31m with\nthis")


@app.agent
async def sleep(value):
    await asyncio.Event().wait()
