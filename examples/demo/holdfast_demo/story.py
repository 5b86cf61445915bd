"""What the demo does, act by act, as any user could: by the Client, over HTTP, by signals to processes."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Literal

from holdfast_demo.account import CANCELLED, ENDED, RUNNING, Event, Told
from holdfast_demo.asking import ask
from holdfast_demo.figures import Figures
from holdfast_demo.outage import missing, suffer_an_outage
from holdfast_demo.program import (
    CANCEL,
    FINISH,
    HAND_BACK,
    HOSTS,
    KILL,
    REPLICAS,
    SCHEDULERS,
    START,
    SUBMIT,
    WORKERS,
    milliseconds,
    short,
)
from holdfast_demo.residents import keep_residents
from holdfast_demo.streaming import stream
from holdfast_demo.system import DemoFailed
from holdfast_demo.turns import keep_schedules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast import Client, RunHandle
    from holdfast_demo.books import Books
    from holdfast_demo.http import Http
    from holdfast_demo.stage import Stage

_DAY = {"greet": 12, "research": 4, "lookup": 6, "refund": 4, "draft": 6, "invoice": 6}
_PACE_SECONDS = 0.2


class Story:
    """Plays the acts on a stage."""

    def __init__(self, stage: Stage, client: Client, http: Http, books: Books) -> None:
        self._stage = stage
        self._books = books
        self._client = client
        self._http = http
        self.figures = Figures()

    async def play(self) -> None:
        """Play all of it; returns when every run has ended."""
        await self._start()
        async with asyncio.TaskGroup() as group:
            day = group.create_task(self._submit_a_day())
            turns = group.create_task(keep_schedules(self._stage, self._http, self._books))
            kept = group.create_task(keep_residents(self._stage))
            await self._cancel()
            self.figures.asked = await ask(self._stage, self._http)
            self.figures.streamed = await stream(self._stage, self._http)
            outage = group.create_task(suffer_an_outage(self._stage))
            await self._kill()
            await self._hand_back()
            await day
            self.figures.outage = await outage
            self.figures.turns = await turns
            self.figures.kept = await kept
        await self._finish()

    async def _start(self) -> None:
        stage = self._stage
        act = stage.begin(START, f"embedded Valkey, pid {stage.system.server.pid}; processes are coming up")
        for name in WORKERS:
            stage.system.start_worker(name)
        for name in SCHEDULERS:
            stage.system.start_scheduler(name)
        for name in REPLICAS:
            stage.system.start_replica(name)
        for name in HOSTS:
            stage.system.start_host(name)
        await stage.until(
            "the processes to be ready", lambda: all(each.ready for each in stage.system.processes)
        )
        lease = stage.system.settings.lease.ttl_seconds
        stage.end(
            act,
            f"Valkey, {len(WORKERS)} workers, a scheduler, {len(REPLICAS)} api replicas, {len(HOSTS)} hosts, "
            f"an Event API; {lease:g} s leases",
        )

    async def _submit_a_day(self) -> None:
        """An ordinary day at the desk goes on beside everything else."""
        act = self._stage.begin(SUBMIT)
        day = list(_orders())
        for number, (agent, order) in enumerate(day, 1):
            await self._submit(agent, order)
            act.text = f"{number} of {len(day)} runs submitted, for {len(_DAY)} agents"
            await asyncio.sleep(_PACE_SECONDS)
        self._stage.end(act, f"{len(day)} runs submitted, for {len(_DAY)} agents")

    async def _submit(
        self, agent: str, order: Any, priority: Literal["high", "normal"] = "normal"
    ) -> tuple[RunHandle, Told]:
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
        _, run = await self._submit("survivor", {"seconds": 6.0}, "high")
        act = stage.begin(KILL, f"survivor {short(run.run_id)} starts")
        await stage.until("the survivor to be mid-run", lambda: _steps(run) >= 3)
        victim, fence = run.owner, run.fence
        stage.system.workers[victim].kill()
        killed_at = time.time()
        self.figures.shaken[run.run_id] = fence
        act.text = f"{victim} is dead, run {short(run.run_id)} (fence {fence}) with it; nobody was told"
        started = await stage.until("the survivor to run elsewhere", lambda: _started_after(run, fence))
        self.figures.recovery = later = started.at - killed_at
        working = await stage.until("its next step", lambda: _after(run, started, "working"))
        stage.end(
            act,
            f"{victim} dies; {short(run.run_id)} goes on with step {working.data['step']} "
            f"on {run.owner} {later:.1f} s later",
        )

    async def _hand_back(self) -> None:
        stage = self._stage
        # Much longer than the drain: it must not finish before a busy machine has told its worker to leave.
        _, run = await self._submit("survivor", {"seconds": 5.0}, "high")
        act = stage.begin(HAND_BACK, f"survivor {short(run.run_id)} starts")
        await stage.until("another survivor to be mid-run", lambda: _steps(run) >= 2)
        leaver, fence = stage.system.workers[run.owner], run.fence
        leaver.terminate()
        self.figures.shaken[run.run_id] = fence
        drain = stage.system.settings.worker.drain_seconds
        act.text = f"{leaver.name} lets its runs finish for {drain:g} s, then hands back the rest"
        started = await stage.until("the survivor to be handed on", lambda: _started_after(run, fence))
        given = run.last("handed_back")
        self.figures.hand_back = later = started.at - (given or started).at
        await stage.until(f"{leaver.name} to leave", lambda: not leaver.lives)
        stage.end(
            act,
            f"{leaver.name} hands {short(run.run_id)} back, exit {leaver.process.returncode}; "
            f"on {run.owner} {milliseconds(later)} later",
        )

    async def _finish(self) -> None:
        stage = self._stage
        act = stage.begin(FINISH, "waiting for what is still going")
        await stage.until("every run to end", lambda: stage.account.all_ended)
        happened = {run.run_id: len(run.events) for run in stage.account.runs.values()}
        await stage.until("the Event API to have it all", lambda: not missing(stage, happened))
        self.figures.took = stage.seconds
        stage.end(
            act, f"all {len(happened)} runs have ended, all {sum(happened.values())} events have arrived"
        )


def _orders() -> Iterator[tuple[str, dict[str, Any]]]:
    """The day's work, mixed, but the same every day."""
    agents = [agent for agent, count in _DAY.items() for _ in range(count)]
    random.Random(7).shuffle(agents)  # noqa: S311 - no secret
    for number, agent in enumerate(agents, 1):
        yield agent, {"name": f"customer {number}", "number": number}


def _steps(run: Told) -> int:
    _check_not_ended(run)
    return sum(event.type == "progress" for event in run.events) if run.state == RUNNING else 0


def _started_after(run: Told, fence: int) -> Event | None:
    started = run.last("started")
    if started is not None and int(started.data["fence"]) > fence:
        return started
    _check_not_ended(run)
    return None


def _check_not_ended(run: Told) -> None:
    """A run that ended before its worker was gone never starts on another one: do not wait for that."""
    if run.state in ENDED:
        raise DemoFailed(
            f"{run.agent} {short(run.run_id)} ended before its worker was stopped: "
            "the machine is too busy for the demo, try again"
        )


def _after(run: Told, event: Event, kind: str) -> Event | None:
    later = run.events[run.events.index(event) :]
    return next((each for each in later if each.type == kind), None)
