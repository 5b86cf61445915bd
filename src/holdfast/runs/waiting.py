"""Waits for runs to end: any number of waiters share one batch of reads and one blocked connection.

Invariant: the newest event is read with the status, in one script, so an end between the two is never missed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.redis.batcher import Batcher
from holdfast.redis.scripts import load
from holdfast.runs.record import read_run
from holdfast.runs.run import ENDED, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.events.hub import Hub
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue

_STATE = load(__package__, "look")
_BATCH = 50
"""Records of ended runs may be large."""


class EndWaiter:
    """Waits for runs of one queue to end."""

    def __init__(self, queue: RunQueue, hub: Hub) -> None:
        self._queue = queue
        self._hub = hub
        self._partitions: Batcher[None, None] = Batcher(self._count_partitions)
        self._batchers: dict[int, Batcher[str, Run | str | None]] = {}
        """By partition: in a cluster, a server that hangs delays the waiters of its own partitions only."""

    async def wait(self, run_id: str) -> Run | None:
        """Return a run if it has ended; else wait, and return None when it may have. NotFound if missing."""
        await self._partitions.add(None)  # read once for all waiters
        home = await self._queue.home(run_id)
        found = await self._batcher(home).add(run_id)
        if found is None:
            await self._queue.get(run_id)  # raises, unless the run is in a new partition
        if not isinstance(found, str):
            return found
        await self._hub.final_event(home.keys, run_id, after=found)
        return None

    async def _count_partitions(self, waiters: list[None]) -> list[None]:
        await self._queue.all_partitions()
        return waiters

    def _batcher(self, home: Partition) -> Batcher[str, Run | str | None]:
        number = home.settings.partition
        if number not in self._batchers:
            self._batchers[number] = Batcher(partial(_read_states, home), limit=_BATCH)
        return self._batchers[number]


async def _read_states(home: Partition, run_ids: Sequence[str]) -> list[Run | str | None]:
    """Return each run that has ended, the id of the newest event of each other, None for a missing run."""
    keys = [key for run_id in run_ids for key in (home.keys.run(run_id), home.keys.feed(run_id))]
    replies: list[list[Any]] = await _STATE(home.redis, keys, [status.value for status in ENDED])
    return [_found(home, run_id, *reply) for run_id, reply in zip(run_ids, replies, strict=True)]


def _found(home: Partition, run_id: str, word: bytes, read: Any = None) -> Run | str | None:
    if word == b"ended":
        return read_run(run_id, home.name, dict(zip(read[::2], read[1::2], strict=True)))
    return read.decode() if word == b"going" else None
