"""Worker types: browser jobs, slow and heavy, tankpit jobs, quick and many, and jobs of no type of their own.

cd examples/worker_types
holdfast dev app.py --autoscale
holdfast worker --app app.py --queue browser:jobs    # in production, one Deployment for each
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast import App, Context, MalformedMessage

app = App("discord-bot")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job, as the bot's producers write it into the field ``json``."""

    id: str
    type: str
    payload: dict[str, Any] = {}


@app.agent
async def browser(ctx: Context, message: Any) -> dict[str, Any]:
    """Open a page and take a picture; the entry is acknowledged when that is done, not when it is read."""
    job = read_job(message)
    await ctx.emit("browsing", {"job": job.id})
    await asyncio.sleep(float(job.payload.get("seconds", 0.5)))
    return {"job": job.id, "shot": f"{job.id}.png"}


@app.agent
async def tankpit(message: Any) -> dict[str, Any]:
    """Make a move in the game."""
    job = read_job(message)
    await asyncio.sleep(float(job.payload.get("seconds", 0.05)))
    return {"job": job.id, "moved": True}


@app.agent
async def job(message: Any) -> dict[str, Any]:
    """Do a job of the default queue, `jobs`, which has no type of its own."""
    read = read_job(message)
    await asyncio.sleep(float(read.payload.get("seconds", 0.1)))
    return {"job": read.id, "done": True}


def read_job(message: Any) -> Job:
    """Read what ``XADD browser:jobs * json '{…}'`` brought, or a job that was submitted."""
    try:
        if isinstance(message, dict) and "json" in message:
            return msgspec.json.decode(message["json"], type=Job)
        return msgspec.convert(message, Job)
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise MalformedMessage(f"not a job: {exc}") from exc
