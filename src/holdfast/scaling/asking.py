"""Reads depths for many callers: concurrent requests are sent in one round trip.

In a cluster each queue is read alone: a server that hangs delays the replies for its own queues only.
Invariant: each caller gets a reply or an error within ``seconds``, and never 0 if Redis did not answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from holdfast.errors import RedisUnavailable
from holdfast.redaction import redact_url
from holdfast.redis.batcher import Batcher
from holdfast.redis.client import REFUSALS
from holdfast.redis.connections import Cluster
from holdfast.redis.translate import translate_errors
from holdfast.runs.queue import read_depths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis
    from holdfast.runs.partition import Depth
    from holdfast.runs.queue import RunQueue

Queues = tuple["RunQueue", ...]


class Asker:
    """Reads the depths of queues for any number of callers."""

    def __init__(self, redis: Redis, url: str, *, seconds: float) -> None:
        self._redis = redis
        self._url = url
        self._seconds = seconds
        self._batchers: defaultdict[str, Batcher[Queues, list[Depth]]] = defaultdict(
            lambda: Batcher(self._read)
        )

    async def ask(self, queues: Queues) -> list[Depth]:
        """Read the depths of these queues, in their order; errors of Redis are translated."""
        try:
            async with asyncio.timeout(self._seconds):
                with translate_errors(self._url):
                    return await self._batched(queues)
        except TimeoutError as exc:
            raise too_slow(self._url, self._seconds) from exc

    async def aclose(self) -> None:
        """Wait for the requests in progress."""
        await asyncio.gather(*(batcher.aclose() for batcher in self._batchers.values()))

    async def _batched(self, queues: Queues) -> list[Depth]:
        if not isinstance(self._redis, Cluster):  # guard: cluster-depth-per-node
            return await self._batchers[""].add(queues)  # guard: depth-batched
        found = await asyncio.gather(*(self._batchers[queue.name].add((queue,)) for queue in queues))
        return [depth for (depth,) in found]

    async def _read(self, requests: list[Queues]) -> list[list[Depth] | Exception]:
        distinct = {queue.name: queue for queues in requests for queue in queues}
        # A timeout here too: without one, the next batch would wait for a call that no caller needs any more.
        async with asyncio.timeout(self._seconds):
            found = await self._depths(list(distinct.values()))
        return [_depths_of(queues, found) for queues in requests]

    async def _depths(self, queues: Sequence[RunQueue]) -> dict[str, Depth | Exception]:
        try:
            depths = await read_depths(self._redis, queues)
        except REFUSALS as exc:
            if len(queues) == 1:  # guard: depth-of-damaged-queue
                return {queues[0].name: exc}
            # A key of one queue is damaged: the others are read alone.
            alone = await asyncio.gather(*(self._depths([queue]) for queue in queues))
            return {name: depth for each in alone for name, depth in each.items()}
        return {queue.name: depth for queue, depth in zip(queues, depths, strict=True)}


def too_slow(url: str, seconds: float) -> RedisUnavailable:
    """Return the error that Redis took longer than KEDA waits."""
    return RedisUnavailable(
        f"Redis at {redact_url(url)} has not answered within {seconds:g} s (scaler.answer_seconds): "
        "check that it runs and that redis.url (REDIS_URL) is right"
    )


def _depths_of(queues: Queues, found: dict[str, Depth | Exception]) -> list[Depth] | Exception:
    depths: list[Depth] = []
    for queue in queues:
        depth = found[queue.name]
        if isinstance(depth, Exception):
            return depth
        depths.append(depth)
    return depths
