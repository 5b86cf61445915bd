"""The worker process: performs the runs of its queues until it is told to stop, then leaves in three phases.

::

    SIGTERM ─> phase 1  stop reading (no claim, no recovery, no promotion)
            ─> phase 2  let runs finish for drain_seconds, then hand back the rest (a second signal: now)
            ─> phase 3  return what was delivered but never started, remove the consumer, deregister, exit 0
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import threading
import time
import uuid
from typing import TYPE_CHECKING

from holdfast.agents.watchdog import LoopWatchdog
from holdfast.errors import StoreUnavailable
from holdfast.leases.keeper import Keeper
from holdfast.leases.streams import StreamLeases
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.members import Member, Members
from holdfast.runs import expiry, promoter
from holdfast.runs.archive import Archive, Filing
from holdfast.runs.claim import Claimer
from holdfast.runs.cleanup import list_consumers
from holdfast.runs.control import Control
from holdfast.runs.emit import Emitter
from holdfast.runs.expiry import Expiry
from holdfast.runs.perform import Workplace
from holdfast.runs.promoter import Promoter
from holdfast.runs.recovery import Recovery
from holdfast.runs.settle import Settler
from holdfast.runs.worker import Worker
from holdfast.services.connections import Connections
from holdfast.services.isolation import isolation
from holdfast.services.names import is_taken
from holdfast.services.process import calm_collector, leave_at_once, loop_factory
from holdfast.services.sidecar import quit_sidecar
from holdfast.services.signals import ignore_signals, on_signals
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from holdfast.agents.app import App
    from holdfast.config import QueueSettings, Settings
    from holdfast.processes.attempts import Attempts
    from holdfast.runs.queue import RunQueue

_STOP_MARGIN_SECONDS = 3.0
"""How long agents may take to unwind once asked to hand back, before the process leaves without them."""
_THREADS = "holdfast-agent"
_VERSION = importlib.metadata.version("holdfast")

_log = get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Ways:
    """How a worker differs from others: how often it looks after its queues, and whose runs are its own."""

    recovery_seconds: float = 1.0
    promotion_seconds: float = promoter.LONGEST_SECONDS
    expiry_seconds: float = expiry.EVERY_SECONDS
    archive_seconds: float = 0.0
    """How often it archives by itself what has ended; 0 leaves it to a janitor."""
    inherits: Callable[[str], bool] | None = None
    """Which consumers' runs go on at once in this one, without a wait for their leases' end."""


class Desk:
    """One queue of a worker process, with everything that works on it."""

    def __init__(
        self,
        connections: Connections,
        queue_settings: QueueSettings,
        app: App,
        keeper: Keeper,
        metrics: Metrics,
        owner: str,
        executor: concurrent.futures.Executor,
        attempts: Attempts | None,
        ways: Ways,
    ) -> None:
        settings = connections.settings
        ttl = settings.lease.ttl_seconds
        every = min(ttl / 10, ways.recovery_seconds)
        queue = connections.queue(queue_settings)
        self.queue: RunQueue = queue
        self.leases = StreamLeases(
            queue.keys,
            group=queue_settings.group,
            owner=owner,
            ttl_ms=int(ttl * 1000),
            turn_ms=int(every * 900),
        )
        limits = {name: spec.concurrency for name, spec in app.agents.items() if spec.concurrency}
        reader = connections.blocking(queue_settings.block_ms / 1000)
        self.claimer = Claimer(queue, owner, reader, limits)
        self.worker = Worker(
            Workplace(
                *(app, queue_settings, executor, asyncio.Event(), owner, connections.store, queue.answer),
                attempts=attempts,
            ),
            claimer=self.claimer,
            settler=Settler(queue, self.leases, owner, metrics),
            emitter=Emitter(queue, owner, metrics),
            leases=self.leases,
            keeper=keeper,
            metrics=metrics,
            owner=owner,
        )
        self._rounds = (
            Recovery(queue, self.leases, metrics, every_seconds=every),
            Promoter(queue, longest_seconds=ways.promotion_seconds),
            Expiry(queue, metrics, every_seconds=ways.expiry_seconds),
            Control(queue.keys.control, self.worker, connections.blocking(0)),
            *_filing(connections, queue, metrics, ways.archive_seconds),
        )

    def rounds(self) -> list[Coroutine[None, None, None]]:
        """What goes on beside the runs until phase 1."""
        return [each.run() for each in self._rounds]

    async def inherit(self, dead: Callable[[str], bool]) -> None:
        """Queue again, now, what consumers hold of which we know that they are dead."""
        for consumer in await list_consumers(self.queue):
            if dead(consumer.name):
                evicted = await self.leases.evict(self.queue.redis, consumer.name, min_idle_ms=0)
                _log.info("took over from", consumer=consumer.name, entries=evicted.entries)

    async def leave(self) -> None:
        """Return what was delivered to us and never settled, then remove our consumer."""
        evicted = await self.leases.leave(self.queue.redis)
        if evicted.entries:
            _log.info("entries returned on leaving", queue=self.queue.name, entries=evicted.entries)


class WorkerProcess:
    """Runs the desks of one process and walks them through the shutdown."""

    def __init__(
        self,
        settings: Settings,
        app: App,
        *,
        abandon: Callable[[], None] = lambda: None,
        ways: Ways | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._ways = ways or Ways()
        self._settings = settings
        self._app = app
        self._abandon = abandon
        self.name = settings.worker.name or f"consumer-{uuid.uuid4()}"
        self.metrics = metrics or Metrics(app.agents)
        self.ready = False
        self.joined = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._since = time.time()
        self._desks: list[Desk] = []

    def running(self) -> list[str]:
        """The runs that are being performed now."""
        return [run_id for desk in self._desks for run_id, _ in desk.worker.running]

    def request_stop(self) -> None:
        """Begin the shutdown; asked again, hand everything back now."""
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
            executor = self._executor()
            stack.callback(executor.shutdown, wait=False, cancel_futures=True)
            own = (self._app, keeper, self.metrics, self.name, executor, attempts, self._ways)
            desks = self._desks = [Desk(connections, queue, *own) for queue in settings.worker_queues()]
            await _look_at_store(connections)
            await self._work(connections, keeper, desks)
            await self._phase_3(connections, desks)
        if _threads_left() or any(desk.worker.lingering for desk in desks):
            self._abandon()

    async def _work(self, connections: Connections, keeper: Keeper, desks: list[Desk]) -> None:
        await self._join(connections, desks)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(keeper.watch(), name="keeper")
            beat = group.create_task(self._heartbeat(connections, desks), name="heartbeat")
            rounds = [group.create_task(each) for desk in desks for each in desk.rounds()]
            workers = [group.create_task(desk.worker.run(), name=desk.queue.name) for desk in desks]
            self.ready = True
            self.joined.set()
            _log.info("worker ready", name=self.name, queues=[desk.queue.name for desk in desks])
            await self._stop.wait()
            self.ready = False
            await self._phase_1(connections, desks, rounds)
            if not await self._phase_2(desks, workers):
                # Their tasks would keep the process for ever: give their runs away, then leave without them.
                await self._phase_3(connections, desks)
                self._abandon()
            for task in (watch, beat):
                task.cancel()

    async def _join(self, connections: Connections, desks: list[Desk]) -> None:
        """Enter the groups; a Redis that is not there yet is waited for."""
        while not self._stop.is_set():
            try:
                if not await self._name_is_taken(connections):
                    for desk in desks:
                        await desk.claimer.join()
                        if self._ways.inherits is not None:
                            await desk.inherit(self._ways.inherits)
                    await self._announce(connections, desks)
                    return
            except DISCONNECTS as exc:
                _log.warning("waiting for Redis", error=str(exc) or type(exc).__name__)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), 1.0)

    async def _name_is_taken(self, connections: Connections) -> bool:
        """Whether another live process has our name: two would settle and return each other's runs."""
        other = await self._members.find(connections.redis, "worker", self.name)
        if other is None or not is_taken(other):
            return False
        _log.warning(
            "another worker has this name: waiting for it to go (WORKER_POD_NAME must be unique)",
            name=self.name,
            host=other.fields.get("host"),
            pid=other.fields.get("pid"),
        )
        return True

    async def _heartbeat(self, connections: Connections, desks: list[Desk]) -> None:
        while True:
            await asyncio.sleep(self._settings.worker.heartbeat_seconds)
            with contextlib.suppress(*TROUBLE):  # the next beat tries again; no lease needs it
                await self._announce(connections, desks)

    async def _announce(self, connections: Connections, desks: list[Desk]) -> None:
        fields = {
            "version": _VERSION,
            "host": platform.node(),
            "pid": str(os.getpid()),
            "since": f"{self._since:.3f}",
            "queues": ",".join(desk.queue.name for desk in desks),
            "agents": ",".join(sorted(self._app.agents)),
            "capacity": str(sum(desk.worker.permits.limit for desk in desks)),
            "load": str(sum(len(desk.worker.running) + desk.worker.lingering for desk in desks)),
            "state": "draining" if self._stop.is_set() else "working",
        }
        await self._members.announce(connections.redis, Member("worker", self.name, fields))

    # -- shutdown

    async def _phase_1(
        self, connections: Connections, desks: list[Desk], rounds: list[asyncio.Task[None]]
    ) -> None:
        with self._phase("1", "stop reading"):
            for desk in desks:
                desk.worker.quiet()
            for task in rounds:
                task.cancel()
            await asyncio.gather(*rounds, return_exceptions=True)
            with contextlib.suppress(*DISCONNECTS):  # only the others' picture of us is late
                await self._announce(connections, desks)

    async def _phase_2(self, desks: list[Desk], workers: list[asyncio.Task[None]]) -> bool:
        """Let runs finish, hand back the rest; False if some agent ignores even that."""
        with self._phase("2", "let runs finish"):
            if await self._finished(workers, self._settings.worker.drain_seconds):
                return True
            asked = sum(desk.worker.hand_back() for desk in desks)
            _log.info("handing back what did not finish", runs=asked)
            if await self._finished(workers, _STOP_MARGIN_SECONDS, hurried=True):
                return True
            _log.warning("agents ignore their stop: leaving without them", runs=self.running())
            return False

    async def _finished(
        self, workers: list[asyncio.Task[None]], seconds: float, *, hurried: bool = False
    ) -> bool:
        """Wait for the workers, saying how it goes; False when the time is over or a second signal came."""
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
                    _log.info(
                        "waiting for runs", running=len(self.running()), seconds_left=round(left - pause)
                    )
            return True
        finally:
            hurry.cancel()

    async def _phase_3(self, connections: Connections, desks: list[Desk]) -> None:
        with self._phase("3", "leave"):
            try:
                async with asyncio.timeout(_STOP_MARGIN_SECONDS):
                    for desk in desks:
                        await desk.leave()
                    await self._members.leave(connections.redis, "worker", self.name)
            except TROUBLE as exc:
                # What we could not return, another worker reclaims when our leases end.
                _log.warning("left without saying goodbye to Redis", error=str(exc) or type(exc).__name__)
            await quit_sidecar(self._settings.worker.envoy_quit_url)

    @contextlib.contextmanager
    def _phase(self, number: str, what: str) -> Generator[None]:
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self.metrics.shutdown_phase_seconds.labels(number).set(seconds)
        _log.info(f"shutdown phase {number} complete", what=what, seconds=round(seconds, 3))

    @property
    def _members(self) -> Members:
        return Members(
            prefix=self._settings.redis.key_prefix, heartbeat_seconds=self._settings.worker.heartbeat_seconds
        )

    def _executor(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(self._slots, thread_name_prefix=_THREADS)

    @property
    def _slots(self) -> int:
        return sum(queue.slots for queue in self._settings.worker_queues())


def run_worker(settings: Settings, app: App) -> int:
    """Run a worker until SIGTERM or SIGINT; return its exit code."""
    calm_collector()
    try:
        with asyncio.Runner(loop_factory=loop_factory(settings)) as runner:
            runner.run(_until_signal(settings, app))
    except BaseException as exc:
        # Also SystemExit from a task that an agent started: asyncio lets it end the process without a word.
        _log.critical("the worker dies; its runs go to others when their leases end", error=repr(exc))
        raise
    ignore_signals()
    return 0


async def _until_signal(settings: Settings, app: App) -> None:
    process = WorkerProcess(settings, app, abandon=leave_at_once)
    on_signals(process.request_stop)
    await process.run()


def _filing(
    connections: Connections, queue: RunQueue, metrics: Metrics, every_seconds: float
) -> tuple[Filing, ...]:
    if not every_seconds:
        return ()
    return (Filing(Archive(queue, connections.store, metrics), every_seconds=every_seconds),)


async def _look_at_store(connections: Connections) -> None:
    """Refuse to start on a database without our tables; one that is only away now is no reason."""
    if connections.settings.database.url:
        try:
            await connections.store.get()
        except StoreUnavailable as exc:
            _log.warning("the database is away: runs that need it wait or are tried again", error=str(exc))


def _threads_left() -> bool:
    return any(thread.name.startswith(_THREADS) for thread in threading.enumerate())
