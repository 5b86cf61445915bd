"""Agents with an effect before and an effect after a pause, in every way that an agent can run."""

from __future__ import annotations

import asyncio
import time

from holdfast import App, Context
from holdfast.agents.context import SyncContext
from tests.chaos.agents import note

app = App("freezing")
isolated = App("freezing-isolated")
schedules = App("freezing-schedules")
isolated_schedules = App("freezing-isolated-schedules")


async def reserve_then_charge(ctx: Context, seconds: float) -> None:
    """Two steps with a pause between them."""
    try:
        await ctx.step("reserve", note, ctx, "reserve")
        note(ctx, "pause")
        await asyncio.sleep(seconds)
        await ctx.step("charge", note, ctx, "charge")
    finally:
        note(ctx, "left")


async def plainly(ctx: Context, seconds: float) -> None:
    """The same without steps: nothing that the agent calls knows of the lease."""
    try:
        note(ctx, "reserve")
        note(ctx, "pause")
        await asyncio.sleep(seconds)
        note(ctx, "charge")
    finally:
        note(ctx, "left")


async def in_a_task(ctx: Context, seconds: float) -> None:
    """The same in a task of the agent's own."""
    async with asyncio.TaskGroup() as group:
        group.create_task(reserve_then_charge(ctx, seconds))


async def in_a_slow_step(ctx: Context, seconds: float) -> None:
    """The same within one step, in a task of the agent's own."""
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("all", plainly, ctx, seconds))


def in_a_thread(ctx: SyncContext, seconds: float) -> None:
    """The same without an event loop."""
    try:
        ctx.step("reserve", note, ctx, "reserve")
        note(ctx, "pause")
        time.sleep(seconds)
        ctx.step("charge", note, ctx, "charge")
    finally:
        note(ctx, "left")


PAUSE_SECONDS = 2.5
KINDS = [reserve_then_charge, plainly, in_a_task, in_a_slow_step, in_a_thread]
for kind in KINDS:
    app.agent(kind)
    isolated.agent(isolation="process")(kind)
    schedules.schedule(every=3600, name=kind.__name__, input=PAUSE_SECONDS)(kind)
    isolated_schedules.agent(isolation="process")(kind)
    isolated_schedules.schedule(every=3600, name=kind.__name__, input=PAUSE_SECONDS)(kind)
