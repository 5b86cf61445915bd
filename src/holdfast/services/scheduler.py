"""The scheduler process: runs the schedules until it is asked to stop, then hands back unfinished turns."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.agents.watchdog import LoopWatchdog
from holdfast.leases.keeper import Keeper
from holdfast.operations.schedules import submitter
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.command import command
from holdfast.redis.members import Member, Members, OwnRecord
from holdfast.redis.outages import redis_outages
from holdfast.reliability.breaker import BreakerState
from holdfast.schedules.context import SchedulerContext
from holdfast.schedules.entries import Entries
from holdfast.schedules.periodic import PeriodicTask
from holdfast.schedules.reconcile import Reconcile
from holdfast.schedules.redis_errors import counting_discarded, script_failed
from holdfast.schedules.registry import ScheduleRegistry, checked_keys, schedule_keys
from holdfast.schedules.report import Report
from holdfast.schedules.schedule import family
from holdfast.schedules.scheduler import Scheduler
from holdfast.schedules.selection import Shards
from holdfast.schedules.sql_sync import SqlSync
from holdfast.schedules.submission import Targets
from holdfast.schedules.upkeep import Upkeep
from holdfast.schedules.wakeup import DRAINING, JOINED, LEFT, wakeup_channel
from holdfast.services.announcing import AnnouncedAgents
from holdfast.services.connections import Connections
from holdfast.services.isolation import isolation
from holdfast.services.process import (
    calm_collector,
    leave_at_once,
    leaving_past_threads,
    loop_factory,
    run_process,
)
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import StoreRegistration
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from holdfast.agents.app import App
    from holdfast.config import Settings
    from holdfast.processes.attempts import Attempts
    from holdfast.reliability.breaker import Breaker
    from holdfast.runs.queue import RunQueue

_KIND = "scheduler"
_THREADS = "holdfast-scheduled"
_LEAVE_SECONDS = 3.0
_RETRY_SECONDS = 1.0

_log = get_logger(__name__)


class SchedulerProcess:
    """Wires one scheduler, and starts and stops it."""

    def __init__(self, settings: Settings, app: App, *, abandon: Callable[[], None] = lambda: None) -> None:
        self._settings = settings
        self._app = app
        self._abandon = abandon
        self.name = settings.worker.name or f"scheduler-{uuid.uuid4()}"
        self.metrics = Metrics(app.agents)
        self.ready = False
        self._outages = redis_outages("heartbeats and the registration of schedules")
        self.scheduler: Scheduler | None = None
        self._stop = asyncio.Event()
        self._beat = asyncio.Event()
        self._published = ""
        self._senders: dict[str, RunQueue] = {}
        # Its record expires with its leases: until then its share of the schedules is late after a crash.
        self._members = Members.of(settings, at_most_seconds=settings.lease.ttl_seconds)
        self._record = OwnRecord(self._members, _KIND, self.name)
        self._agents = AnnouncedAgents(app, self._members)

    def request_stop(self) -> None:
        """Begin the shutdown; a second call changes nothing."""
        self._stop.set()
        self._beat.set()  # guard: draining-told-at-once

    async def run(self) -> None:
        """Schedule until stopped."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            agent = settings.redis.agent
            most = min(agent.permits or agent.max_threads, agent.max_threads)
            attempts = await stack.enter_async_context(isolation(settings, self._app, self.metrics, most))
            connections = await stack.enter_async_context(Connections(settings, self.metrics))
            stack.enter_context(Exporter(self.metrics, settings.metrics, ready=lambda: self.ready))
            registration = StoreRegistration(connections, _KIND, self.name)
            await registration.check()
            # The keeper is entered before the work, so that leases are kept until the last turn is settled.
            keeper = await stack.enter_async_context(
                Keeper(settings.lease, connections.for_keeper, self.metrics)
            )
            # guard: watchdog-names-schedule
            stack.enter_context(LoopWatchdog(settings.worker.blocked_seconds, self.metrics, _turn_of))
            executor = concurrent.futures.ThreadPoolExecutor(most, thread_name_prefix=_THREADS)
            stack.callback(executor.shutdown, wait=False, cancel_futures=True)
            await self._work(connections, registration, keeper, executor, attempts)
            await self._leave(connections)
        if _threads_left() or (self.scheduler is not None and self.scheduler.left_behind):
            self._abandon()

    async def _work(
        self,
        connections: Connections,
        registration: StoreRegistration,
        keeper: Keeper,
        executor: concurrent.futures.Executor,
        attempts: Attempts | None,
    ) -> None:
        settings = self._settings.redis
        context = SchedulerContext(
            self._app,
            settings.scheduler,
            executor,
            asyncio.Event(),
            self.name,
            submitter(partial(self._sender, connections)),
            connections.store,
            attempts,
            targets=Targets(self._settings.queue_names()),
        )
        redis, keys, ttl = connections.redis, checked_keys(settings), self._settings.lease.ttl_seconds
        scheduler = self.scheduler = Scheduler(
            context, redis, keys, settings, keeper=keeper, metrics=self.metrics, ttl_seconds=ttl
        )
        upkeep = Upkeep(
            redis,
            keys,
            settings.scheduler,
            self.metrics,
            keeper=keeper,
            owner=self.name,
            ttl_seconds=ttl,
            wake=scheduler.wake,
        )
        registry = ScheduleRegistry(redis, keys, discarded=counting_discarded(self.metrics))
        schedules = tuple(self._app.schedules.values())
        context.targets.look(schedules)
        reconcile = Reconcile(registry, schedules, settings.scheduler, self._sql_sync(connections, registry))
        sweeping = upkeep.sweeping()
        passes = [self._reconciling(reconcile, scheduler), *([sweeping] if sweeping is not None else [])]
        rounds = [
            keeper.watch(),
            registration.keep(),
            self._heartbeat(connections, scheduler),
            upkeep.reclaim(),
            wakeup_channel(
                keys.nudge, connections.blocking(0), wake=scheduler.wake, members_changed=self._beat.set
            ).run(),
        ]
        if self._is_enabled:  # else due schedules are not its backlog
            report = Report(scheduler, registry, upkeep, self._app.agents, settings, self.metrics)
            rounds.append(report.run())
        await self._until_stopped(scheduler, rounds, passes, len(schedules))

    async def _until_stopped(
        self,
        scheduler: Scheduler,
        rounds: Sequence[Coroutine[Any, Any, None]],
        passes: Sequence[PeriodicTask],
        schedules: int,
    ) -> None:
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(each) for each in (*rounds, *(one.run() for one in passes))]
            work = group.create_task(self._schedule(scheduler), name="scheduler")
            self.ready = True
            _log.info("scheduler ready", name=self.name, schedules=schedules)
            await self._stop.wait()
            self.ready = False
            scheduler.quiet()
            # No new pass begins; a running one may end meanwhile.
            await asyncio.gather(work, *(one.stop() for one in passes))
            for task in background:
                task.cancel()

    async def _schedule(self, scheduler: Scheduler) -> None:
        if self._is_enabled:
            await scheduler.run()
        else:
            _log.warning("schedules not run: redis.scheduler.enabled is false")
            await self._stop.wait()

    def _reconciling(self, reconcile: Reconcile, scheduler: Scheduler) -> PeriodicTask:
        settings = self._settings.redis.scheduler
        every = settings.refresh_period_seconds

        async def once() -> float:
            whole = False
            try:
                with self._outages:
                    whole = await reconcile.run_once()
                await scheduler.recheck_foreign()
            except TROUBLE as exc:
                script_failed(self.metrics, exc)
                if not isinstance(exc, DISCONNECTS):
                    _log.error("schedule registration rejected by Redis", error=str(exc))
            return every if whole else min(every, _RETRY_SECONDS)

        return PeriodicTask(
            "reconcile",
            once,
            await_ms=settings.reconcile.executor_shutdown_await_ms,
            force_await_ms=settings.reconcile.executor_shutdown_force_await_ms,
        )

    def _sql_sync(self, connections: Connections, registry: ScheduleRegistry) -> SqlSync:
        keys = schedule_keys(self._settings.redis)
        jitter = self._settings.redis.scheduler.jitter.initial_registration_seconds
        entries = Entries(connections.redis, keys)
        return SqlSync(registry, entries, connections.store.found, keys.definitions, jitter_seconds=jitter)

    def _sender(self, connections: Connections, target: str) -> RunQueue:
        queue = self._senders.get(target)
        if queue is None:
            # guard: scheduler-submit-breaker
            queue = self._senders[target] = connections.sender(self._settings.queue_named(target))
        return queue

    # -- membership

    async def _heartbeat(self, connections: Connections, scheduler: Scheduler) -> None:
        while True:
            with contextlib.suppress(*TROUBLE), self._outages:  # the next beat tries again; no lease needs it
                await self._announce(connections, scheduler)
                await self._update_shards(connections, scheduler)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._members.heartbeat_seconds):
                    await self._beat.wait()
            self._beat.clear()

    async def _announce(self, connections: Connections, scheduler: Scheduler) -> None:
        fields = {
            **self._agents.fields,
            "capacity": str(max(scheduler.permits.limit, 0)),
            "load": str(len(scheduler.running)),
            "state": self._state,
            "breakers": _not_closed(scheduler.breakers.by_name),
        }
        await self._record.announce(connections.redis, fields)
        # guard: members-told-of-change
        await self._notify_schedulers(connections, DRAINING if fields["state"] == "draining" else JOINED)
        await self._agents.keep(connections.redis)

    @property
    def _state(self) -> str:
        if self._stop.is_set():
            return "draining"
        if not self._is_enabled:  # guard: disabled-scheduler-announced
            return "disabled"
        return "working" if self.scheduler is not None and self.scheduler.running else "idle"

    @property
    def _is_enabled(self) -> bool:
        return self._settings.redis.scheduler.enabled

    async def _notify_schedulers(self, connections: Connections, word: str) -> None:
        """Notify the other schedulers to recompute their shards: our record has just changed."""
        if self._shares_names and word != self._published:
            await command(connections.redis, "PUBLISH", schedule_keys(self._settings.redis).nudge, word)
            self._published = word

    @property
    def _shares_names(self) -> bool:
        return self._settings.redis.scheduler.sharding != "none"

    async def _update_shards(self, connections: Connections, scheduler: Scheduler) -> None:
        if not (self._shares_names and self._is_enabled):
            return
        others = [one.name for one in await self._members.all(connections.redis, _KIND) if _shares(one)]
        if scheduler.shards is None or set(scheduler.shards.pods) != {self.name, *others}:
            scheduler.shards = Shards(self.name, others)
            _log.info("shards recomputed", schedulers=list(scheduler.shards.pods))
            scheduler.wake()

    async def _leave(self, connections: Connections) -> None:
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._record.leave(connections.redis)
                # Turns that we planned and won't run: the other schedulers read their shards again.
                await command(connections.redis, "PUBLISH", schedule_keys(self._settings.redis).nudge, LEFT)
        except TROUBLE as exc:
            _log.warning("deregistration failed", error=str(exc) or type(exc).__name__)


def _shares(member: Member) -> bool:
    return member.fields.get("state") not in {"draining", "disabled"}


def _turn_of(task: str) -> dict[str, str]:
    """Return the schedule and the turn of a task, whose name is the turn's id, `name@time`."""
    return {"schedule": family(task), "turn": task} if "@" in task else {}


def _not_closed(breakers: Mapping[str, Breaker]) -> str:
    """Return the breakers that keep a scheduler from acquiring, for its record."""
    return ",".join(
        f"{name}={one.state}" for name, one in breakers.items() if one.state is not BreakerState.CLOSED
    )


def _threads_left() -> bool:
    return any(thread.name.startswith(_THREADS) and thread.is_alive() for thread in threading.enumerate())


def run_scheduler(settings: Settings, app: App) -> int:
    """Run a scheduler until SIGTERM or SIGINT; return its exit code."""
    checked_keys(settings.redis)  # a wrong setting fails at once, not later in the process
    calm_collector()
    return run_process(
        lambda: _until_signal(settings, app),
        loop_factory=loop_factory(settings),
        when_it_dies="scheduler crashed, other schedulers take over its turns when their leases end",
    )


async def _until_signal(settings: Settings, app: App) -> None:
    process = SchedulerProcess(settings, app, abandon=leave_at_once)
    on_signals(process.request_stop)
    async with leaving_past_threads():
        await process.run()
