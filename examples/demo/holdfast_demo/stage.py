"""What is going on right now: acts, workers, runs. The view shows it, and the story waits on it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast_demo.account import Account
from holdfast_demo.system import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast_demo.books import Books
    from holdfast_demo.system import System

LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 60.0

T = TypeVar("T")


@dataclass(slots=True)
class Act:
    """One thing that the demo shows."""

    title: str
    text: str = ""
    began: float = 0.0
    ended: float = 0.0


class View(Protocol):
    """Shows the stage on a terminal."""

    def show(self, stage: Stage) -> None:
        """Bring what is shown up to date."""
        ...


class Stage:
    """The state of the demo, brought up to date ten times a second from Redis."""

    def __init__(self, system: System, books: Books, view: View, titles: tuple[str, ...]) -> None:
        self.system = system
        self.acts = [Act(title) for title in titles]
        self.account = Account()
        self._books = books
        self._view = view
        self._began = time.monotonic()
        self._moved = asyncio.Event()

    @property
    def seconds(self) -> float:
        """How long the demo has been going."""
        return time.monotonic() - self._began

    def begin(self, number: int, text: str = "") -> Act:
        """Begin an act."""
        act = self.acts[number]
        act.began, act.text = self.seconds, text
        self._view.show(self)
        return act

    def end(self, act: Act, text: str) -> None:
        """End an act with what came of it."""
        act.text, act.ended = text, self.seconds
        self._view.show(self)

    async def watch(self) -> None:
        """Follow the feeds until cancelled."""
        while True:
            self.system.require_health()
            for event in await self._books.news(self.account.runs):
                self.account.apply(event)
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()
            self._view.show(self)
            await asyncio.sleep(LOOK_SECONDS)

    async def until(self, what: str, find: Callable[[], T | None]) -> T:
        """Wait until ``find`` finds something, and return it."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (found := find()):
                    await self._moved.wait()
        except TimeoutError:
            raise DemoFailed(f"waited {PATIENCE_SECONDS:g} s for {what}") from None
        return found
