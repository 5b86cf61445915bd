"""A support desk: eight small agents and a resident, each showing one thing that Holdfast does for it.

holdfast dev examples/support_desk.py
holdfast submit greet '{"name": "Ada"}' --follow
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from holdfast import App, Context, SyncContext

app = App("support-desk")


@app.agent
async def greet(customer: dict[str, Any]) -> str:
    """Quick: answers at once."""
    return f"Hello {customer['name']}, how can we help?"


@app.agent(timeout="10m")
async def research(ctx: Context, question: dict[str, Any]) -> dict[str, Any]:
    """Slow: says how far it is, and wraps up with what it has when its worker wants to leave."""
    sources = int(question.get("sources", 8))
    for read in range(sources):
        if ctx.draining:
            return {"read": read, "complete": False}
        await asyncio.sleep(float(question.get("seconds_each", 0.25)))
        await ctx.emit("progress", {"read": read + 1, "of": sources})
    return {"read": sources, "complete": True}


@app.agent
async def lookup(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    """Flaky: the order system hangs up twice, which is a transient failure, so the run is tried again."""
    if ctx.attempt <= 2:
        raise ConnectionError(f"the order system hung up on order {order['number']}")
    return {"order": order["number"], "state": "shipped", "attempts": ctx.attempt}


@app.agent(max_attempts=3)
async def refund(claim: dict[str, Any]) -> dict[str, Any]:
    """Poisonous: this one can't work, however often; after three attempts it is a dead letter."""
    raise ValueError(f"claim {claim['number']} was paid out by somebody who never existed")


@app.agent
async def draft(ctx: Context, letter: dict[str, Any]) -> str:
    """Streams its answer word by word, for whoever follows the run."""
    words = f"Dear {letter['name']}, thank you for your patience. It is on its way.".split()
    words *= int(letter.get("times", 1))
    for word in words:
        await ctx.stream(word + " ")
        await asyncio.sleep(0.03)
    return " ".join(words)


@app.agent
def invoice(ctx: SyncContext, order: dict[str, Any]) -> dict[str, Any]:
    """Sync: an ordinary function, which runs in a thread and may block there."""
    ctx.emit("printing", {"order": order["number"]})
    time.sleep(0.3)
    return {"order": order["number"], "pages": 1 + order["number"] % 3}


@app.agent
async def approve(ctx: Context, claim: dict[str, Any]) -> dict[str, Any]:
    """Asks: it leaves its worker until a person answers, in a second or in a month."""
    answer = await ctx.interrupt({"question": f"Pay {claim['amount']} EUR to {claim['name']}?"})
    return {"paid": claim["amount"] if answer == "yes" else 0}


@app.agent(timeout="10m")
async def survivor(ctx: Context, task: dict[str, Any]) -> dict[str, Any]:
    """Works in steps: kill its worker, and it goes on elsewhere after the last step that was finished."""
    seconds = float(task.get("seconds", 4.0))
    steps = max(1, round(seconds / 0.25))

    async def work(step: int) -> int:
        await ctx.emit("working", {"step": step})
        await asyncio.sleep(seconds / steps)
        return step

    for step in range(1, steps + 1):
        done = await ctx.step(f"part-{step}", work, step)
        await ctx.emit("progress", {"step": done, "of": steps})
    return {"steps": steps, "attempt": ctx.attempt, "fence": ctx.fence}


@app.resident
class Clerk:
    """Stays: it keeps a ledger of its tickets, which outlives its process and its host."""

    async def receive(self, ctx: Context, message: dict[str, Any]) -> list[int]:
        """Enter a ticket, or show the ledger; a ticket that comes again after a crash is entered once."""
        ledger: list[int] = await ctx.state.get("ledger") or []
        ticket = message.get("ticket")
        if ticket is not None and ticket not in ledger:
            ledger.append(ticket)
            await ctx.state.set("ledger", ledger)
        return ledger
