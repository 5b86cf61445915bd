"""The janitor cleans up every queue; among all processes, one pass at a time runs for a queue.

Other processes may run it too; :func:`run_janitor` runs it as a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.leases.keeper import Keeper
from holdfast.leases.leadership import Leadership, LeaderTask
from holdfast.redis.members import Members
from holdfast.redis.outages import redis_outages
from holdfast.runs.archive import Archive, Filed
from holdfast.runs.cleanup import Cleaned, Cleanup
from holdfast.runs.queue import COUNT_SECONDS
from holdfast.runs.retention import Retention, RetentionPass
from holdfast.scaling.depth import need_of
from holdfast.services.connections import Connections
from holdfast.services.heartbeat import Heartbeat
from holdfast.services.pod_watch import open_pods
from holdfast.services.process import run_process
from holdfast.services.rounds import Tolerance, repeat
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import StoreRegistration
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from holdfast.config import Settings
    from holdfast.outages import OutageReporter
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue
    from holdfast.services.pod_watch import PodWatcher

_GAUGES_SECONDS = 10.0
_RETRY_SECONDS = 30.0
"""A pass that failed or stopped at its limit is followed by the next one this soon, not an interval later."""
_STORE_SECONDS = 600.0
_STORE_PAGE = 10_000
_LONGEST_WAIT_SECONDS = 365 * 86400.0

_log = get_logger(__name__)


class QueueUpkeep(msgspec.Struct, frozen=True):
    """The results for one queue; None while another janitor has its lease."""

    queue: str
    cleaned: Cleaned | None
    swept: RetentionPass | None


class PartitionUpkeep:
    """The upkeep of one partition: its duties, and the leadership under which they run."""

    def __init__(
        self,
        connections: Connections,
        queue: Partition,
        metrics: Metrics,
        members: Members,
        owner: str,
        pods: PodWatcher | None,
    ) -> None:
        settings = connections.settings
        ttl = settings.lease.ttl_seconds
        self.queue = queue
        lock_ms = int(settings.janitor.lock_ttl_seconds * 1000)
        leadership = Leadership(self.queue.keys.cleanup, owner=owner, ttl_ms=lock_ms)
        self.leader_task = LeaderTask(self.queue.redis, leadership)
        self.cleanup = Cleanup(
            self.queue,
            members,
            settings.janitor,
            metrics,
            ttl_seconds=ttl,
            pods=pods.proofs if pods else None,
        )
        self.retention = Retention(self.queue, metrics, ttl_seconds=ttl)
        self.archive = Archive(self.queue, connections.store, metrics)
        metrics.expect(queue.name)


@dataclasses.dataclass(frozen=True, slots=True)
class Duty:
    """A repeated task for one partition."""

    partition: PartitionUpkeep
    what: str
    perform: Callable[..., Awaitable[Cleaned | RetentionPass | Filed]]
    every_seconds: float
    is_needed: Callable[[], Awaitable[bool]] | None = None
    """Whether there is anything to do; a pass that is not needed takes no lease."""
    outages: OutageReporter = dataclasses.field(
        default_factory=partial(redis_outages, "cleanup and archiving", "each pass is tried again")
    )


class Janitor:
    """Runs the passes and refreshes the gauges of all configured queues until it is stopped or cancelled."""

    def __init__(self, connections: Connections, metrics: Metrics, *, name: str = "") -> None:
        settings = connections.settings
        self.name = name or f"janitor-{uuid.uuid4()}"
        self._connections = connections
        self._settings = settings
        self._metrics = metrics
        self._members = Members.of(settings)
        self._pods = open_pods(connections, self._members, metrics, self.name)
        self._queues = [connections.queue(settings.queue_named(queue)) for queue in settings.queue_names()]
        self._partitions = [
            self._partition_upkeep(partition) for queue in self._queues for partition in queue.partitions
        ]
        self._stop = asyncio.Event()
        self._heartbeat = Heartbeat(
            self._members,
            connections.redis,
            metrics,
            kind="janitor",
            name=self.name,
            queues=settings.queue_names(),
        )

    def request_stop(self) -> None:
        """Stop soon: a running pass is cancelled, which is safe."""
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped."""
        async with self._keeper() as keeper:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(each) for each in self._rounds(keeper)]

                    def take_over(partitions: Sequence[PartitionUpkeep]) -> None:
                        duties = [
                            duty for partition in partitions for duty in self._duties(partition, keeper)
                        ]
                        tasks.extend(group.create_task(duty) for duty in duties)

                    take_over(self._partitions)
                    searches = [self._search_partitions(queue, take_over) for queue in self._queues]
                    tasks.extend(group.create_task(search) for search in searches)
                    _log.info("janitor ready", name=self.name, queues=[queue.name for queue in self._queues])
                    await self._stop.wait()
                    for task in tasks:
                        task.cancel()
            finally:
                await self._heartbeat.leave()
                await self._close()

    async def run_once(self, *, dry_run: bool = False) -> list[QueueUpkeep]:
        """Run every duty once, now; a dry run only reads, so it needs no lease."""
        try:
            for queue in self._queues:
                await self._add_partitions(queue)
            async with self._keeper() as keeper:
                return [
                    await self._once(partition, keeper, dry_run=dry_run) for partition in self._partitions
                ]
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._pods is not None:
            await self._pods.close()

    async def _once(self, partition: PartitionUpkeep, keeper: Keeper, *, dry_run: bool) -> QueueUpkeep:
        async def all_duties() -> QueueUpkeep:
            cleaned = await partition.cleanup.run_once(dry_run=dry_run)
            return QueueUpkeep(
                partition.queue.name, cleaned, await partition.retention.run_once(dry_run=dry_run)
            )

        if dry_run:
            return await all_duties()
        done = await partition.leader_task.perform(keeper, all_duties)
        return done or QueueUpkeep(partition.queue.name, None, None)

    def _keeper(self) -> Keeper:
        """Return a keeper that renews often enough for both leaderships: cleanup, and the watch of pods."""
        settings = self._settings
        shorter = min(settings.janitor.lock_ttl_seconds, settings.lease.ttl_seconds)
        lease = msgspec.structs.replace(settings.lease, ttl_seconds=shorter)
        return Keeper(lease, self._connections.for_keeper, self._metrics)

    # -- background tasks

    def _rounds(self, keeper: Keeper) -> Sequence[Coroutine[None, None, None]]:
        janitor = self._settings.janitor
        rounds = [keeper.watch(), self._heartbeat.beat(), self._gauge_workers()]
        # One task per queue: a damaged queue or a hung server must not hide the others.
        rounds += [self._gauges(queue) for queue in self._queues]
        if janitor.enabled and not janitor.dry_run:
            rounds.append(self._keep_store())
        if janitor.enabled and self._pods is not None:
            rounds.append(self._pods.run(keeper))
        return rounds

    def _duties(self, partition: PartitionUpkeep, keeper: Keeper) -> Sequence[Coroutine[None, None, None]]:
        janitor = self._settings.janitor
        if not janitor.enabled:
            return ()
        clean, sweep, file = (
            partition.cleanup.run_once,
            partition.retention.run_once,
            partition.archive.run_once,
        )
        return (
            self._clean(
                Duty(partition, "consumer cleanup", clean, janitor.consumer_interval_seconds), keeper
            ),
            self._again(
                Duty(partition, "stream cleanup", sweep, janitor.stream_interval_minutes * 60), keeper
            ),
            self._again(
                Duty(
                    partition,
                    "archive",
                    file,
                    janitor.archive_interval_seconds,
                    is_needed=partition.archive.needed,
                ),
                keeper,
            ),
        )

    def _partition_upkeep(self, partition: Partition) -> PartitionUpkeep:
        return PartitionUpkeep(
            self._connections, partition, self._metrics, self._members, self.name, self._pods
        )

    async def _search_partitions(
        self, queue: RunQueue, take_over: Callable[[Sequence[PartitionUpkeep]], None]
    ) -> None:
        """Add partitions that other processes use; remove empty ones that no process uses."""
        janitor = self._settings.janitor

        async def search() -> None:
            take_over(await self._add_partitions(queue))
            if janitor.enabled and not janitor.dry_run:
                await queue.forget_partitions()

        tolerance = Tolerance(self._metrics, "search for partitions")
        await repeat(search, tolerance, every_seconds=COUNT_SECONDS)

    async def _add_partitions(self, queue: RunQueue) -> Sequence[PartitionUpkeep]:
        known = sum(partition.queue.name == queue.name for partition in self._partitions)
        new = [self._partition_upkeep(partition) for partition in await queue.look_around(known)]
        self._partitions += new
        return new

    async def _clean(self, duty: Duty, keeper: Keeper) -> None:
        """Remove dead consumers periodically, and soon after a pod has gone."""
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep
        if self._pods is not None:
            rest = partial(self._pods.rest, self._pods.nudge())
        while True:
            await rest(await self._pass(duty, keeper))

    async def _again(self, duty: Duty, keeper: Keeper) -> None:
        while True:
            rest_seconds = await self._pass(duty, keeper)
            await asyncio.sleep(rest_seconds)

    async def _pass(self, duty: Duty, keeper: Keeper) -> float:
        """Run one pass of a duty; return the seconds until the next one."""
        every = duty.every_seconds
        return every if await self._run_pass(duty, keeper) else min(every, _RETRY_SECONDS)

    async def _run_pass(self, duty: Duty, keeper: Keeper) -> bool:
        """Run one pass of a duty; return False if the next one should come soon."""
        queue = duty.partition.queue.name
        try:
            if self._settings.janitor.dry_run:
                done = await duty.perform(dry_run=True)
            elif duty.is_needed is not None and not await duty.is_needed():
                done = None  # an idle queue costs one command, not the eight of a pass
            else:
                done = await duty.partition.leader_task.perform(keeper, duty.perform)
        except Exception as exc:
            self._metrics.cleanup_errors.labels(queue).inc()
            # The store reports its own outages.
            if not duty.outages.failed(exc) and not isinstance(exc, StoreUnavailable):
                _log.error(f"{duty.what} failed", queue=queue, error=str(exc) or type(exc).__name__)
            return False
        duty.outages.answered()
        if isinstance(done, Cleaned):
            return not done.leaving
        return not isinstance(done, RetentionPass | Filed) or (done.whole and not getattr(done, "young", 0))

    async def _keep_store(self) -> None:
        """Remove old rows from the store; any number of janitors may do it."""
        while True:
            await asyncio.sleep(self._settings.janitor.archive_interval_seconds)
            with contextlib.suppress(StoreUnavailable):  # the store reports it
                await self._prune()
            await asyncio.sleep(_STORE_SECONDS)

    async def _prune(self) -> None:
        store, age = await self._connections.store.get(), self._settings.database.archive_days * 86400
        before = time.time() - age
        # An interrupted run is not archived yet, and may wait for long.
        long_before = before - max(age, _LONGEST_WAIT_SECONDS)
        whole = False
        while not whole:
            pruned = await store.prune(
                archived_before=before,
                steps_before=long_before,
                threads_before=long_before,
                limit=_STORE_PAGE,
            )
            whole = pruned.whole
            _log.info("store swept", **msgspec.structs.asdict(pruned))
        for table, rows in (await store.sizes()).items():
            self._metrics.store_rows.labels(table).set(rows)
        self._metrics.store_bytes.set(await store.stored_bytes())

    async def _gauges(self, queue: RunQueue) -> None:
        tolerance = Tolerance(self._metrics, "gauges of queues")
        await repeat(partial(self._measure, queue), tolerance, every_seconds=_GAUGES_SECONDS)

    async def _gauge_workers(self) -> None:
        tolerance = Tolerance(self._metrics, "gauges of workers")
        await repeat(self._count_workers, tolerance, every_seconds=_GAUGES_SECONDS)

    async def _count_workers(self) -> None:
        serving = await self._members.serving(self._connections.redis)
        for queue in self._queues:
            self._metrics.queue_workers.labels(queue.name).set(serving[queue.name])

    async def _measure(self, queue: RunQueue) -> None:
        depth, activity, metrics = await queue.depth(), await queue.activity(), self._metrics
        need = need_of(queue.settings, depth)
        metrics.scaling_demand.labels(queue.name).set(need.depth)
        if queue.settings.scaling.enabled:  # else the replicas are set elsewhere, and no number is wrong
            metrics.scaling_wanted.labels(queue.name).set(need.wanted)
        metrics.queue_depth.labels(queue.name).set(depth.depth)
        metrics.queue_undelivered.labels(queue.name).set(depth.undelivered)
        metrics.queue_pending.labels(queue.name).set(depth.pending)
        metrics.queue_delayed.labels(queue.name).set(depth.delayed)
        metrics.queue_dead.labels(queue.name).set(depth.dead)
        metrics.queue_oldest_seconds.labels(queue.name).set(depth.oldest_seconds)
        metrics.queue_paused.labels(queue.name).set(depth.paused)
        metrics.queue_consumers.labels(queue.name).set(depth.consumers)
        metrics.queue_consumer_idle_seconds.labels(queue.name).set(activity.consumer_idle_seconds)
        metrics.queue_length.labels(queue.name).set(activity.length)
        metrics.queue_longest_running_seconds.labels(queue.name).set(activity.longest_running_seconds)
        metrics.queue_max_pending.labels(queue.name).set(queue.settings.max_pending)


def run_janitor(settings: Settings) -> int:
    """Run a janitor until SIGTERM or SIGINT; return its exit code."""
    return run_process(lambda: _until_signal(settings))


async def _until_signal(settings: Settings) -> None:
    metrics = Metrics()
    async with Connections(settings) as connections:
        janitor = Janitor(connections, metrics)
        on_signals(janitor.request_stop)
        registration = StoreRegistration(connections, "janitor", janitor.name)
        await registration.check()
        with Exporter(metrics, settings.metrics, ready=lambda: True):
            async with asyncio.TaskGroup() as group:
                keep = group.create_task(registration.keep(), name="store registration")
                await janitor.run()
                keep.cancel()
