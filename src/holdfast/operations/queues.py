"""Queues: how much work they hold, and the gate in front of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.config.checks import key_slot
from holdfast.operations.caller import OPERATE, READ
from holdfast.runs.partition import partition_depths
from holdfast.runs.queue import together
from holdfast.views.queues import PartitionView, PartitionWork, QueueDetail, QueueList, QueueView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.operations.caller import Caller
    from holdfast.operations.system import System
    from holdfast.runs.partition import Depth
    from holdfast.runs.queue import RunQueue


class QueueOperations:
    """What one caller can ask of queues."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller

    async def list(self) -> QueueList:
        """Read every configured queue, the default one first."""
        self._caller.require(READ)
        serving = await self._serving()
        queues = [each.queue for each in self._system.queues.values()]
        return QueueList([await _view(queue, await queue.depth(), serving) for queue in queues])

    async def get(self, name: str = "") -> QueueDetail:
        """Read one queue."""
        self._caller.require(READ)
        queue = self._system.queue(name).queue
        partitions = await queue.all_partitions()
        depths = await partition_depths(queue.redis, partitions)
        view = await _view(queue, together(depths), await self._serving())
        return QueueDetail(
            **msgspec.structs.asdict(view),
            **msgspec.structs.asdict(await queue.activity()),
            streams=[
                _partition(each.keys.stream, depth) for each, depth in zip(partitions, depths, strict=True)
            ],
            settings=msgspec.to_builtins(queue.settings) if self._caller.operates else {},
        )

    async def pause(self, name: str = "", reason: str = "") -> QueueDetail:
        """Take no new runs and start none; what runs goes on."""
        queue = self._changed(name)
        await queue.pause(reason)
        return await self.get(name)

    async def drain(self, name: str = "", reason: str = "") -> QueueDetail:
        """Take no new runs, but start those that wait."""
        queue = self._changed(name)
        await queue.drain(reason)
        return await self.get(name)

    async def resume(self, name: str = "") -> QueueDetail:
        """Open a paused or draining queue again."""
        queue = self._changed(name)
        await queue.resume()
        return await self.get(name)

    def _changed(self, name: str) -> RunQueue:
        self._caller.require(OPERATE)
        self._caller.require_every_tenant()
        return self._system.queue(name).queue

    async def _serving(self) -> Mapping[str, int]:
        return await self._system.members.serving(self._system.redis)


async def _view(queue: RunQueue, depth: Depth, serving: Mapping[str, int]) -> QueueView:
    gate = await queue.gate()
    return QueueView(
        name=queue.name,
        mode=gate.mode,
        reason=gate.reason,
        since=gate.since,
        depth=depth.depth,
        undelivered=depth.undelivered,
        pending=depth.pending,
        delayed=depth.delayed,
        dead=depth.dead,
        oldest_seconds=depth.oldest_seconds,
        workers=serving.get(queue.name, 0),
        partitions=len(queue.partitions),
    )


def _partition(stream: str, depth: Depth) -> PartitionView:
    return PartitionView(
        stream, key_slot(stream), msgspec.convert(depth, PartitionWork, from_attributes=True)
    )
