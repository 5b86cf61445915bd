"""The janitor keeps every queue clean; in all processes together, one pass at a time goes on for a queue.

It is a part that other processes may run too; :func:`run_janitor` is the process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.leases.keeper import Keeper
from holdfast.leases.leader import Leadership
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.members import Members
from holdfast.runs.archive import Archive, Filed
from holdfast.runs.cleanup import Cleaned, Cleanup
from holdfast.runs.retention import Retention, Swept
from holdfast.services.connections import Connections
from holdfast.services.presence import Presence
from holdfast.services.signals import ignore_signals, on_signals
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from holdfast.config import Settings
    from holdfast.leases.lease import Lease
    from holdfast.runs.queue import RunQueue

    Duty = Callable[..., Awaitable[Cleaned | Swept | Filed]]

_GAUGES_SECONDS = 5.0
_RETRY_SECONDS = 30.0
"""A pass that failed or stopped at its limit is followed by the next one this soon, not an interval later."""
_GOODBYE_SECONDS = 2.0
_STORE_SECONDS = 600.0
_STORE_PAGE = 10_000
_LONGEST_WAIT_SECONDS = 365 * 86400.0

_log = get_logger(__name__)
T = TypeVar("T")


class Upkeep(msgspec.Struct, frozen=True):
    """What was done for one queue; None where another janitor was at it."""

    queue: str
    cleaned: Cleaned | None
    swept: Swept | None


class Office:
    """The right to do a queue's duties: one janitor has it at a time, while its lease is kept."""

    def __init__(self, queue: RunQueue, *, owner: str, ttl_seconds: float) -> None:
        self._leadership = Leadership(queue.keys.cleanup, owner=owner, ttl_ms=int(ttl_seconds * 1000))
        self._redis = queue.redis
        self._longest_seconds = ttl_seconds
        # Two duties of our own wait for each other; only another's pass is a reason to skip one.
        self._turn = asyncio.Lock()

    async def perform(self, keeper: Keeper, duty: Callable[[], Awaitable[T]]) -> T | None:
        """Do ``duty``, or return None because another janitor holds the office."""
        async with self._turn:
            asked = asyncio.get_running_loop().time()
            lease = await self._campaign()
            if lease is None:
                return None
            hold = keeper.hold(self._leadership, lease, granted_at=asked)
            try:
                # The keeper would keep a hung pass in office for ever: it has a time of its own.
                async with hold, asyncio.timeout(self._longest_seconds):
                    return await duty()
            finally:
                hold.drop()
                await self._resign(lease)

    async def _campaign(self) -> Lease | None:
        """Ask for the office; told to stop before the answer, wait for it: nobody else could resign."""
        asking = asyncio.create_task(self._leadership.campaign(self._redis))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait([asking], timeout=_GOODBYE_SECONDS)
            if done and asking.exception() is None and (lease := asking.result()) is not None:
                await self._resign(lease)
            asking.cancel()
            raise

    async def _resign(self, lease: Lease) -> None:
        with contextlib.suppress(*DISCONNECTS, TimeoutError):  # else the lease ends by itself
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._leadership.release(self._redis, [lease])


class Ward:
    """One queue in the janitor's care: its duties, and the office under which they are done."""

    def __init__(
        self, connections: Connections, queue_name: str, metrics: Metrics, members: Members, owner: str
    ) -> None:
        settings = connections.settings
        ttl = settings.lease.ttl_seconds
        self.queue: RunQueue = connections.queue(settings.queue_named(queue_name))
        self.office = Office(self.queue, owner=owner, ttl_seconds=settings.janitor.lock_ttl_seconds)
        self.cleanup = Cleanup(self.queue, members, settings.janitor, metrics, ttl_seconds=ttl)
        self.retention = Retention(self.queue, metrics, ttl_seconds=ttl)
        self.archive = Archive(self.queue, connections.store, metrics)


class Janitor:
    """Runs the passes and refreshes the gauges of all configured queues until it is stopped or cancelled."""

    def __init__(self, connections: Connections, metrics: Metrics, *, name: str = "") -> None:
        settings = connections.settings
        self.name = name or f"janitor-{uuid.uuid4()}"
        self._connections = connections
        self._settings = settings
        self._metrics = metrics
        self._members = Members(
            prefix=settings.redis.key_prefix, heartbeat_seconds=settings.worker.heartbeat_seconds
        )
        self._wards = [
            Ward(connections, queue, metrics, self._members, self.name) for queue in settings.queue_names()
        ]
        self._stop = asyncio.Event()
        self._presence = Presence(
            self._members,
            connections.redis,
            metrics,
            kind="janitor",
            name=self.name,
            queues=settings.queue_names(),
        )

    def request_stop(self) -> None:
        """Stop soon: a pass that goes on is left where it is, which harms nothing."""
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped."""
        async with self._keeper() as keeper:
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(each) for each in self._rounds(keeper)]
                    _log.info(
                        "janitor ready", name=self.name, queues=[ward.queue.name for ward in self._wards]
                    )
                    await self._stop.wait()
                    for task in tasks:
                        task.cancel()
            finally:
                await self._presence.leave()

    async def run_once(self, *, dry_run: bool = False) -> list[Upkeep]:
        """Do every duty once, now; a dry run only looks, so it needs no lease."""
        async with self._keeper() as keeper:
            return [await self._once(ward, keeper, dry_run=dry_run) for ward in self._wards]

    async def _once(self, ward: Ward, keeper: Keeper, *, dry_run: bool) -> Upkeep:
        async def all_duties() -> Upkeep:
            cleaned = await ward.cleanup.run_once(dry_run=dry_run)
            return Upkeep(ward.queue.name, cleaned, await ward.retention.run_once(dry_run=dry_run))

        if dry_run:
            return await all_duties()
        done = await ward.office.perform(keeper, all_duties)
        return done or Upkeep(ward.queue.name, None, None)

    def _keeper(self) -> Keeper:
        """A keeper whose trust window fits the janitor's lease, which may be shorter than that of a run."""
        settings = self._settings
        lease = msgspec.structs.replace(settings.lease, ttl_seconds=settings.janitor.lock_ttl_seconds)
        return Keeper(lease, self._connections.for_keeper, self._metrics)

    # -- rounds

    def _rounds(self, keeper: Keeper) -> Sequence[Coroutine[None, None, None]]:
        janitor = self._settings.janitor
        rounds = [keeper.watch(), self._presence.beat(), self._gauges()]
        for ward in self._wards if janitor.enabled else ():
            clean, sweep, file = ward.cleanup.run_once, ward.retention.run_once, ward.archive.run_once
            rounds += (
                self._again(ward, keeper, "consumer cleanup", clean, janitor.consumer_interval_seconds),
                self._again(ward, keeper, "stream cleanup", sweep, janitor.stream_interval_minutes * 60),
                self._again(ward, keeper, "archive", file, janitor.archive_interval_seconds),
            )
        if janitor.enabled and not janitor.dry_run:
            rounds.append(self._keep_store())
        return rounds

    async def _again(self, ward: Ward, keeper: Keeper, what: str, duty: Duty, every: float) -> None:
        while True:
            settled = await self._pass(ward, keeper, what, duty)
            await asyncio.sleep(every if settled else min(every, _RETRY_SECONDS))

    async def _pass(self, ward: Ward, keeper: Keeper, what: str, duty: Duty) -> bool:
        """One pass of one duty; False if there is a reason to come back soon."""
        try:
            if self._settings.janitor.dry_run:
                done = await duty(dry_run=True)
            else:
                done = await ward.office.perform(keeper, duty)
        except Exception as exc:
            self._metrics.cleanup_errors.labels(ward.queue.name).inc()
            _log.error(f"{what} failed", queue=ward.queue.name, error=str(exc) or type(exc).__name__)
            return False
        return not isinstance(done, Swept | Filed) or (done.whole and not getattr(done, "young", 0))

    async def _keep_store(self) -> None:
        """Remove from the store what is too old; any number of janitors may do it."""
        while True:
            await asyncio.sleep(self._settings.janitor.archive_interval_seconds)
            try:
                await self._prune()
            except StoreUnavailable as exc:
                _log.error("the store can't be swept", error=str(exc))
            await asyncio.sleep(_STORE_SECONDS)

    async def _prune(self) -> None:
        store, age = await self._connections.store.get(), self._settings.database.archive_days * 86400
        before = time.time() - age
        # A run that waits for an answer is in no archive yet, and may wait for long.
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

    async def _gauges(self) -> None:
        while True:
            for ward in self._wards:
                with self._presence.patiently():
                    await self._measure(ward.queue)
            await asyncio.sleep(_GAUGES_SECONDS)

    async def _measure(self, queue: RunQueue) -> None:
        depth, metrics = await queue.depth(), self._metrics
        metrics.queue_depth.labels(queue.name).set(depth.depth)
        metrics.queue_undelivered.labels(queue.name).set(depth.undelivered)
        metrics.queue_pending.labels(queue.name).set(depth.pending)
        metrics.queue_delayed.labels(queue.name).set(depth.delayed)
        metrics.queue_dead.labels(queue.name).set(depth.dead)
        metrics.queue_oldest_seconds.labels(queue.name).set(depth.oldest_seconds)


def run_janitor(settings: Settings) -> int:
    """Run a janitor until SIGTERM or SIGINT; return its exit code."""
    asyncio.run(_until_signal(settings))
    ignore_signals()
    return 0


async def _until_signal(settings: Settings) -> None:
    metrics = Metrics()
    async with Connections(settings) as connections:
        janitor = Janitor(connections, metrics)
        on_signals(janitor.request_stop)
        with Exporter(metrics, settings.metrics, ready=lambda: True):
            await janitor.run()
