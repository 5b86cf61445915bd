"""What the demo does, act by act, as any user could: through the Client, and by signals to processes."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.cli.demo.account import CANCELLED, RUNNING, Event, Told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.cli.demo.stage import Stage
    from holdfast.client import Client, RunHandle

WORKERS = ("worker-a", "worker-b", "worker-c")
ACTS = ("start", "submit", "cancel", "kill -9", "SIGTERM", "finish")
START, SUBMIT, CANCEL, KILL, HAND_BACK, FINISH = range(len(ACTS))
AGENTS = {
    "greet": "quick",
    "research": "slow, tells its progress",
    "lookup": "fails twice, then works",
    "refund": "poisonous: always raises",
    "draft": "streams its answer",
    "invoice": "sync, in a thread",
    "survivor": "loses its worker",
}
_DAY = {"greet": 12, "research": 4, "lookup": 6, "refund": 4, "draft": 6, "invoice": 6}
_PACE_SECONDS = 0.15


@dataclass(slots=True)
class Figures:
    """What was measured on the way; times are seconds."""

    recovery: float | None = None
    hand_back: float | None = None
    took: float = 0.0
    shaken: dict[str, int] = field(default_factory=dict[str, int])
    """The runs that lost their worker, and the fence they had then."""


class Story:
    """Plays the acts on a stage."""

    def __init__(self, stage: Stage, client: Client) -> None:
        self._stage = stage
        self._client = client
        self.figures = Figures()

    async def play(self) -> None:
        """Play all of it; returns when every run has ended."""
        await self._start()
        async with asyncio.TaskGroup() as group:
            day = group.create_task(self._submit_a_day())
            await self._cancel()
            await self._kill()
            await self._hand_back()
            await day
        await self._finish()

    async def _start(self) -> None:
        stage = self._stage
        act = stage.begin(START, f"embedded Valkey, pid {stage.system.server.pid}; workers are coming up")
        for name in WORKERS:
            stage.system.start_worker(name)
        await stage.until(
            "the workers to be ready", lambda: all(worker.ready for worker in stage.system.workers.values())
        )
        lease = stage.system.settings.lease.ttl_seconds
        stage.end(act, f"embedded Valkey and {len(WORKERS)} worker processes; leases last {lease:g} s")

    async def _submit_a_day(self) -> None:
        """An ordinary day at the desk goes on beside everything else."""
        act = self._stage.begin(SUBMIT)
        day = list(_orders())
        for number, (agent, order) in enumerate(day, 1):
            await self._submit(agent, order)
            act.told = f"{number} of {len(day)} runs submitted, for {len(_DAY)} agents"
            await asyncio.sleep(_PACE_SECONDS)
        self._stage.end(act, f"{len(day)} runs submitted, for {len(_DAY)} agents")

    async def _submit(self, agent: str, order: Any, priority: str = "normal") -> tuple[RunHandle, Told]:
        handle = await self._client.submit(agent, order, priority=priority)
        return handle, self._stage.account.expect(handle.run_id, agent)

    async def _cancel(self) -> None:
        stage = self._stage
        handle, run = await self._submit("research", {"sources": 1000}, "high")
        act = stage.begin(CANCEL, f"a research that would take minutes, {short(run.run_id)}")
        await stage.until("the research to get going", lambda: run.last("progress"))
        asked_at = time.time()
        await handle.cancel("changed our mind")
        event = await stage.until("the research to be cancelled", lambda: run.last(CANCELLED))
        took = milliseconds(event.at - asked_at)
        stage.end(act, f"research {short(run.run_id)} on {run.owner} stopped {took} after it was asked")

    async def _kill(self) -> None:
        stage = self._stage
        _, run = await self._submit("survivor", {"seconds": 4.0}, "high")
        act = stage.begin(KILL, f"survivor {short(run.run_id)} starts")
        await stage.until("the survivor to be mid-run", lambda: _steps(run) >= 3)
        victim, fence = run.owner, run.fence
        stage.system.workers[victim].kill()
        killed_at, died = time.time(), stage.seconds
        self.figures.shaken[run.run_id] = fence
        act.told = (
            f"{victim} is dead, and survivor {short(run.run_id)} (fence {fence}) with it; nobody was told"
        )
        started = await stage.until("the survivor to run elsewhere", lambda: _started_after(run, fence))
        self.figures.recovery = later = started.at - killed_at
        stage.end(
            act,
            f"{victim} dies at {died:.1f} s; survivor {short(run.run_id)} runs again on {run.owner} "
            f"at {died + later:.1f} s, fence {fence} → {run.fence}",
        )

    async def _hand_back(self) -> None:
        stage = self._stage
        _, run = await self._submit("survivor", {"seconds": 3.0}, "high")
        act = stage.begin(HAND_BACK, f"survivor {short(run.run_id)} starts")
        await stage.until("another survivor to be mid-run", lambda: _steps(run) >= 2)
        leaver, fence = stage.system.workers[run.owner], run.fence
        leaver.terminate()
        self.figures.shaken[run.run_id] = fence
        drain = stage.system.settings.worker.drain_seconds
        act.told = f"{leaver.name} lets its runs finish for {drain:g} s, then hands back the rest"
        started = await stage.until("the survivor to be handed on", lambda: _started_after(run, fence))
        given = run.last("handed_back")
        self.figures.hand_back = later = started.at - (given or started).at
        await stage.until(f"{leaver.name} to leave", lambda: not leaver.lives)
        stage.end(
            act,
            f"{leaver.name} hands {short(run.run_id)} back, exit {leaver.process.returncode}; "
            f"on {run.owner} {milliseconds(later)} later, attempt still {started.data['attempt']}",
        )

    async def _finish(self) -> None:
        stage = self._stage
        act = stage.begin(FINISH, "waiting for what is still going")
        await stage.until("every run to end", lambda: stage.account.all_ended)
        self.figures.took = stage.seconds
        stage.end(act, f"all {len(stage.account.runs)} runs have ended")


def short(run_id: str) -> str:
    """The end of a run's id, which is the random part."""
    return run_id[-6:]


def _orders() -> Iterator[tuple[str, dict[str, Any]]]:
    """The day's work, mixed, but the same every day."""
    agents = [agent for agent, count in _DAY.items() for _ in range(count)]
    random.Random(7).shuffle(agents)  # noqa: S311 - no secret
    for number, agent in enumerate(agents, 1):
        yield agent, {"name": f"customer {number}", "number": number}


def _steps(run: Told) -> int:
    return sum(event.type == "progress" for event in run.events) if run.state == RUNNING else 0


def _started_after(run: Told, fence: int) -> Event | None:
    started = run.last("started")
    return started if started is not None and int(started.data["fence"]) > fence else None


def milliseconds(seconds: float) -> str:
    """A short time, as precise as the ids of events are."""
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "under 1 ms"
