"""Partitions: how the work of Redis is spread when a queue has one on each server of a cluster.

Two worker processes drain the same runs from one partition and from three. Where all share a few cores, the
speed need not differ; what one core of Redis must do for a run does, and that is the limit of a queue.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

from bench import harness
from bench.cluster import cluster
from bench.figures import Goal, median_of
from holdfast.config import QueueSettings, RedisSettings, Settings
from holdfast.config.checks import key_slot
from holdfast.runs.run import Submission
from holdfast.services.connections import Connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bench.cluster import Cluster
    from bench.figures import Figure
    from bench.harness import Plan
    from holdfast.runs.queue import RunQueue

_SERVERS = 3
_WORKERS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One drain: what every server spent on it."""

    count: int
    seconds: float
    servers: list[float]

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def redis_us(self) -> float:
        return 1e6 * sum(self.servers) / self.count

    @property
    def busiest_us(self) -> float:
        return 1e6 * max(self.servers) / self.count

    @property
    def share(self) -> float:
        return 100 * max(self.servers) / sum(self.servers)

    @property
    def most(self) -> float:
        """How many runs a second keep the busiest server's core busy."""
        return 1e6 / self.busiest_us


async def measure(plan: Plan) -> list[Figure]:
    count = plan.pick(10_000, 1_000)
    single, spread = [], []
    for _ in range(plan.pick(3, 1)):
        single.append(await _drain(1, count))
        spread.append(await _drain(_SERVERS, count))
        plan.say(
            f"the busiest of {_SERVERS} servers has {single[-1].share:.0f} %, then {spread[-1].share:.0f} %"
        )

    def figure(name: str, unit: str, of: Callable[[Side], float], goal: Goal | None = None) -> Figure:
        return median_of(name, unit, [of(side) for side in spread], [of(side) for side in single], goal)

    return [
        figure(f"drain of {_SERVERS} partitions", "runs/s", lambda side: side.rate),
        figure("Redis CPU a run, all servers", "us", lambda side: side.redis_us),
        figure(
            "Redis CPU a run, busiest server", "us", lambda side: side.busiest_us, Goal("<=", 0.6, "ratio")
        ),
        figure("busiest server's share of Redis CPU", "%", lambda side: side.share, Goal("<=", 45)),
        figure("runs/s that fill one core of Redis", "runs/s", lambda side: side.most),
    ]


async def _drain(partitions: int, count: int) -> Side:
    """Let two workers drain so many runs that were queued before."""
    async with cluster(_homes()) as on, _queue(on, partitions) as queue, contextlib.AsyncExitStack() as stack:
        await queue.submit_many([Submission(agent="noop", input=1) for _ in range(count)])
        await queue.pause("until the workers are ready")
        for _ in range(_WORKERS):
            worker = harness.worker(on, HOLDFAST_QUEUE_PARTITIONS=str(partitions))
            await stack.enter_async_context(worker)
        await harness.until(lambda: _listening(on, queue))
        before, began = await on.cpu_seconds_each(), time.monotonic()
        await queue.resume()
        for partition in queue.partitions:
            await harness.emptied(on, partition.keys.stream)
        seconds, after = time.monotonic() - began, await on.cpu_seconds_each()
        assert (await queue.depth()).dead == 0, "runs failed: this measured something else"
        return Side(count, seconds, [end - begin for begin, end in zip(before, after, strict=True)])


def _homes() -> list[int]:
    """The slot of each partition: each is to have a server of its own."""
    settings = QueueSettings(name=harness.QUEUE, partitions=_SERVERS)
    return [key_slot(settings.of_partition(number).stream) for number in range(_SERVERS)]


@contextlib.asynccontextmanager
async def _queue(on: Cluster, partitions: int) -> AsyncIterator[RunQueue]:
    settings = Settings(
        redis=RedisSettings(url=on.url), queue=QueueSettings(name=harness.QUEUE, partitions=partitions)
    )
    async with Connections(settings) as connections:
        queue = connections.sender(settings.queue_named(harness.QUEUE))
        await queue.ensure()
        yield queue


async def _listening(on: Cluster, queue: RunQueue) -> bool:
    """Whether every worker hears that its partitions are opened."""
    for partition in queue.partitions:
        heard = [await node.redis.pubsub_numsub(partition.keys.control) for node in on.nodes]
        if sum(counts[0][1] for counts in heard) < _WORKERS:
            return False
    return True
