"""The worker processes of one queue: as many as it needs, no more, and none is ended in haste.

::

    needs ─> pilot ─> more: started at once (one that crashes is started again, each time later)
                   ─> fewer: SIGTERM, drain, hand back, after the grace SIGKILL; idle ones before busy ones
    no answer ─> everything stays
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Final

from holdfast.redis.client import TROUBLE
from holdfast.runs.cleanup import list_consumers
from holdfast.scaling.depth import needs
from holdfast.scaling.local import Pilot, first_to_leave, hands
from holdfast.services.dev.child import Child, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from holdfast.redis.members import Members
    from holdfast.runs.cleanup import Consumer
    from holdfast.runs.queue import RunQueue
    from holdfast.scaling.arrivals import Arrivals
    from holdfast.scaling.depth import Need
    from holdfast.services.child_output import ScalingVoice
    from holdfast.telemetry.metrics import Metrics

POLL_SECONDS: Final = 1.0
"""How often a queue is looked at when nothing comes in: what is due, done or resumed is seen then."""
_BREATH_SECONDS: Final = 0.1
"""The least time between two looks because something came in: a flood is one look."""
_SILENCES: Final = 2
_CALM_BEATS: Final = 3
"""After trouble with Redis everybody has the time of so many beats before silence counts."""


class NumberAllocator:
    """Numbers for processes on this machine, each given out once at a time, the smallest first."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return the smallest free number, from 1."""
        number = next(n for n in range(1, len(self._taken) + 2) if n not in self._taken)
        self._taken.add(number)
        return number

    def give(self, number: int) -> None:
        """Let somebody else have it."""
        self._taken.discard(number)


class PooledWorker:
    """A place in which a worker process is kept up; every start has a consumer's name of its own."""

    def __init__(
        self,
        name: str,
        place: int,
        command: tuple[str, ...],
        common: Callable[[int], Mapping[str, str]],
        voice: ScalingVoice,
    ) -> None:
        self.consumer = ""
        self.joined = ""
        """The consumer that was seen alive: one that has not come up yet is not silent."""
        self.silences = 0
        self._place = place
        self._common = common
        self._name = name
        self.child = Child(Recipe(name, command, self._environment), voice)

    def _environment(self) -> dict[str, str]:
        # A new name for every start: what a dead process of this place still holds is not ours.
        self.consumer = f"{self._name}-{secrets.token_hex(3)}"
        return {**self._common(self._place), "WORKER_POD_NAME": self.consumer}


class AutoscaledPool:
    """Keeps as many workers of one queue as its policy says."""

    def __init__(
        self,
        queue: RunQueue,
        arrivals: Arrivals,
        recipe: tuple[tuple[str, ...], Callable[[int], Mapping[str, str]]],
        *,
        places: NumberAllocator,
        voice: ScalingVoice,
        metrics: Metrics,
        members: Members,
        ttl_seconds: float,
        grace_seconds: float,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.name = queue.name
        self._members = members
        self._ttl_seconds = ttl_seconds
        self._judged_at = time.monotonic()
        self._queue = queue
        self._arrivals = arrivals
        self._recipe = recipe
        self._places = places
        self._seats = NumberAllocator()
        self._voice = voice
        self._grace_seconds = grace_seconds
        self._poll_seconds = poll_seconds
        self._pilot = Pilot(queue.settings.scaling)
        self._posts: dict[int, PooledWorker] = {}
        self._count = 0
        self._look = asyncio.Event()
        self._hurry = asyncio.Event()
        self._blind = False
        self._group: asyncio.TaskGroup | None = None
        metrics.scaling_workers.labels(self.name).set_function(lambda: len(self._posts))

    # -- life

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Scale until the stop, then end every worker; a hurry makes them hand back now."""
        self._hurry = hurry
        async with asyncio.TaskGroup() as self._group:
            tasks = [self._group.create_task(self._scale()), self._group.create_task(self._listen())]
            await stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            leaving, self._posts = list(self._posts.values()), {}
            if leaving:
                facts = {"before": len(leaving), "workers": 0}
                self._voice.tell(self.name, f"scaled {len(leaving)} -> 0: the autoscaler stops", **facts)
            await self._end(leaving)

    async def replace(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Start every worker anew, for new code; how many there are stays."""
        await asyncio.gather(*(post.child.replace(grace_seconds, hurry) for post in self._posts.values()))

    @property
    def pids(self) -> list[int]:
        """The processes that are kept up."""
        return [post.child.pid for post in self._posts.values() if post.child.pid]

    # -- looking

    async def _listen(self) -> None:
        """Let an arrival be seen at once, in particular the first one when there is nobody."""
        while True:
            try:
                await self._arrivals.mark()
                self._look.set()
                # With as many workers as there may be, more work is no news.
                full = len(self._posts) >= self._queue.settings.scaling.max_workers
                await asyncio.sleep(self._poll_seconds if full else _BREATH_SECONDS)
                while not await self._arrivals.wait():
                    pass
            except TROUBLE:  # the look tells of it
                await asyncio.sleep(self._poll_seconds)

    async def _scale(self) -> None:
        while True:
            self._look.clear()
            await self._turn()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):  # guard: stop-beside-arrival
                    await self._look.wait()

    async def _turn(self) -> None:
        try:
            need = (await needs(self._queue.redis, (self._queue,)))[0]
            await self._follow(need)
            await self._end_silent()
        except TROUBLE as exc:
            self._judged_at = time.monotonic() + _CALM_BEATS * self._members.heartbeat_seconds
            self._pilot.blind(time.monotonic(), len(self._posts))
            if not self._blind:
                self._voice.trouble(
                    self.name,
                    f"can't be asked: {_workers(len(self._posts))} kept until Redis answers",
                    error=str(exc) or type(exc).__name__,
                )
            self._blind = True
            return
        if self._blind:
            self._voice.tell(self.name, "answers again", workers=len(self._posts))
        self._blind = False

    # -- scaling

    async def _follow(self, need: Need) -> None:
        before = len(self._posts)
        plan = self._pilot.follow(time.monotonic(), need, before)
        if plan.workers == before:
            return
        gone = await self._choose(before - plan.workers) if plan.workers < before else []
        facts = {"before": before, "workers": plan.workers, "demand": need.depth, "why": plan.why}
        self._voice.tell(self.name, f"scaled {before} -> {plan.workers}: {plan.why}", **facts)
        for _ in range(plan.workers - before):
            self._start()
        if gone:
            self._spawn(self._end([self._posts.pop(number) for number in gone]))

    async def _choose(self, count: int) -> list[int]:
        """Ask who holds what, and choose who leaves: idle ones first."""
        held: dict[str, int] = {}
        for consumer in await self._consumers():
            held[consumer.name] = held.get(consumer.name, 0) + consumer.entries
        names = {number: post.consumer for number, post in self._posts.items()}
        return [hand.number for hand in first_to_leave(hands(names, held), count)]

    async def _consumers(self) -> list[Consumer]:
        partitions = await self._queue.all_partitions()
        return [each for partition in partitions for each in await list_consumers(partition)]

    async def _end_silent(self) -> None:
        """Kill who does not beat any more: one that is frozen holds its runs, and its place, for ever."""
        now = time.monotonic()
        if now - self._judged_at < self._members.heartbeat_seconds:
            return
        self._judged_at = now
        for post in list(self._posts.values()):
            consumer = post.consumer
            if await self._members.alive(self._queue.redis, "worker", consumer):
                post.joined, post.silences = consumer, 0
                continue
            post.silences = post.silences + 1 if post.joined == consumer else 0
            # Twice: one that leaves in good order says goodbye a moment before it ends.
            if post.silences >= _SILENCES and not await self._renews(consumer):
                self._voice.trouble(self.name, f"{post.child.name} does not beat any more: killed")
                post.silences = 0
                post.child.kill()

    async def _renews(self, consumer: str) -> bool:
        """Whether it keeps the leases of its runs: code that blocks its loop silences the beat alone."""
        found = [each for each in await self._consumers() if each.name == consumer and each.entries]
        return any(each.idle_seconds < self._ttl_seconds for each in found)

    def _start(self) -> None:
        seat, place = self._seats.take(), self._places.take()
        post = PooledWorker(f"{self.name}-{seat}", place, *self._recipe, self._voice)
        self._count += 1
        self._posts[self._count] = post
        self._spawn(self._keep(post, seat, place))

    async def _keep(self, post: PooledWorker, seat: int, place: int) -> None:
        try:
            await post.child.run()
        finally:  # not before the process has ended: its name and its port are its own until then
            self._seats.give(seat)
            self._places.give(place)

    async def _end(self, posts: Iterable[PooledWorker]) -> None:
        await asyncio.gather(*(post.child.stop(self._grace_seconds, self._hurry) for post in posts))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        assert self._group is not None
        self._group.create_task(coroutine)


def _workers(count: int) -> str:
    return "1 worker is" if count == 1 else f"{count} workers are"
