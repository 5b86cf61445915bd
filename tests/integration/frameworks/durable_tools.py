"""The same tools for three frameworks: one waits at a gate, and one is worth an approval.

What they do is written to a ledger, beyond the reach of anything that is killed.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from holdfast.agents.frameworks import current_context


def write(what: str) -> None:
    """One line per thing done; O_APPEND keeps lines of several processes whole."""
    ctx = current_context()
    line = f"{time.time():.4f} {what} {ctx.run_id} {ctx.fence} {ctx.attempt} {os.getpid()}\n"
    with Path(os.environ["CHAOS_LEDGER"]).open("a") as ledger:
        ledger.write(line)


async def first_tool() -> str:
    write("first")
    return "looked"


async def slow_tool() -> str:
    """Wait until the gate is open."""
    write("slow")
    try:
        while not Path(os.environ["CHAOS_GATE"]).exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        write("stopped")
        raise
    return "waited"


async def pay_tool(amount: int) -> str:
    write("pay")
    return f"paid {amount}"


def plan(prompt: str) -> list[str]:
    return [word for word in ("first", "slow", "pay") if word in prompt]
