"""Schedulers for tests: in this process, or in one of their own that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast import App
from holdfast.config import RedisSettings, Settings
from holdfast.errors import NotFound
from holdfast.schedules.entries import Entry, ScheduleState
from holdfast.schedules.registry import schedule_keys
from holdfast.services.scheduler import SchedulerProcess
from tests.support.paths import TESTS
from tests.support.runs.system import System, WorkerChild
from tests.support.schedules.manual_scheduler import Board
from tests.support.waiting import PATIENCE_SECONDS, until

LONG_TTL_SECONDS = 10.0
"""Longer than a busy machine keeps a process from its CPU: nobody loses a lease by that."""
SHORT_TTL_SECONDS = 2.0
"""For tests that wait until a lease is over."""

AGENTS = str(TESTS / "chaos" / "schedules.py") + ":app"
replace = msgspec.structs.replace


def scheduling(redis: RedisSettings, *, permits: int = 10, **changes: Any) -> RedisSettings:
    """Settings with short times; ``zombies`` and others replace a section's fields."""
    scheduler = redis.scheduler
    zombies = {"executor_shutdown_await_ms": 1000, "executor_shutdown_force_await_ms": 10_000}
    scheduler = replace(
        scheduler,
        zombie_cleanup=replace(scheduler.zombie_cleanup, **zombies | changes.pop("zombies", {})),
        jitter=replace(scheduler.jitter, **changes.pop("jitter", {})),
        circuit_breaker=replace(scheduler.circuit_breaker, **changes.pop("breaker", {})),
        orphan_cleanup=replace(scheduler.orphan_cleanup, **changes.pop("orphans", {})),
    )
    agent = replace(redis.agent, max_concurrent_agents=permits, **changes.pop("agent", {}))
    return replace(redis, scheduler=replace(scheduler, **changes), agent=agent)


class RunningScheduler:
    """A scheduler process that runs as a task of the test."""

    def __init__(self, settings: Settings, app: App) -> None:
        self.process = SchedulerProcess(settings, app)
        self.task = asyncio.create_task(self.process.run())

    async def ready(self) -> RunningScheduler:
        await until(lambda: self.process.ready or self.task.done())
        if self.task.done():
            self.task.result()
        return self

    @property
    def scheduler(self) -> Any:
        return self.process.scheduler

    def count(self, name: str, **labels: str) -> float:
        """The value of one of its metrics."""
        return self.process.metrics.registry.get_sample_value(f"holdfast_{name}", labels) or 0.0

    async def stop(self) -> None:
        self.process.request_stop()
        await asyncio.wait_for(self.task, 30)

    async def vanish(self) -> None:
        """End without any goodbye, as kill -9 would, but for the process itself."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class Stage:
    """One Redis with schedulers on it."""

    def __init__(self, system: System, redis: Any) -> None:
        self.system = system
        self.board = Board(redis, schedule_keys(system.settings.redis))
        self.schedulers: list[RunningScheduler] = []

    async def start(self, app: App, name: str = "", **changes: Any) -> RunningScheduler:
        settings = self.system.settings
        settings = replace(
            settings,
            worker=replace(settings.worker, name=name),
            redis=scheduling(settings.redis, **changes),
        )
        running = RunningScheduler(settings, app)
        self.schedulers.append(running)
        return await running.ready()

    async def entry(
        self, name: str, state: ScheduleState | None = None, runs: int = 0, seconds: float = PATIENCE_SECONDS
    ) -> Entry:
        """Wait until a schedule is in a state and has run so often."""
        return await until(
            lambda: self.board.entry(name),
            lambda entry: state in (None, entry.state) and entry.runs >= runs,
            what=f"schedule {name} to be {state or 'there'} with {runs} runs",
            seconds=seconds,
            tolerate=NotFound,
        )

    async def close(self) -> None:
        for running in self.schedulers:
            running.process.request_stop()
        for running in self.schedulers:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(running.task, 30)


@contextlib.asynccontextmanager
async def stage_of(
    redis: Any, settings: RedisSettings, *, ttl: float = LONG_TTL_SECONDS, **options: Any
) -> AsyncIterator[Stage]:
    async with System(settings, ttl=ttl, **options) as system:
        stage = Stage(system, redis)
        try:
            yield stage
        finally:
            await stage.close()


class SchedulerChild(WorkerChild):
    """A scheduler in a process of its own."""

    service = "scheduler"
