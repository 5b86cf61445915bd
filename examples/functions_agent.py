"""A plain function that is durable: steps that are done once, state of a thread, and a question to a person.

holdfast dev examples/functions_agent.py
holdfast submit order '{"item": "lamp", "amount": 120}' --follow
holdfast runs resume RUN_ID true
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import App, Context

app = App("functions")


@app.agent(timeout="1h")
async def order(ctx: Context, wish: dict[str, Any]) -> dict[str, Any]:
    """Reserve an item, ask if it is expensive, and pay; whatever crashes, each of them happens once."""
    reservation = await ctx.step("reserve", reserve, wish["item"])
    await ctx.stream(f"{wish['item']} is reserved. ")
    if wish["amount"] > 100 and not await ctx.interrupt({"approve": wish}):
        return {"ordered": False}
    # A payment service that knows idempotency keys takes the same payment only once.
    receipt = await ctx.step("pay", pay, wish["amount"], key=ctx.idempotency_key("pay"))
    orders = await ctx.state.get("orders", 0) + 1
    await ctx.state.set("orders", orders)
    return {"ordered": True, "reservation": reservation, "receipt": receipt, "orders": orders}


async def reserve(item: str) -> str:
    """Stand in for a call to a warehouse."""
    await asyncio.sleep(0.05)
    return f"R-{item}"


async def pay(amount: float, key: str) -> dict[str, Any]:
    """Stand in for a call to a bank."""
    await asyncio.sleep(0.05)
    return {"amount": amount, "key": key}
