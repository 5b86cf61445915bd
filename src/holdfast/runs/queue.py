"""A queue of runs, as producers and operators use it: one queue over any number of partitions.

The key of a new run and the configured number of partitions select its partition. Reads, workers and upkeep
cover the largest number that any process announces: while the number changes, no partition is missed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.config.queues import MOST_PARTITIONS
from holdfast.errors import NotFound, RedisUnavailable
from holdfast.redis.batcher import Batcher
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.connections import Cluster
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.runs.partition import (
    Activity,
    Depth,
    Gate,
    Partition,
    RunPage,
    partition_activities,
    partition_depths,
)
from holdfast.runs.routing import hint_of, key_of, partition_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.config import QueueSettings, SenderSettings
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys
    from holdfast.reliability.breaker import Breaker
    from holdfast.runs.run import Run, Status, Submission, Ticket
    from holdfast.telemetry.metrics import Metrics

_PARTITIONS = load(__package__, "partitions")
COUNT_SECONDS: Final = 5.0
"""The longest age of the number of partitions that was read; a producer announces its own as often."""
FORGET_SECONDS: Final = 600.0
"""A number that no process has announced for this long is forgotten, if its partitions are empty."""
_MODES: Final = ("open", "draining", "paused")
T = TypeVar("T")


class RunQueue:
    """One queue on one Redis; ``keys`` are those of its first partition, which has the queue's own name."""

    def __init__(
        self,
        settings: QueueSettings,
        redis: Redis,
        *,
        prefix: str = "",
        sender: SenderSettings | None = None,
        breaker: Breaker | None = None,
        metrics: Metrics | None = None,
        outside: bool = False,
        private_receivers: bool = True,
    ) -> None:
        self.settings = settings
        self.redis = redis
        self.outages = redis_outages("number of partitions", "the last known number is used")
        self._count = 1 if settings.private else settings.partitions

        def make(number: int) -> Partition:
            # The partitions of a cluster are on several servers, and fail each on its own.
            own = breaker.twin() if breaker and number and isinstance(redis, Cluster) else breaker
            return Partition(
                settings.of_partition(number),
                redis,
                prefix=prefix,
                sender=sender,
                breaker=own,
                metrics=metrics,
                outside=outside,
                private_receivers=private_receivers,
            )

        self._make = make
        self.partitions: list[Partition] = [make(number) for number in range(self._count)]
        """The known partitions; ``look_around`` adds more if another process announces a larger number."""
        self._read_at = self._announced_at = self._tried_at = float("-inf")
        self._announcements: Batcher[None, None] = Batcher(self._announce_once)
        self._turns = itertools.count(random.randrange(self._count))  # noqa: S311
        self._metrics = metrics

    @property
    def name(self) -> str:
        """The queue's name, as it is configured."""
        return self.settings.name

    @property
    def keys(self) -> QueueKeys:
        """The keys of the first partition, and of what belongs to the whole queue."""
        return self.partitions[0].keys

    @property
    def outside(self) -> bool:
        """Whether the events of its runs are delivered to the Event API."""
        return self.partitions[0].outside

    async def ensure(self, consumer: str = "") -> None:
        """Create the lanes and their groups, and a consumer in each, where they are missing."""
        made = (partition.ensure(consumer) for partition in self.partitions)
        for result in await asyncio.gather(*made, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def aclose(self) -> None:
        """Wait until what was submitted has been sent."""
        await self._announcements.aclose()
        for partition in self.partitions:
            await partition.aclose()

    # -- the partitions

    async def all_partitions(self) -> Sequence[Partition]:
        """Return every partition that any process announces, read a few seconds ago at most."""
        return (await partitions_of(self.redis, (self,)))[0]

    async def look_around(self, seen: int = 0, *, say: bool = False) -> Sequence[Partition]:
        """Read the largest number of partitions that any process announces; with ``say``, announce ours.

        Returns the partitions after the first ``seen``: each caller has seen another number of them.
        """
        keys, args = self.question(say=say)
        self.learn(await _PARTITIONS(self.redis, keys, args))
        return self.partitions[seen:]

    def question(self, *, say: bool = False) -> tuple[Sequence[str], Sequence[int]]:
        """Return the keys and arguments of the script."""
        return [self.keys.partitions], [self._count if say else 0, 0, 0]

    def learn(self, known: int) -> None:
        """Add the partitions up to ``known``, a number that was read just now."""
        self._read_at = asyncio.get_running_loop().time()
        known = min(known, MOST_PARTITIONS)  # the key may have been overwritten
        self.partitions.extend(self._make(number) for number in range(len(self.partitions), known))

    @property
    def knows(self) -> bool:
        """Whether the number of partitions was ever read."""
        return self._read_at > float("-inf")

    @property
    def stale(self) -> bool:
        """Whether the number of partitions has to be read again; a mailbox always has one."""
        age = asyncio.get_running_loop().time() - self._read_at
        return age > COUNT_SECONDS and not self.settings.private

    async def forget_partitions(self) -> int:
        """Forget larger numbers that no process announces any more; return how many partitions are left.

        A producer that uses a larger number has announced it within that time, or does so before it submits.
        """
        surplus = self.partitions[self._count :]
        if not surplus:  # the last read is recent enough for an idle janitor
            return self._count
        blank = await asyncio.gather(*(partition.blank() for partition in surplus))
        # guard: shrink-empty-only
        most, age_ms = self._count if all(blank) else 0, int(FORGET_SECONDS * 1000)
        known: int = await _PARTITIONS(self.redis, [self.keys.partitions], [0, most, age_ms])
        return max(known, self._count)

    async def home(self, run_id: str) -> Partition:
        """Return the partition that has a run; any partition if none has it."""
        partitions = await self.all_partitions()
        if len(partitions) == 1:
            return partitions[0]
        likely = (hint_of(run_id), partition_of(f"run:{run_id}", self._count))
        first = next(number for number in (*likely, 0) if number is not None and number < len(partitions))
        if await partitions[first].has(run_id):
            return partitions[first]
        others = [partition for number, partition in enumerate(partitions) if number != first]
        found = await asyncio.gather(*(partition.has(run_id) for partition in others))
        return next(itertools.compress(others, found), partitions[first])

    async def _at_home(self, run_id: str, do: Callable[[Partition], Awaitable[T]]) -> T:
        """Call ``do`` with the partition of a run; if none has it, look for new partitions and retry once."""
        try:
            return await do(await self.home(run_id))
        except NotFound:
            if not await self.look_around(len(self.partitions)):
                raise
            return await do(await self.home(run_id))

    # -- submitting

    async def submit(self, submission: Submission) -> Ticket:
        """Queue one run; concurrent calls are sent in one batch."""
        try:
            if self._count > 1:
                await self._announce()
            return await self.partitions[self._goes_to(submission)].submit(submission)
        except RedisUnavailable:
            self._count_unavailable(1)
            raise

    async def submit_many(self, submissions: Sequence[Submission]) -> Sequence[Ticket | Exception]:
        """Queue many runs in as few calls as possible; the list has an error for each refused run."""
        try:
            results = await self._submit_many(submissions)
        except RedisUnavailable:
            self._count_unavailable(len(submissions))
            raise
        self._count_unavailable(sum(isinstance(result, RedisUnavailable) for result in results))
        return results

    def _count_unavailable(self, submissions: int) -> None:
        """Count unanswered submissions; here, because a call may fail before it reaches a partition."""
        if self._metrics is not None and submissions:
            self._metrics.runs_refused.labels(self.name, "unavailable").inc(submissions)

    async def _submit_many(self, submissions: Sequence[Submission]) -> Sequence[Ticket | Exception]:
        if self._count == 1:
            return await self.partitions[0].submit_many(submissions)
        await self._announce()
        parts: dict[int, list[int]] = {}
        for at, submission in enumerate(submissions):
            parts.setdefault(self._goes_to(submission), []).append(at)
        sent = await asyncio.gather(
            *(self.partitions[n].submit_many([submissions[at] for at in ats]) for n, ats in parts.items()),
            return_exceptions=True,
        )
        return _in_order(list(parts.values()), sent, len(submissions))

    def _goes_to(self, submission: Submission) -> int:
        if self._count == 1:
            return 0
        key = key_of(submission)
        return partition_of(key, self._count) if key else next(self._turns) % self._count

    async def _announce(self) -> None:
        """Announce our number of partitions, so that workers with a smaller number serve all of ours.

        A run that is sent before the first announcement may be in a partition without a worker.
        """
        if self._must_announce():
            await self._announcements.add(None)  # guard: partition-count-batched

    def _must_announce(self) -> bool:
        now = asyncio.get_running_loop().time()
        tried_at = self._tried_at if self._is_announced(now) else float("-inf")
        return now - max(self._announced_at, tried_at) > COUNT_SECONDS

    def _is_announced(self, now: float) -> bool:
        """Whether the last announcement is still remembered for long enough."""
        return now - self._announced_at < FORGET_SECONDS / 2

    async def _announce_once(self, callers: list[None]) -> list[None]:
        """Announce once for all callers that submit now."""
        if not self._must_announce():
            return callers
        now = self._tried_at = asyncio.get_running_loop().time()
        try:
            # guard: partition-count-announced
            await self.partitions[0].sending(lambda: self.look_around(say=True))
        except RedisUnavailable as exc:
            if not self._is_announced(now):
                raise
            # Submissions to other partitions must not wait for the server of the first.
            self.outages.failed(exc)
        else:
            self._announced_at = now
            self.outages.answered()
        return callers

    # -- reading

    async def get(self, run_id: str) -> Run:
        """Read one run."""
        return await self._at_home(run_id, lambda home: home.get(run_id))

    async def has(self, run_id: str) -> bool:
        """Whether the queue has a run."""
        return await (await self.home(run_id)).has(run_id)

    async def list(
        self, *, status: Status | None = None, agent: str = "", limit: int = 50, cursor: str = ""
    ) -> RunPage:
        """Read runs without input and result, newest first; ``cursor`` is the one of the page before.

        One call reads a bounded number of runs, so a page may be short, or empty, and yet not be the last.
        """
        partitions = await self.all_partitions()
        if len(partitions) == 1:
            return await partitions[0].list(status=status, agent=agent, limit=limit, cursor=cursor)

        def source(partition: Partition) -> Callable[[str, int], Awaitable[Slice[Run]]]:
            async def fetch(cursor: str, limit: int) -> Slice[Run]:
                page = await partition.list(status=status, agent=agent, limit=limit, cursor=cursor)
                return Slice(page.runs, page.cursor)

            return fetch

        sources = {str(number): source(partition) for number, partition in enumerate(partitions)}
        places = read_cursor(cursor, tuple(sources))
        return RunPage(
            await merged(sources, places, limit, lambda run: run.submitted_at), write_cursor(places)
        )

    async def depth(self) -> Depth:
        """Read how much work there is, in one call."""
        return (await read_depths(self.redis, (self,), consumers=True))[0]

    async def activity(self) -> Activity:
        """Read the activity of the queue, in one call."""
        parts = await partition_activities(self.redis, await self.all_partitions())
        return Activity(
            length=sum(part.length for part in parts),
            consumer_idle_seconds=max(part.consumer_idle_seconds for part in parts),
            longest_running_seconds=max(part.longest_running_seconds for part in parts),
        )

    async def answer(self, run_id: str, index: int) -> bytes | None:
        """Return the answer to a run's n-th question, as JSON; None without one."""
        return await (await self.home(run_id)).answer(run_id, index)

    # -- changing

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> str:
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker has to stop it."""
        return await self._at_home(run_id, lambda home: home.cancel(run_id, reason))

    async def replay(self, run_id: str, *, letter: str = "") -> None:
        """Queue a failed, timed out or cancelled run again, from its first attempt."""
        await self._at_home(run_id, lambda home: home.replay(run_id, letter=letter))

    async def resume_run(self, run_id: str, answer: Any = None) -> None:
        """Store the answer of an interrupted run, and queue the run at once."""
        await self._at_home(run_id, lambda home: home.resume_run(run_id, answer))

    async def gate(self) -> Gate:
        """Read whether the queue is open, draining or paused; if partitions differ, the strictest state."""
        gates = await asyncio.gather(*(each.gate() for each in await self.all_partitions()))
        return max(gates, key=lambda gate: _MODES.index(gate.mode) if gate.mode in _MODES else len(_MODES))

    async def pause(self, reason: str = "") -> None:
        """Accept no new runs and start none; running ones continue."""
        # guard: pause-all-partitions
        await asyncio.gather(*(each.pause(reason) for each in await self.look_around()))

    async def drain(self, reason: str = "") -> None:
        """Accept no new runs, but start those that wait."""
        await asyncio.gather(*(each.drain(reason) for each in await self.look_around()))

    async def resume(self) -> None:
        """Open the queue again."""
        await asyncio.gather(*(each.resume() for each in await self.look_around()))


async def partitions_of(redis: Redis, queues: Sequence[RunQueue]) -> list[Sequence[Partition]]:
    """Return every partition of each queue, read a few seconds ago at most."""
    if stale := [queue for queue in queues if queue.stale]:
        try:
            known = await _PARTITIONS.many(redis, [queue.question() for queue in stale])
        except DISCONNECTS as exc:  # only the server of a first partition may be unavailable
            if not all(queue.knows for queue in stale):
                raise  # there may be more partitions than are configured: guessing would miss runs
            for queue in stale:
                queue.outages.failed(exc)
        else:
            for queue, count in zip(stale, known, strict=True):
                queue.learn(count)
                queue.outages.answered()
    return [queue.partitions for queue in queues]


async def read_depths(redis: Redis, queues: Sequence[RunQueue], *, consumers: bool = False) -> list[Depth]:
    """Read the depths of queues in one round trip (in a cluster: one to each node)."""
    parts = await partitions_of(redis, queues)
    every = [partition for each in parts for partition in each]
    found = iter(await partition_depths(redis, every, consumers=consumers))
    return [together(list(itertools.islice(found, len(each)))) for each in parts]


def together(depths: list[Depth]) -> Depth:
    """Return the depth of a queue, from those of its partitions; each worker serves all partitions."""
    if len(depths) == 1:
        return depths[0]
    sums = {
        name: sum(getattr(depth, name) for depth in depths)
        for name in ("undelivered", "pending", "delayed", "due", "dead")
    }
    return Depth(
        **sums,
        oldest_seconds=max(depth.oldest_seconds for depth in depths),
        consumers=max(depth.consumers for depth in depths),
        paused=all(depth.paused for depth in depths),
    )


def _in_order(
    places: list[list[int]], sent: Sequence[list[Ticket | Exception] | BaseException], count: int
) -> list[Ticket | Exception]:
    """Return the results of all partitions in the order of the submissions; raise if all of them failed."""
    failed = [result for result in sent if isinstance(result, BaseException)]
    if failed and len(failed) == len(sent):
        raise failed[0]
    results: dict[int, Ticket | Exception] = {}
    for ats, reply in zip(places, sent, strict=True):
        if isinstance(reply, Exception):
            results.update(dict.fromkeys(ats, reply))
        elif isinstance(reply, BaseException):
            raise reply
        else:
            results.update(zip(ats, reply, strict=True))
    return [results[at] for at in range(count)]
