"""Agents of two apps: the same functions on the worker's loop and threads, and in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pydantic

from holdfast import App, Context, GiveUp, HandBack, RetryLater, SyncContext
from holdfast.errors import LeaseLost

inline = App("inline")
isolated = App("isolated")


def both(**options: Any):
    """Register an agent in both apps."""

    def register(function):
        inline.register(function.__name__, function, **options)
        isolated.register(function.__name__, function, isolation="process", **options)
        return function

    return register


def alone(**options: Any):
    """Register an agent that would end its worker."""

    def register(function):
        isolated.register(function.__name__, function, isolation="process", **options)
        return function

    return register


# -- what every agent does


@both()
async def echo(ctx: Context, given: Any) -> Any:
    return given


@dataclass
class Order:
    id: int
    due: datetime


class Bill(pydantic.BaseModel):
    order: int
    due: datetime
    type: str


@both()
async def bills(ctx: Context, order: Order) -> Bill:
    return Bill(order=order.id, due=order.due, type=type(order).__name__)


class Moody(pydantic.BaseModel):
    prices: dict[str, int]

    @pydantic.computed_field
    @property
    def total(self) -> int:
        return self.prices["total"]


@both()
async def raises_while_it_is_written() -> Moody:
    return Moody(prices={})


@both()
async def looks_up_a_wrong_key(ctx: Context) -> None:
    raise KeyError("no such key")


@both()
def bills_in_a_thread(order: Order):
    yield Bill(order=order.id, due=order.due, type=type(order).__name__)


@both()
async def pid() -> int:
    return os.getpid()


@both()
async def parent_pid() -> int:
    return os.getppid()


@both()
async def facts(ctx: Context, given: Any) -> dict:
    await ctx.emit("thinking", {"given": given})
    await ctx.stream("a piece")
    ctx.log.info("an agent's line", given=given)
    return {
        "attempt": ctx.attempt,
        "thread": ctx.thread_id,
        "agent": ctx.agent_id,
        "key": ctx.idempotency_key("x"),
        "metadata": dict(ctx.metadata),
        "left": ctx.deadline.timestamp() > time.time(),
        "cancelled": ctx.cancelled,
        "draining": ctx.draining,
    }


@both()
def in_a_thread(ctx: SyncContext, given: int) -> dict:
    ctx.emit("counting", given)
    before = ctx.state.get("count", 0)
    ctx.state.set("count", before + given)
    return {"before": before, "doubled": ctx.step("double", lambda: given * 2)}


@both()
async def conversation(ctx: Context, given: int) -> int:
    total = await ctx.state.get("total", 0) + given
    await ctx.state.set("total", total)
    return total


@both()
async def steps(ctx: Context, path: str) -> list[int]:
    def note() -> int:
        with Path(path).open("a") as file:
            file.write("x")
        return Path(path).stat().st_size

    first = await ctx.step("first", note)
    if ctx.attempt == 1:
        raise RetryLater("once more", after=0.01)
    return [first, await ctx.step("second", note)]


@both()
async def asks(ctx: Context) -> str:
    return f"told {await ctx.interrupt({'what': 'now'})}"


@both()
async def words(given: int):
    for number in range(given):
        yield f"word {number}"


@both()
async def gives_up() -> None:
    raise GiveUp("it won't help")


@both()
async def broken(ctx: Context) -> None:
    raise ValueError(f"wrong in attempt {ctx.attempt}")


@both()
async def unwritable() -> Any:
    return {"an": object()}


@both()
async def forgets_to_await() -> Any:
    return {"an": echo(None, 1)}


@both()
async def large(given: int) -> str:
    return 'ö"' * (given // 3)


@both()
async def hands_back(ctx: Context) -> int:
    if ctx.fence == 1:
        raise HandBack
    return ctx.attempt


async def begun(ctx: Context) -> None:
    """Emit the event, whatever stops the agent meanwhile.

    A test that reads the event stops the agent at once, often before the agent has the reply to its emit.
    """
    emitting = asyncio.ensure_future(ctx.emit("begun", os.getpid()))
    while not emitting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(emitting)


@both()
async def stubborn(ctx: Context) -> None:
    """Ignores its cancellation."""
    await begun(ctx)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)


def begun_in_a_thread(ctx: SyncContext) -> None:
    """The same for an agent in a thread: its emit raises if the agent is stopped before the reply."""
    with contextlib.suppress(LeaseLost):
        ctx.emit("begun", os.getpid())


@both()
async def polite(ctx: Context, path: str) -> None:
    try:
        await ctx.emit("begun", os.getpid())
        await asyncio.Event().wait()
    finally:
        with Path(path).open("a") as file:
            file.write(f"tidied up {ctx.cancelled}")


@both()
def polite_thread(ctx: SyncContext, path: str) -> None:
    begun_in_a_thread(ctx)
    while not ctx.cancelled:
        time.sleep(0.005)
    with Path(path).open("a") as file:
        file.write("tidied up")


@both()
async def leaves_early(ctx: Context) -> str:
    await ctx.emit("begun", os.getpid())
    await ctx.wait_draining()
    return "left early"


# -- what only a process survives


@alone()
async def spins(ctx: Context) -> None:
    """Never let the event loop go on; mostly asleep, since other tests need the CPU."""
    await begun(ctx)
    while True:
        time.sleep(0.001)


@alone()
def thread_spins(ctx: SyncContext) -> None:
    begun_in_a_thread(ctx)
    while True:
        time.sleep(0.001)


@alone()
async def quits(code: int) -> None:
    os._exit(code)


@alone()
async def quits_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        os._exit(3)
    return ctx.attempt


@alone()
async def killed(ctx: Context, number: int) -> None:
    os.kill(os.getpid(), number)
    await asyncio.Event().wait()


@alone()
async def segfaults() -> None:
    ctypes.string_at(0)


@alone(memory_mb=400)
async def eats() -> int:
    return len([bytearray(1 << 20) for _ in range(4000)])


@alone(memory_mb=1)
async def starved() -> None: ...


@alone(nice=7)
async def modest() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


@alone()
async def parent(ctx: Context, how: str) -> None:
    """Starts processes that would outlive it."""
    child = os.fork()
    if child == 0:
        if how == "escaped":
            os.setsid()
        threading.Event().wait()
    program = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    await ctx.emit("begun", os.getpid())
    await ctx.emit("children", [child, program.pid])
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "return":
        return
    await asyncio.Event().wait()


@alone()
async def leaves_a_thread(given: int) -> int:
    """Its thread would keep an event loop from closing."""
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    return given


@alone()
async def prints() -> None:
    print("printed by an agent")
    os._exit(9)


@alone()
async def marks(ctx: Context, path: str) -> None:
    """Says all the time that it lives."""
    await ctx.emit("begun", os.getpid())
    while True:
        with Path(path).open("a") as file:
            file.write(f"{ctx.fence}\n")
        time.sleep(0.01)


@alone()
async def once_elsewhere(ctx: Context, path: str | None) -> int:
    """Never ends in its first attempt."""
    with Path(path or os.devnull).open("a") as ledger:
        ledger.write(f"{ctx.fence}\n")
    await ctx.emit("begun", os.getpid())
    if ctx.attempt == 1:
        await asyncio.Event().wait()
    return ctx.attempt


@alone()
async def naps(ctx: Context, seconds: float) -> int:
    await ctx.emit("begun", os.getpid())
    await asyncio.sleep(seconds)
    return ctx.attempt


@isolated.agent
async def blocks(seconds: float) -> None:
    """On the worker's own loop, which nothing else can use meanwhile."""
    time.sleep(seconds)


@alone()
async def holds_the_lock(ctx: Context, seconds: int) -> int:
    """Stays in C without letting any other thread of Python go on, as a regular expression can."""
    await ctx.emit("begun", os.getpid())
    ctypes.PyDLL(None).sleep(seconds)
    return ctx.fence
