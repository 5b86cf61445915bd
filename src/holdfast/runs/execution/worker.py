"""The worker of one partition: claims, performs and settles its runs, and does its upkeep.

Its lifecycle: ``join``; ``run`` until ``quiet``, which ends the claims; ``hand_back``, which stops the runs;
``leave``.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from holdfast.config.redis import PLATFORM
from holdfast.leases.streams import StreamLeases
from holdfast.redis.outages import redis_outages
from holdfast.redis.subscription import Subscription
from holdfast.runs import expiry, promoter
from holdfast.runs.archive import Archive, Filing
from holdfast.runs.cleanup import list_consumers
from holdfast.runs.execution.attempt import AttemptResources
from holdfast.runs.execution.claim import Claimer
from holdfast.runs.execution.claiming import ClaimLoop
from holdfast.runs.execution.emit import Emitter
from holdfast.runs.execution.executor import Executor
from holdfast.runs.execution.settle import Settler
from holdfast.runs.expiry import Expiry
from holdfast.runs.promoter import Promoter
from holdfast.runs.recovery import Recovery
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from holdfast.agents.app import App
    from holdfast.config import LeaseSettings
    from holdfast.leases.keeper import Keeper
    from holdfast.processes.attempts import Attempts
    from holdfast.redis.client import Redis
    from holdfast.runs.execution.attempt import Attempt
    from holdfast.runs.execution.slots import Slots
    from holdfast.runs.partition import Partition
    from holdfast.store.lazy import LazyStore
    from holdfast.telemetry.metrics import Metrics

_log = get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTuning:
    """How one worker process differs from others: its upkeep intervals, and whose runs it takes over."""

    recovery_seconds: float = 1.0
    promotion_seconds: float = promoter.LONGEST_SECONDS
    expiry_seconds: float = expiry.EVERY_SECONDS
    archive_seconds: float = 0.0
    """The interval at which it archives ended runs itself; 0 leaves that to a janitor."""
    inherits: Callable[[str], bool] | None = None
    """Whether the consumer of that name is dead: its runs are taken over before their leases end."""
    trusted_until: Callable[[], float] | None = None
    """Returns until when the lease on the process itself is trusted, if a host holds one."""
    registers_store: bool = True
    """Whether the store is opened and registered at the start; otherwise only when an agent uses it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResources:
    """The objects that the workers of all partitions in one process share."""

    app: App
    lease: LeaseSettings
    owner: str
    keeper: Keeper
    metrics: Metrics
    store: LazyStore
    open_reader: Callable[[float], Redis]
    """Opens a connection for one reader that blocks for up to that many seconds."""
    threads: concurrent.futures.Executor
    """Runs agents that are not coroutines."""
    processes: Attempts | None = None
    """Runs agents with isolation="process"."""
    name_confirmed: Callable[[], Awaitable[None]] | None = None
    """Returns when it is certain that no other process has the owner's name."""
    tuning: WorkerTuning = dataclasses.field(default_factory=WorkerTuning)


class PartitionWorker:
    """Serves one partition; it shares the slots of its queue with the queue's other partitions."""

    def __init__(self, resources: WorkerResources, partition: Partition, slots: Slots) -> None:
        settings, metrics, owner = partition.settings, resources.metrics, resources.owner
        self.partition = partition
        self.slots = slots
        self._metrics = metrics
        self._draining = asyncio.Event()
        self.leases = _leases_of(resources, partition)
        self.settler = Settler(partition, self.leases, owner, metrics)
        self.claimer = _claimer_of(resources, partition)
        attempts = AttemptResources(
            app=resources.app,
            settings=settings,
            owner=owner,
            keeper=resources.keeper,
            leases=self.leases,
            emitter=Emitter(partition, owner, metrics),
            settler=self.settler,
            metrics=metrics,
            log=_log.bind(queue=settings.name, platform=PLATFORM),
            draining=self._draining,
            threads=resources.threads,
            processes=resources.processes,
            store=resources.store,
            answer=partition.answer,
            trusted_until=resources.tuning.trusted_until,
        )
        self.executor = Executor(attempts, slots.permits)
        self.claim_loop = ClaimLoop(
            self.claimer,
            self.executor,
            self.settler,
            slots,
            settings,
            metrics=metrics,
            log=attempts.log,
            name_confirmed=resources.name_confirmed,
        )
        self._upkeep = _upkeep_of(self, resources)
        metrics.expect(settings.name)
        slots.share_with(self)

    async def join(self, inherits: Callable[[str], bool] | None) -> None:
        """Join the consumer group, and take over the runs of dead consumers at once."""
        await self.claimer.join()
        if inherits is not None:
            await self._inherit(inherits)

    async def run(self) -> None:
        """Claim and perform until quiet; return when the last run has ended and is settled."""
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(self.settler.run(), name="settler")
            async with asyncio.TaskGroup() as attempts:
                await self.claim_loop.run(attempts)
            await self.settler.flushed()
            settling.cancel()

    def upkeep(self) -> list[Coroutine[None, None, None]]:
        """Return the loops that run beside the runs until the worker is quiet."""
        return [run() for run in self._upkeep]

    def quiet(self) -> None:
        """Claim nothing more, and set the flag by which agents may end early."""
        self._draining.set()
        self.claim_loop.quiet()

    def hand_back(self) -> int:
        """Stop every run, so that other workers start it; return how many were stopped."""
        return self.executor.hand_back()

    async def leave(self) -> None:
        """Return unsettled entries of this worker to the queue, then remove its consumer from the group."""
        evicted = await self.leases.leave(self.partition.redis)
        self._count(evicted.events)
        if evicted.entries:
            _log.info("unsettled entries returned", queue=self.partition.name, entries=evicted.entries)

    # -- for its slots and its process

    @property
    def running(self) -> list[Attempt]:
        """The attempts whose agents are called now."""
        return self.executor.running

    @property
    def lingering(self) -> int:
        """How many agents continue after their runs have ended."""
        return self.executor.lingering

    def release_unanswered(self, silent_seconds: float) -> int:
        """Release the slots of claims and settlements without a reply after ``silent_seconds``."""
        claiming = self.claim_loop.release_unanswered(silent_seconds)
        return claiming + self.executor.release_unanswered(silent_seconds)

    # -- helpers

    async def _inherit(self, is_dead: Callable[[str], bool]) -> None:
        for consumer in await list_consumers(self.partition):
            if is_dead(consumer.name):
                evicted = await self.leases.evict(self.partition.redis, consumer.name, min_idle_ms=0)
                self._count(evicted.events)
                _log.info("runs taken over", consumer=consumer.name, entries=evicted.entries)

    def _count(self, events: int) -> None:
        self._metrics.events_appended.labels(self.partition.name).inc(events)


def _recovery_seconds(resources: WorkerResources) -> float:
    return min(resources.lease.ttl_seconds / 10, resources.tuning.recovery_seconds)


def _leases_of(resources: WorkerResources, partition: Partition) -> StreamLeases:
    return StreamLeases(
        partition.keys,
        group=partition.settings.group,
        owner=resources.owner,
        ttl_ms=int(resources.lease.ttl_seconds * 1000),
        turn_ms=int(_recovery_seconds(resources) * 900),
    )


def _claimer_of(resources: WorkerResources, partition: Partition) -> Claimer:
    agents, settings = resources.app.agents, partition.settings
    return Claimer(
        partition,
        resources.owner,
        resources.open_reader(settings.block_ms / 1000),
        {name: spec.concurrency for name, spec in agents.items() if spec.concurrency},
        default_agent=settings.default_among(agents),
    )


def _upkeep_of(
    worker: PartitionWorker, resources: WorkerResources
) -> Sequence[Callable[[], Coroutine[None, None, None]]]:
    partition, metrics, tuning = worker.partition, resources.metrics, resources.tuning
    upkeep = [
        Recovery(partition, worker.leases, metrics, every_seconds=_recovery_seconds(resources)).run,
        Promoter(partition, metrics, longest_seconds=tuning.promotion_seconds).run,
        Expiry(partition, metrics, every_seconds=tuning.expiry_seconds).run,
        _control_channel(worker, resources).run,
    ]
    if tuning.archive_seconds:
        archive = Archive(partition, resources.store, metrics)
        upkeep.append(Filing(archive, every_seconds=tuning.archive_seconds).run)
    return upkeep


def _control_channel(worker: PartitionWorker, resources: WorkerResources) -> Subscription:
    """Return the subscription to requests to cancel a run, and to changes of the gate.

    A lost message only delays: the next lease renewal returns the cancellation, the next claim the gate.
    """

    def dispatch(text: str) -> None:
        request, _, arguments = text.partition(" ")
        if request == "cancel":
            run_id, _, reason = arguments.partition(" ")
            worker.executor.cancel(run_id, reason)
        elif request == "gate":
            worker.claim_loop.gate_changed()

    outages = redis_outages("requests to cancel and to pause", "lease renewals and claims bring them")
    reader = resources.open_reader(0)
    return Subscription(worker.partition.keys.control, reader, outages, on_message=dispatch)
