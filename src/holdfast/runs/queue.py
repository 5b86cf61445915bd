"""A queue of runs, as producers and operators see it: one queue, however many partitions it is spread over.

Where a new run goes is decided by its key and the configured number of partitions. Looked for, served and
looked after are all partitions that anybody counts on: while the number changes, nothing is missed.
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
    Page,
    Partition,
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
"""How old what we know of the number of partitions may be; a producer says its own as often."""
FORGET_SECONDS: Final = 600.0
"""A number that nobody has said for so long is forgotten, if nothing is left in its partitions."""
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
        """Those that are known; ``look_around`` finds more while others count on more than we do."""
        self._looked_at = self._said_at = self._tried_at = float("-inf")
        self._sayings: Batcher[None, None] = Batcher(self._say_for)
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
        """Whether its runs' events go to the outside."""
        return self.partitions[0].outside

    async def ensure(self, consumer: str = "") -> None:
        """Create the lanes and their groups, and a consumer in each, where they are missing."""
        made = (partition.ensure(consumer) for partition in self.partitions)
        for result in await asyncio.gather(*made, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def aclose(self) -> None:
        """Wait until what was submitted has been sent."""
        await self._sayings.aclose()
        for partition in self.partitions:
            await partition.aclose()

    # -- the partitions

    async def all_partitions(self) -> Sequence[Partition]:
        """Every partition that anybody counts on, as it was a few seconds ago at most."""
        return (await partitions_of(self.redis, (self,)))[0]

    async def look_around(self, seen: int = 0, *, say: bool = False) -> Sequence[Partition]:
        """Ask how many partitions others count on, and ``say`` how many we do.

        Returns those after the first ``seen``: several look after one queue, and each has its own news.
        """
        keys, args = self.question(say=say)
        self.learn(await _PARTITIONS(self.redis, keys, args))
        return self.partitions[seen:]

    def question(self, *, say: bool = False) -> tuple[Sequence[str], Sequence[int]]:
        """The keys and arguments by which the script is asked."""
        return [self.keys.partitions], [self._count if say else 0, 0, 0]

    def learn(self, known: int) -> None:
        """Take note of how many partitions there are; that is known for a while."""
        self._looked_at = asyncio.get_running_loop().time()
        known = min(known, MOST_PARTITIONS)  # anybody can write anything there
        self.partitions.extend(self._make(number) for number in range(len(self.partitions), known))

    @property
    def knows(self) -> bool:
        """Whether it was ever told how many partitions there are."""
        return self._looked_at > float("-inf")

    @property
    def stale(self) -> bool:
        """Whether it is time to ask again; a mailbox has one partition for ever."""
        age = asyncio.get_running_loop().time() - self._looked_at
        return age > COUNT_SECONDS and not self.settings.private

    async def forget_partitions(self) -> int:
        """Forget numbers above ours that nobody says any more; return how many partitions there are then.

        Whoever still submits by such a number has said so within the patience, or says it before it does.
        """
        surplus = self.partitions[self._count :]
        if not surplus:  # by the last look around: an idle janitor need not ask again
            return self._count
        blank = await asyncio.gather(*(partition.blank() for partition in surplus))
        # guard: shrink-empty-only
        most, patience = self._count if all(blank) else 0, int(FORGET_SECONDS * 1000)
        known: int = await _PARTITIONS(self.redis, [self.keys.partitions], [0, most, patience])
        return max(known, self._count)

    async def home(self, run_id: str) -> Partition:
        """The partition that has a run; one without it if none has."""
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
        """Do something where a run is; if it is nowhere, a partition may be new since we looked."""
        try:
            return await do(await self.home(run_id))
        except NotFound:
            if not await self.look_around(len(self.partitions)):
                raise
            return await do(await self.home(run_id))

    # -- submitting

    async def submit(self, submission: Submission) -> Ticket:
        """Queue one run; concurrent calls travel together."""
        try:
            if self._count > 1:
                await self._say()
            return await self.partitions[self._goes_to(submission)].submit(submission)
        except RedisUnavailable:
            self._count_unavailable(1)
            raise

    async def submit_many(self, submissions: Sequence[Submission]) -> Sequence[Ticket | Exception]:
        """Queue many runs in as few calls as possible; a refused one stands in the list as its error."""
        try:
            answers = await self._submit_many(submissions)
        except RedisUnavailable:
            self._count_unavailable(len(submissions))
            raise
        self._count_unavailable(sum(isinstance(answer, RedisUnavailable) for answer in answers))
        return answers

    def _count_unavailable(self, submissions: int) -> None:
        """Count what Redis did not answer: here, as it may be lost before it was sent to a partition."""
        if self._metrics is not None and submissions:
            self._metrics.runs_refused.labels(self.name, "unavailable").inc(submissions)

    async def _submit_many(self, submissions: Sequence[Submission]) -> Sequence[Ticket | Exception]:
        if self._count == 1:
            return await self.partitions[0].submit_many(submissions)
        await self._say()
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

    async def _say(self) -> None:
        """Say how many partitions we count on, so that workers which count on fewer serve ours too.

        Nothing is sent before it was said: it would be where nobody looks. Later it may wait a while.
        """
        if self._must_say():
            await self._sayings.add(None)  # guard: partition-count-batched

    def _must_say(self) -> bool:
        now = asyncio.get_running_loop().time()
        tried_at = self._tried_at if self._was_heard(now) else float("-inf")
        return now - max(self._said_at, tried_at) > COUNT_SECONDS

    def _was_heard(self, now: float) -> bool:
        """Whether what we said last is remembered for long enough to go on by it."""
        return now - self._said_at < FORGET_SECONDS / 2

    async def _say_for(self, callers: list[None]) -> list[None]:
        """Say it once for all who want to submit."""
        if not self._must_say():
            return callers
        now = self._tried_at = asyncio.get_running_loop().time()
        try:
            # guard: partition-count-announced
            await self.partitions[0].sending(lambda: self.look_around(say=True))
        except RedisUnavailable as exc:
            if not self._was_heard(now):
                raise
            # The others' partitions must not wait for the first one.
            self.outages.failed(exc)
        else:
            self._said_at = now
            self.outages.answered()
        return callers

    # -- looking

    async def get(self, run_id: str) -> Run:
        """Read one run."""
        return await self._at_home(run_id, lambda home: home.get(run_id))

    async def has(self, run_id: str) -> bool:
        """Whether a run is here."""
        return await (await self.home(run_id)).has(run_id)

    async def list(
        self, *, status: Status | None = None, agent: str = "", limit: int = 50, cursor: str = ""
    ) -> Page:
        """Read runs without input and result, newest first; ``cursor`` is where the last page ended.

        One call looks at a bounded number of runs, so a page may be short, or empty, and yet not the last.
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
        return Page(await merged(sources, places, limit, lambda run: run.submitted_at), write_cursor(places))

    async def depth(self) -> Depth:
        """How much work there is, in one call."""
        return (await read_depths(self.redis, (self,), consumers=True))[0]

    async def activity(self) -> Activity:
        """What goes on in it, in one call."""
        parts = await partition_activities(self.redis, await self.all_partitions())
        return Activity(
            length=sum(part.length for part in parts),
            consumer_idle_seconds=max(part.consumer_idle_seconds for part in parts),
            longest_running_seconds=max(part.longest_running_seconds for part in parts),
        )

    async def answer(self, run_id: str, index: int) -> bytes | None:
        """Return the answer that a run was given to its n-th question, as JSON."""
        return await (await self.home(run_id)).answer(run_id, index)

    # -- changing

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> str:
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        return await self._at_home(run_id, lambda home: home.cancel(run_id, reason))

    async def replay(self, run_id: str, *, letter: str = "") -> None:
        """Queue a failed, timed out or cancelled run again, from its first attempt."""
        await self._at_home(run_id, lambda home: home.replay(run_id, letter=letter))

    async def resume_run(self, run_id: str, answer: Any = None) -> None:
        """Give an interrupted run its answer; it goes on at once."""
        await self._at_home(run_id, lambda home: home.resume_run(run_id, answer))

    async def gate(self) -> Gate:
        """Whether the queue is open, draining or paused; if partitions differ, the stricter one."""
        gates = await asyncio.gather(*(each.gate() for each in await self.all_partitions()))
        return max(gates, key=lambda gate: _MODES.index(gate.mode) if gate.mode in _MODES else len(_MODES))

    async def pause(self, reason: str = "") -> None:
        """Take no new runs and start none; what runs goes on."""
        # guard: pause-all-partitions
        await asyncio.gather(*(each.pause(reason) for each in await self.look_around()))

    async def drain(self, reason: str = "") -> None:
        """Take no new runs, but work off those that are there."""
        await asyncio.gather(*(each.drain(reason) for each in await self.look_around()))

    async def resume(self) -> None:
        """Open the queue again."""
        await asyncio.gather(*(each.resume() for each in await self.look_around()))


async def partitions_of(redis: Redis, queues: Sequence[RunQueue]) -> list[Sequence[Partition]]:
    """Every partition of each of these queues, as they were a few seconds ago at most."""
    if asked := [queue for queue in queues if queue.stale]:
        try:
            known = await _PARTITIONS.many(redis, [queue.question() for queue in asked])
        except DISCONNECTS as exc:  # a first partition may be away alone: the others can still be asked
            if not all(queue.knows for queue in asked):
                raise  # there may be more than are configured: what is not known is not nothing
            for queue in asked:
                queue.outages.failed(exc)
        else:
            for queue, count in zip(asked, known, strict=True):
                queue.learn(count)
                queue.outages.answered()
    return [queue.partitions for queue in queues]


async def read_depths(redis: Redis, queues: Sequence[RunQueue], *, consumers: bool = False) -> list[Depth]:
    """Read how much work each of these queues holds, in one round trip (in a cluster: one to each node)."""
    parts = await partitions_of(redis, queues)
    every = [partition for each in parts for partition in each]
    found = iter(await partition_depths(redis, every, consumers=consumers))
    return [together(list(itertools.islice(found, len(each)))) for each in parts]


def together(depths: list[Depth]) -> Depth:
    """The depth of a queue by those of its partitions; a worker serves all of them."""
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
    """The answers of all partitions in the order of the questions; raises if no partition has answered."""
    failed = [answer for answer in sent if isinstance(answer, BaseException)]
    if failed and len(failed) == len(sent):
        raise failed[0]
    answers: dict[int, Ticket | Exception] = {}
    for ats, reply in zip(places, sent, strict=True):
        if isinstance(reply, Exception):
            answers.update(dict.fromkeys(ats, reply))
        elif isinstance(reply, BaseException):
            raise reply
        else:
            answers.update(zip(ats, reply, strict=True))
    return [answers[at] for at in range(count)]
