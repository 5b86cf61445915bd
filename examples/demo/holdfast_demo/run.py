"""Puts the demo together: system, client, stage, story, and the proof that decides the exit code."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

# The hosts of the demo need gRPC: without it the demo does not begin.
import holdfast.hosts.server  # noqa: F401  # pyright: ignore[reportUnusedImport]
from holdfast import Client
from holdfast.cli import output
from holdfast.redis.client import connect
from holdfast.redis.keys import QueueKeys
from holdfast.services.signals import on_signals
from holdfast_demo.books import Books
from holdfast_demo.http import Http
from holdfast_demo.program import ACTS, HOSTS, REPLICAS, WORKERS
from holdfast_demo.proof import prove
from holdfast_demo.stage import Stage
from holdfast_demo.story import Story
from holdfast_demo.summary import print_invitation, print_summary
from holdfast_demo.system import DemoFailed, System
from holdfast_demo.view import LivePicture, PlainLines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

EXAMPLE = "support_desk.py"
INTERRUPTED = 130


def play_demo(*, keep: bool = False, json: bool = False) -> int:
    """Run the demo and return its exit code: 0 only if every run is accounted for."""
    demo = Demo(Console(highlight=False, stderr=json), find_example(), keep=keep, json=json)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(demo.run())
    return demo.code


def find_example() -> Path:
    """Return the file of the example agents: beside this module in a wheel, else in examples/."""
    here = Path(__file__).resolve()
    found = next((place / EXAMPLE for place in here.parents[:3] if (place / EXAMPLE).is_file()), None)
    if found is None:
        raise DemoFailed(f"{EXAMPLE} is missing beside {here}: install holdfast again")
    return found


class Demo:
    """One showing."""

    def __init__(self, console: Console, app: Path, *, keep: bool, json: bool = False) -> None:
        self._console = console
        self._app = app
        self._keep = keep
        self._json = json
        self.code = INTERRUPTED
        self._view = LivePicture(console) if console.is_terminal else PlainLines(console)

    async def run(self) -> None:
        """Play, prove, and with ``keep`` leave the system up."""
        _cancel_on_signals()
        async with System(self._app) as system, _books(system) as books:
            stage = Stage(system, books, self._view, ACTS)
            async with Client(settings=system.settings) as client, Http() as http:
                story = Story(stage, client, http, books)
                failure = await self._play(stage, story)
            if failure and not stage.account.runs:
                self._report_failure(failure)
                return
            submitted = {run_id: run.agent for run_id, run in stage.account.runs.items()}
            audit = await books.audit(submitted)
            proof = prove(submitted, story.figures, audit, system.receiver.taken)
            print_summary(self._console, proof, story.figures, system.settings.lease.ttl_seconds)
            if failure:
                self._console.print(failure, style="red", markup=False, soft_wrap=True)
            self.code = 0 if proof.holds and not failure else 1
            if self._json:
                output.document({"holds": self.code == 0, "failure": failure, "proof": proof})
            if self._keep:
                await self._stay(system)

    def _report_failure(self, failure: str) -> None:
        """Print why there is nothing to prove: no run was submitted."""
        self._console.print(failure, style="red", markup=False, soft_wrap=True)
        self.code = 1
        if self._json:
            output.document({"holds": False, "failure": failure, "proof": None})

    async def _play(self, stage: Stage, story: Story) -> str:
        """Play the story; return why it could not be played to its end."""
        failures: list[str] = []
        try:
            with self._view.on():
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(stage.watch())
                    await story.play()
                    watching.cancel()
        except* DemoFailed as group:
            failures = [str(exc) for exc in _leaves(group)]
        return "\n".join(failures)

    async def _stay(self, system: System) -> None:
        for name in WORKERS:
            if not system.workers[name].lives:
                system.start_worker(name)
        for name in REPLICAS:
            if not system.replicas[name].lives:
                system.start_replica(name)
        for name in HOSTS:
            if not system.hosts[name].lives:
                system.start_host(name)
        print_invitation(self._console, system)
        await asyncio.Event().wait()


def _cancel_on_signals() -> None:
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        task.cancel()

    on_signals(stop)


@contextlib.asynccontextmanager
async def _books(system: System) -> AsyncGenerator[Books]:
    queue = system.settings.queue
    redis = connect(system.settings.redis)
    try:
        yield Books(redis, QueueKeys.of(queue.name), queue.group)
    finally:
        await redis.aclose()


def _leaves(group: BaseExceptionGroup[DemoFailed]) -> list[DemoFailed]:
    found: list[DemoFailed] = []
    for exc in group.exceptions:
        found += _leaves(exc) if isinstance(exc, BaseExceptionGroup) else [exc]
    return found
