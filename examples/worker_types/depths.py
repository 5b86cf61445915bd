"""Three answers to "how deep is the queue?": its length, what is pending, and the work that is there.

python depths.py    # in this folder, beside `holdfast dev app.py --autoscale`
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from holdfast.config import load
from holdfast.redis.locate import located
from holdfast.scaling.depth import needs
from holdfast.services.connections import Connections

if TYPE_CHECKING:
    from holdfast.runs.queue import RunQueue
    from holdfast.scaling.depth import Need


class Answers(NamedTuple):
    """What each way of counting says of one queue."""

    xlen: int
    """Also what was done long ago, if it was not deleted: it never comes down."""
    pending: int
    """Only what a worker has: 0 for a queue that nobody serves, however long it is."""
    need: Need
    """Undelivered, weighted by age, and in flight and due; and the workers that this is worth."""


async def answers(queue: RunQueue) -> Answers:
    """Ask all three ways."""
    stream, group = queue.keys.stream, queue.settings.group
    length = await queue.redis.xlen(stream)
    pending = (await queue.redis.xpending(stream, group))["pending"]
    (need,) = await needs(queue.redis, [queue])
    return Answers(length, pending, need)


async def main() -> None:
    """Print the answers for every configured queue."""
    settings = located(load().settings)
    async with Connections(settings) as to:
        print(f"{'queue':14} {'XLEN':>6} {'pending':>8} {'depth':>8} {'workers wanted':>15}")
        for name in settings.queue_names():
            queue = to.queue(settings.queue_named(name))
            await queue.ensure()
            found = await answers(queue)
            print(f"{name:14} {found.xlen:6} {found.pending:8} {found.need.depth:8g} {found.need.wanted:15}")


if __name__ == "__main__":
    asyncio.run(main())
