"""Waits for new entries of a queue, without reading them from the group.

Invariant: ``wait`` returns for every entry after ``mark``, so a caller that reads the depth between the two
misses nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.redis.command import command
from holdfast.redis.connections import Cluster
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from holdfast.redis.client import Redis
    from holdfast.runs.queue import RunQueue

_ENDS = load(__package__, "ends")


class Arrivals:
    """New entries in the lanes of one queue; ``reader`` is a connection for blocking reads only."""

    def __init__(self, queue: RunQueue, reader: Redis, *, block_seconds: float) -> None:
        self._queue = queue
        self._reader = reader
        self._block_seconds = block_seconds
        self._ends: dict[str, bytes] = {}

    async def mark(self) -> None:
        """Store the last id of each lane."""
        partitions = await self._queue.all_partitions()
        if isinstance(self._reader, Cluster):
            # One read covers one node only: runs of the other partitions are found by polling the depth.
            partitions = partitions[:1]
        lanes = [partition.keys.lanes for partition in partitions]
        found = await _ENDS.many(self._queue.redis, [(each, ()) for each in lanes])
        pairs = [zip(each, ends, strict=True) for each, ends in zip(lanes, found, strict=True) if ends]
        self._ends = {lane: end for each in pairs for lane, end in each}

    async def wait(self) -> bool:
        """Block until an entry is added after the mark; return False after the block time without one."""
        if not self._ends:  # no lane is a stream: reading the depth raises the error
            await asyncio.sleep(self._block_seconds)
            return False
        read = ("XREAD", "COUNT", 1, "BLOCK", int(self._block_seconds * 1000), "STREAMS")
        return bool(await command(self._reader, *read, *self._ends, *self._ends.values()))
