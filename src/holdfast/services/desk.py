"""A worker's desks: each is one partition of one queue, with everything that works on it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING

from holdfast.leases.streams import StreamLeases
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.runs import expiry, promoter
from holdfast.runs.archive import Archive, Filing
from holdfast.runs.cleanup import list_consumers
from holdfast.runs.execution.attempt import Workplace
from holdfast.runs.execution.claim import Claimer
from holdfast.runs.execution.control import Control
from holdfast.runs.execution.emit import Emitter
from holdfast.runs.execution.settle import Settler
from holdfast.runs.execution.slots import Slots
from holdfast.runs.execution.worker import Worker
from holdfast.runs.expiry import Expiry
from holdfast.runs.promoter import Promoter
from holdfast.runs.queue import COUNT_SECONDS
from holdfast.runs.recovery import Recovery
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from holdfast.agents.app import App
    from holdfast.leases.keeper import Keeper
    from holdfast.processes.attempts import Attempts
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue
    from holdfast.services.connections import Connections
    from holdfast.telemetry.metrics import Metrics

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
    trusted_until: Callable[[], float] | None = None
    """Until when the lease of the process itself is trusted, if somebody else holds one on it."""
    registers_store: bool = True
    """Whether it opens and registers its store at the start; otherwise only if an agent uses it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What all desks of a worker process share."""

    connections: Connections
    app: App
    keeper: Keeper
    metrics: Metrics
    owner: str
    executor: concurrent.futures.Executor
    attempts: Attempts | None
    ways: Ways
    entitled: Callable[[], Awaitable[None]] | None = None
    """Waits until it is certain that the owner's name is its own."""


class Desk:
    """One partition in a worker process, with everything that works on it."""

    def __init__(self, place: Place, queue: Partition, slots: Slots) -> None:
        connections, app, metrics, owner = place.connections, place.app, place.metrics, place.owner
        ways = place.ways
        ttl, queue_settings = connections.settings.lease.ttl_seconds, queue.settings
        every = min(ttl / 10, ways.recovery_seconds)
        self.queue = queue
        self.slots = slots
        self._events_appended = metrics.events_appended.labels(queue.name)
        self.leases = StreamLeases(
            queue.keys,
            group=queue_settings.group,
            owner=owner,
            ttl_ms=int(ttl * 1000),
            turn_ms=int(every * 900),
        )
        limits = {name: spec.concurrency for name, spec in app.agents.items() if spec.concurrency}
        reader = connections.blocking(queue_settings.block_ms / 1000)
        default_agent = queue_settings.default_among(app.agents)
        self.claimer = Claimer(queue, owner, reader, limits, default_agent=default_agent)
        self.worker = Worker(
            Workplace(
                *(app, queue_settings, place.executor, asyncio.Event(), owner),
                *(connections.store, queue.answer),
                attempts=place.attempts,
                trusted_until=ways.trusted_until,
            ),
            claimer=self.claimer,
            settler=Settler(queue, self.leases, owner, metrics),
            emitter=Emitter(queue, owner, metrics),
            leases=self.leases,
            keeper=place.keeper,
            metrics=metrics,
            owner=owner,
            slots=slots,
            entitled=place.entitled,
        )
        self._rounds = (
            Recovery(queue, self.leases, metrics, every_seconds=every),
            Promoter(queue, metrics, longest_seconds=ways.promotion_seconds),
            Expiry(queue, metrics, every_seconds=ways.expiry_seconds),
            Control(queue.keys.control, self.worker, connections.blocking(0)),
            *_filing(connections, queue, metrics, ways.archive_seconds),
        )

    async def join(self, inherits: Callable[[str], bool] | None) -> None:
        """Enter the group, and take over at once from those whose runs are ours."""
        await self.claimer.join()
        if inherits is not None:
            await self._inherit(inherits)

    def rounds(self) -> list[Coroutine[None, None, None]]:
        """What goes on beside the runs until phase 1."""
        return [each.run() for each in self._rounds]

    async def _inherit(self, dead: Callable[[str], bool]) -> None:
        """Queue again, now, what consumers hold of which we know that they are dead."""
        for consumer in await list_consumers(self.queue):
            if dead(consumer.name):
                evicted = await self.leases.evict(self.queue.redis, consumer.name, min_idle_ms=0)
                self._events_appended.inc(evicted.events)
                _log.info("took over from", consumer=consumer.name, entries=evicted.entries)

    async def leave(self) -> None:
        """Return what was delivered to us and never settled, then remove our consumer."""
        evicted = await self.leases.leave(self.queue.redis)
        self._events_appended.inc(evicted.events)
        if evicted.entries:
            _log.info("entries returned on leaving", queue=self.queue.name, entries=evicted.entries)


class Floor:
    """All desks of a worker process: one for every partition of its queues, which share the queue's slots."""

    def __init__(self, place: Place, queues: Iterable[RunQueue]) -> None:
        self._place = place
        self._queues = list(queues)
        self._slots = {queue.name: Slots(queue.settings, place.metrics) for queue in self._queues}
        self.desks = [self._seat(partition) for queue in self._queues for partition in queue.partitions]

    @property
    def names(self) -> list[str]:
        """The queues that are served."""
        return [queue.name for queue in self._queues]

    @property
    def slots(self) -> int:
        """How many runs the process does at once."""
        return sum(slots.permits.limit for slots in self._slots.values())

    async def join(self) -> None:
        """Enter the groups; a partition whose server is away is entered when that is back."""
        joined = await asyncio.gather(
            *(desk.join(self._place.ways.inherits) for desk in self.desks), return_exceptions=True
        )
        failed = [exc for exc in joined if isinstance(exc, BaseException)]
        for exc in failed:
            if not isinstance(exc, DISCONNECTS) or len(failed) == len(joined):
                raise exc

    async def grow(self, staff: Callable[[Desk], None]) -> None:
        """Again and again, set up and ``staff`` a desk for each partition that only others count on."""
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                if not queue.settings.private:
                    group.create_task(self._grow(queue, staff))

    async def _grow(self, queue: RunQueue, staff: Callable[[Desk], None]) -> None:
        while True:
            with contextlib.suppress(*TROUBLE):  # it is asked again soon
                seated = sum(desk.queue.name == queue.name for desk in self.desks)
                # guard: worker-finds-partitions
                for partition in await queue.look_around(seated, say=True):
                    _log.info("serves one more partition", queue=queue.name, stream=partition.keys.stream)
                    desk = self._seat(partition)
                    self.desks.append(desk)
                    staff(desk)
            await asyncio.sleep(COUNT_SECONDS)

    async def leave(self) -> None:
        """Leave every group; one that can't be left must not keep us from the others."""
        left = await asyncio.gather(*(desk.leave() for desk in self.desks), return_exceptions=True)
        for exc in left:
            if isinstance(exc, BaseException):
                raise exc

    def _seat(self, partition: Partition) -> Desk:
        return Desk(self._place, partition, self._slots[partition.name])  # guard: slots-shared


def _filing(
    connections: Connections, queue: Partition, metrics: Metrics, every_seconds: float
) -> tuple[Filing, ...]:
    if not every_seconds:
        return ()
    return (Filing(Archive(queue, connections.store, metrics), every_seconds=every_seconds),)
