"""Residents for the tests of hosts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast import App, Context

app = App("residents")


@app.resident
class Clerk:
    """Counts what it is told, in its state, and says which process it is."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting

    async def start(self) -> None:
        self.started = True

    async def receive(self, ctx: Context, message: dict) -> dict:
        if message.get("fails"):
            raise ValueError("no such form")
        if message.get("dies"):
            os._exit(3)
        if once := message.get("dies_once"):
            with contextlib.suppress(FileExistsError):
                Path(once).touch(exist_ok=False)
                os._exit(3)
        seen = (await ctx.state.get("seen") or 0) + 1
        await ctx.state.set("seen", seen)
        return {
            "said": f"{self.greeting} {message['name']}",
            "seen": seen,
            "pid": os.getpid(),
            "started": self.started,
        }


class Letter(msgspec.Struct):
    number: int


@app.resident
class Reader:
    """Takes what its annotation promises."""

    async def receive(self, ctx: Context, letter: Letter) -> Letter:
        return Letter(letter.number + 1)


@dataclass
class Shop:
    name: str
    open: bool = True


@app.resident
class Keeper:
    """Is made with a model, and repeats what it is told."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def receive(self, ctx: Context, message: dict) -> dict:
        return {"shop": self.shop.name, "open": self.shop.open, **message}


@app.resident(name="sick")
class Sick:
    """Is well at first."""

    def __init__(self) -> None:
        self.asked = 0

    def receive(self, ctx, message):
        return os.getpid()

    def health(self) -> bool:
        self.asked += 1
        return self.asked < 3


@app.resident
class Mute:
    """Is asked how it is, and never answers."""

    async def receive(self, ctx, message):
        return os.getpid()

    async def health(self) -> bool:
        await asyncio.Event().wait()
        return True
