"""The worker process: performs the runs of its queues until it is stopped, then shuts down in three phases.

::

    SIGTERM ─> phase 1  stop reading (no claim, no recovery, no promotion)
            ─> phase 2  let runs finish for drain_seconds, then hand back the rest (a second signal: now)
            ─> phase 3  return what was delivered but never started, remove the consumer, deregister, exit 0
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

from holdfast.agents.watchdog import LoopWatchdog
from holdfast.clock import boot_time
from holdfast.config.scaling import ANNOUNCE_SECONDS
from holdfast.errors import ConfigError, Conflict, HoldfastError
from holdfast.leases.keeper import Keeper
from holdfast.redis.client import DISCONNECTS, REFUSALS, TROUBLE
from holdfast.redis.members import Members, OwnRecord
from holdfast.redis.outages import redis_outages
from holdfast.runs.execution.pool import WorkerPool
from holdfast.runs.execution.worker import WorkerResources, WorkerTuning
from holdfast.services.announcing import AnnouncedAgents
from holdfast.services.connections import Connections
from holdfast.services.isolation import isolation
from holdfast.services.names import OwnName, is_taken
from holdfast.services.pod import Holding, pod_name
from holdfast.services.process import (
    calm_collector,
    leave_at_once,
    leaving_past_threads,
    loop_factory,
    run_process,
)
from holdfast.services.sidecar import quit_sidecar
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import StoreRegistration
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from holdfast.agents.app import App
    from holdfast.config import Settings
    from holdfast.runs.execution.worker import PartitionWorker

_STOP_MARGIN_SECONDS = 3.0
"""How long agents may take to unwind once asked to hand back, before the process leaves without them."""
_THREADS = "holdfast-agent"
_DAMAGED = "Redis rejects the commands for {queues}: a key of that name may have another type ({error})"

_log = get_logger(__name__)


class WorkerProcess:
    """Runs the workers of all partitions, and shuts them down in three phases."""

    def __init__(
        self,
        settings: Settings,
        app: App,
        *,
        abandon: Callable[[], None] = lambda: None,
        on_joined: Callable[[], None] = lambda: None,
        tuning: WorkerTuning | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._tuning = tuning or WorkerTuning()
        self._settings = settings
        self._app = app
        self._abandon = abandon
        self._on_joined = on_joined
        self.name = settings.worker.name or f"consumer-{uuid.uuid4()}"
        # Several workers may write to one log, as those of an autoscaler do.
        self._log = _log.bind(name=self.name)
        self.metrics = metrics or Metrics(app.agents)
        self.ready = False
        self._outages = redis_outages("heartbeats", "leases do not depend on them")
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._record = OwnRecord(self._members, "worker", self.name)
        self._holding = Holding()
        self._idle = True
        self._own_name = OwnName(self._members.ttl_seconds)
        mailbox = all(queue.private for queue in settings.worker_queues())
        self._agents = AnnouncedAgents(app, self._members, described=not mailbox)
        self.workers: list[PartitionWorker] = []
        """One for every partition, once the process has started."""

    def running(self) -> list[str]:
        """Return the runs that are being performed now."""
        return [attempt.key[0] for worker in self.workers for attempt in worker.running]

    def request_stop(self) -> None:
        """Begin the shutdown; a second call hands all runs back now."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            processes = isolation(settings, self._app, self.metrics, self._slots)
            attempts = await stack.enter_async_context(processes)
            connections = await stack.enter_async_context(Connections(settings, self.metrics))
            stack.enter_context(Exporter(self.metrics, settings.metrics, ready=lambda: self.ready))
            # The keeper is entered before the work, so that leases are kept until the last run is settled.
            keeper = await stack.enter_async_context(
                Keeper(settings.lease, connections.for_keeper, self.metrics)
            )
            stack.enter_context(LoopWatchdog(settings.worker.blocked_seconds, self.metrics))
            threads = self._threads()
            stack.callback(threads.shutdown, wait=False, cancel_futures=True)
            resources = WorkerResources(
                app=self._app,
                lease=settings.lease,
                owner=self.name,
                keeper=keeper,
                metrics=self.metrics,
                store=connections.store,
                open_reader=connections.blocking,
                threads=threads,
                processes=attempts,
                name_confirmed=self._own_name.sure,
                tuning=self._tuning,
            )
            pool = WorkerPool(resources, [connections.queue(each) for each in settings.worker_queues()])
            self.workers = pool.workers
            registration = StoreRegistration(connections, "worker", self.name)
            if await self._join(connections, pool, registration):  # guard: leave-after-join-only
                self._on_joined()
                await self._work(connections, keeper, pool, registration)
                await self._phase_3(connections, pool)
            else:  # runs that are held under our name may belong to another worker
                self._log.info("stopped before it joined; no run was started")
                await quit_sidecar(settings.worker.envoy_quit_url)
        if _threads_left() or pool.lingering:  # guard: exit-without-lingering
            self._abandon()
        if self._own_name.lost:
            raise Conflict(
                f"another worker has taken the name {self.name!r} while this one was disconnected; exiting "
                "(WORKER_POD_NAME must be unique)"
            )

    async def _work(
        self, connections: Connections, keeper: Keeper, pool: WorkerPool, registration: StoreRegistration
    ) -> None:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(keeper.watch(), name="keeper")
            beat = group.create_task(self._heartbeat(connections, pool), name="heartbeat")
            lasting = [watch, beat]
            if self._tuning.registers_store:
                lasting.append(group.create_task(registration.keep(), name="store registration"))
            upkeep: list[asyncio.Task[None]] = []
            workers: list[asyncio.Task[None]] = []

            def start(worker: PartitionWorker) -> None:
                upkeep.extend(group.create_task(each) for each in worker.upkeep())
                workers.append(group.create_task(worker.run(), name=worker.partition.name))

            for worker in pool.workers:
                start(worker)
            upkeep.append(group.create_task(pool.follow_partitions(start), name="partitions"))
            self.ready = True
            self._log.info("worker ready", queues=pool.queues)
            if not self._app.agents:
                self._log.warning("app has no agents, every run fails as unknown_agent")
            await self._stop.wait()
            self.ready = False
            await self._phase_1(connections, pool, upkeep)
            if not await self._phase_2(pool, workers):
                # Their tasks would block the exit for ever: hand their runs back, and exit before other
                # workers have got far with them.
                await self._phase_3(connections, pool, hurried=True)
                self._abandon()
            for task in lasting:
                task.cancel()

    async def _join(
        self, connections: Connections, pool: WorkerPool, registration: StoreRegistration
    ) -> bool:
        """Join the consumer groups, as soon as Redis responds; return False if stopped before."""
        while not self._stop.is_set():
            try:
                if self._tuning.registers_store:
                    await registration.check()
                with self._outages:
                    if not await self._name_is_taken(connections):  # guard: worker-name-unique
                        await pool.join()
                        await self._announce(connections, pool, again=False)
                        return True
            except ConfigError:
                raise
            except DISCONNECTS:
                pass  # the call is repeated until Redis responds
            except REFUSALS as exc:
                raise HoldfastError(_DAMAGED.format(queues=", ".join(pool.queues), error=exc)) from exc
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._stop.wait()
        return False

    async def _name_is_taken(self, connections: Connections) -> bool:
        """Return whether another live process has our name: the two would settle each other's runs."""
        other = await self._members.find(connections.redis, "worker", self.name)
        if other is None or not is_taken(other):
            return False
        self._log.warning(
            "worker name in use, waiting (WORKER_POD_NAME must be unique)",
            host=other.fields.get("host"),
            pid=other.fields.get("pid"),
        )
        return True

    async def _heartbeat(self, connections: Connections, pool: WorkerPool) -> None:
        while True:
            await self._beat_due(pool)
            # guard: heartbeat-outage
            with contextlib.suppress(*TROUBLE), self._outages:  # the next beat tries again; no lease needs it
                await self._announce(connections, pool)

    async def _beat_due(self, pool: WorkerPool) -> None:
        """Sleep until the next heartbeat, or until a worker whose record is idle has claimed a run."""
        due = time.monotonic() + self._settings.worker.heartbeat_seconds
        while (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(left, ANNOUNCE_SECONDS))
            # Until the record changes, a scale-in treats this worker as idle.
            if self._idle and self._load(pool):  # guard: busy-announced-at-once
                return

    def _load(self, pool: WorkerPool) -> int:
        return len(pool.running) + pool.lingering

    async def _announce(self, connections: Connections, pool: WorkerPool, *, again: bool = True) -> None:
        running, load = [attempt.key for attempt in pool.running], self._load(pool)
        fields = {
            "queues": ",".join(pool.queues),
            **self._agents.fields,
            "capacity": str(pool.slots),
            "load": str(load),
            "state": "draining" if self._stop.is_set() else "working" if load else "idle",
            "held_seconds": f"{self._holding.seconds(running):.0f}",
            **pod_name(self._settings).fields(),
        }
        written_at = boot_time()
        if await self._record.announce(connections.redis, fields, again=again):
            self._own_name.keep(written_at)
            self._idle = not load
            await self._agents.keep(connections.redis)
        elif not self._own_name.lost:
            self._own_name.lost = True
            self._log.error("worker name taken by another worker, exiting")
            self._stop.set()

    # -- shutdown

    async def _phase_1(
        self, connections: Connections, pool: WorkerPool, upkeep: list[asyncio.Task[None]]
    ) -> None:
        with self._phase("1", "stop reading"):
            pool.quiet()
            for task in upkeep:
                task.cancel()
            await asyncio.gather(*upkeep, return_exceptions=True)
            with contextlib.suppress(*DISCONNECTS):  # only our record is late
                await self._announce(connections, pool)

    async def _phase_2(self, pool: WorkerPool, workers: list[asyncio.Task[None]]) -> bool:
        """Let runs finish, hand back the rest; return False if an agent ignores its stop."""
        with self._phase("2", "let runs finish"):
            report = partial(self._report_drain, time.monotonic(), len(self.running()))
            if await self._finished(workers, self._settings.worker.drain_seconds, report):
                return True
            count = pool.hand_back()
            self._log.info("handing back unfinished runs", runs=count)
            report = partial(report, handed_back=count)
            if await self._finished(workers, _STOP_MARGIN_SECONDS, report, hurried=True):
                return True
            self._log.warning("agents ignored stop, exiting without them", runs=self.running())
            return False

    async def _finished(
        self,
        workers: list[asyncio.Task[None]],
        seconds: float,
        report: Callable[[float], None],
        *,
        hurried: bool = False,
    ) -> bool:
        """Wait for the workers and report progress; return False at the timeout or after a second signal."""
        deadline = time.monotonic() + seconds
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            while going := [task for task in workers if not task.done()]:
                left = deadline - time.monotonic()
                if left <= 0 or (self._hurry.is_set() and not hurried):
                    return False
                pause = min(left, self._settings.worker.progress_seconds)
                watched = going if hurried else [*going, hurry]
                done, _ = await asyncio.wait(watched, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    report(left - pause)
            return True
        finally:
            hurry.cancel()

    def _report_drain(
        self, started: float, at_first: int, seconds_left: float, *, handed_back: int = 0
    ) -> None:
        active = len(self.running())
        self._log.info(
            "waiting for runs",
            running=active,
            seconds_left=round(seconds_left),
            active_count=active,
            completed=max(at_first - max(active, handed_back), 0),
            elapsed_seconds=round(time.monotonic() - started, 3),
        )

    async def _phase_3(self, connections: Connections, pool: WorkerPool, *, hurried: bool = False) -> None:
        with self._phase("3", "leave"):
            # guard: lost-name-no-hand-back
            if not self._own_name.lost:  # runs under our name are another worker's: they would be handed back
                await self._deregister(self._record.leave(connections.redis))
                # Also after an error. From here on other workers begin our runs.
                await self._deregister(pool.leave())
            await quit_sidecar(self._settings.worker.envoy_quit_url, hurried=hurried)

    async def _deregister(self, call: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(_STOP_MARGIN_SECONDS):
                await call
        except TROUBLE as exc:
            # Runs that could not be returned are reclaimed when our leases end.
            self._log.warning("deregistration failed", error=str(exc) or type(exc).__name__)

    @contextlib.contextmanager
    def _phase(self, number: str, what: str) -> Generator[None]:
        started, gauge = time.monotonic(), self.metrics.shutdown_phase_seconds.labels(number)
        # A phase may last for minutes, and the process ends with the last: a scrape must see a running phase.
        gauge.set_function(lambda: time.monotonic() - started)
        yield
        seconds = time.monotonic() - started
        gauge.set_function(lambda: seconds)
        self._log.info(f"shutdown phase {number} complete", what=what, seconds=round(seconds, 3))

    @property
    def _members(self) -> Members:
        return Members.of(self._settings)

    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(self._slots, thread_name_prefix=_THREADS)

    @property
    def _slots(self) -> int:
        return sum(queue.slots for queue in self._settings.worker_queues())


def run_worker(settings: Settings, app: App) -> int:
    """Run a worker until SIGTERM or SIGINT; return its exit code."""
    calm_collector()
    return run_process(
        lambda: _until_signal(settings, app),
        loop_factory=loop_factory(settings),
        when_it_dies="worker crashed, other workers take over its runs when their leases end",
    )


async def _until_signal(settings: Settings, app: App) -> None:
    process = WorkerProcess(settings, app, abandon=leave_at_once)
    on_signals(process.request_stop)
    async with leaving_past_threads():
        await process.run()


def _threads_left() -> bool:
    return any(thread.name.startswith(_THREADS) for thread in threading.enumerate())
