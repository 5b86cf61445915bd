"""Worker processes to be killed, and a ledger of what their agents really did."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import TESTS
from tests.support.runs.system import System, WorkerChild
from tests.support.waiting import PATIENCE_SECONDS, until

AGENTS = str(TESTS / "chaos" / "agents.py") + ":app"


@dataclass(frozen=True)
class Line:
    at: float
    what: str
    run_id: str
    fence: int
    attempt: int
    pid: int


class Ledger:
    """What agents did, in the order they did it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, what: str = "", run_id: str = "") -> list[Line]:
        found = []
        # Without a line that is being written: one that crosses a page of memory appears in two parts.
        for text in self.path.read_text().rpartition("\n")[0].splitlines():
            at, word, run, fence, attempt, pid = text.split()
            if what in ("", word) and run_id in ("", run):
                found.append(Line(float(at), word, run, int(fence), int(attempt), int(pid)))
        return found

    def check_nothing_ran_twice_under_one_fence(self) -> None:
        begun = Counter((line.run_id, line.fence) for line in self.lines("begin"))
        assert not {key: n for key, n in begun.items() if n > 1}


class Fleet:
    """Worker processes of one queue."""

    def __init__(self, system: System, ledger: Ledger, app: str = AGENTS, **environ: str) -> None:
        self.app = app
        self.environ = environ
        self.system = system
        self.ledger = ledger
        self.children: dict[str, WorkerChild] = {}

    async def start(self, name: str, **environ: str) -> WorkerChild:
        child = self.launch(name, **environ)
        await self.joined(name)
        return child

    def launch(self, name: str, **environ: str) -> WorkerChild:
        """Start a worker and return at once."""
        child = WorkerChild(
            self.system.settings, self.app, name, CHAOS_LEDGER=str(self.ledger.path), **self.environ | environ
        )
        if name in self.children:
            self.children[name].close()
        self.children[name] = child
        return child

    async def joined(self, name: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the worker has announced itself."""

        async def is_member() -> int:
            assert self.children[name].process.poll() is None, self.children[name].close()
            return await self.system.queue.redis.exists(f"member:worker:{name}")

        await until(is_member, what=f"worker {name} to announce itself", seconds=seconds)

    def close(self) -> None:
        for name, child in self.children.items():
            print(f"--- {name}\n{child.close()}", file=sys.stderr)


@contextlib.asynccontextmanager
async def fleet_of(system: System, ledger: Ledger, app: str = AGENTS, **environ: str) -> AsyncIterator[Fleet]:
    """A fleet for a test that has a system of its own."""
    fleet = Fleet(system, ledger, app, **environ)
    try:
        yield fleet
    finally:
        fleet.close()
