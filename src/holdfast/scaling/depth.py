"""The depths of queues, and the workers they need: one round trip for all lanes of all queues.

Invariant: if Redis is unavailable this raises; a 0 would end every worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.runs.queue import read_depths
from holdfast.scaling.policy import demand, slots_of, workers_wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import QueueSettings
    from holdfast.redis.client import Redis
    from holdfast.runs.queue import Depth, RunQueue


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The demand of a queue; ``depth`` is weighted, the number that KEDA gets."""

    queue: str
    depth: float
    undelivered: int
    in_flight: int
    due: int
    oldest_seconds: float
    slots: int
    wanted: int
    paused: bool = False


async def needs(redis: Redis, queues: Sequence[RunQueue]) -> list[Need]:
    """Return how many workers each of these queues needs, in their order."""
    found = await read_depths(redis, queues)
    return [need_of(queue.settings, depth) for queue, depth in zip(queues, found, strict=True)]


def need_of(settings: QueueSettings, depth: Depth) -> Need:
    """Return how many workers a queue of this depth needs."""
    scaling, slots = settings.scaling, slots_of(settings)
    wanting = demand(depth, scaling, slots)
    return Need(
        queue=settings.name,
        depth=round(wanting, 3),
        undelivered=depth.undelivered,
        in_flight=depth.pending,
        due=depth.due,
        oldest_seconds=depth.oldest_seconds,
        slots=slots,
        wanted=workers_wanted(wanting, slots, scaling),
        paused=depth.paused,
    )
