"""The workers of a process: one for every partition of its queues; those of a queue share its slots."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.runs.execution.slots import Slots
from holdfast.runs.execution.worker import PartitionWorker
from holdfast.runs.queue import COUNT_SECONDS
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.runs.execution.attempt import Attempt
    from holdfast.runs.execution.worker import WorkerResources
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue

_log = get_logger(__name__)


class WorkerPool:
    """One worker for every partition of the queues, including partitions that other processes add."""

    def __init__(self, resources: WorkerResources, queues: Iterable[RunQueue]) -> None:
        self._resources = resources
        self._queues = list(queues)
        self._slots = {queue.name: Slots(queue.settings, resources.metrics) for queue in self._queues}
        self.workers = [self._worker(partition) for queue in self._queues for partition in queue.partitions]

    @property
    def queues(self) -> list[str]:
        """The names of the queues that are served."""
        return [queue.name for queue in self._queues]

    @property
    def slots(self) -> int:
        """How many runs the process performs at once."""
        return sum(slots.permits.limit for slots in self._slots.values())

    @property
    def running(self) -> list[Attempt]:
        """The attempts whose agents are called now."""
        return [attempt for worker in self.workers for attempt in worker.running]

    @property
    def lingering(self) -> int:
        """How many agents continue after their runs have ended."""
        return sum(worker.lingering for worker in self.workers)

    async def join(self) -> None:
        """Join the consumer groups; a group whose server is unavailable is joined when the server is back."""
        inherits = self._resources.tuning.inherits
        joined = await asyncio.gather(
            *(worker.join(inherits) for worker in self.workers), return_exceptions=True
        )
        failed = [exc for exc in joined if isinstance(exc, BaseException)]
        for exc in failed:
            if not isinstance(exc, DISCONNECTS) or len(failed) == len(joined):
                raise exc

    async def follow_partitions(self, start: Callable[[PartitionWorker], None]) -> None:
        """Start a worker for every partition that other processes have added, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                if not queue.settings.private:
                    group.create_task(self._follow_partitions_of(queue, start))

    async def _follow_partitions_of(self, queue: RunQueue, start: Callable[[PartitionWorker], None]) -> None:
        while True:
            with contextlib.suppress(*TROUBLE):  # the next iteration reads the count again
                served = sum(worker.partition.name == queue.name for worker in self.workers)
                # guard: worker-finds-partitions
                for partition in await queue.look_around(served, say=True):
                    _log.info("partition added", queue=queue.name, stream=partition.keys.stream)
                    worker = self._worker(partition)
                    self.workers.append(worker)
                    start(worker)
            await asyncio.sleep(COUNT_SECONDS)

    def quiet(self) -> None:
        """Claim nothing more."""
        for worker in self.workers:
            worker.quiet()

    def hand_back(self) -> int:
        """Stop every run, so that other workers start it; return how many were stopped."""
        return sum(worker.hand_back() for worker in self.workers)

    async def leave(self) -> None:
        """Leave every group; an error for one group does not keep the worker in the others."""
        left = await asyncio.gather(*(worker.leave() for worker in self.workers), return_exceptions=True)
        for exc in left:
            if isinstance(exc, BaseException):
                raise exc

    def _worker(self, partition: Partition) -> PartitionWorker:
        return PartitionWorker(self._resources, partition, self._slots[partition.name])  # guard: slots-shared
