"""The worker processes of one queue: as many as it needs, and each is drained before it ends.

::

    needs ─> pilot ─> more: started at once (a crashed one is restarted, with backoff)
                   ─> fewer: SIGTERM, drain, hand back, after the grace SIGKILL; idle ones before busy ones
    no response ─> no change
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
"""How often a queue is read without arrivals: due, finished and resumed runs are noticed then."""
_ARRIVAL_SECONDS: Final = 0.1
"""The least time between two reads after arrivals: a flood is one read."""
_MISSED_BEATS: Final = 2
_STABLE_BEATS: Final = 3
"""After an error of Redis, workers have this many heartbeats before a missing one counts."""


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
        """Free a number."""
        self._taken.discard(number)


class PooledWorker:
    """A supervised worker process; every start has a consumer name of its own."""

    def __init__(
        self,
        name: str,
        number: int,
        command: tuple[str, ...],
        common: Callable[[int], Mapping[str, str]],
        output: ScalingVoice,
    ) -> None:
        self.consumer = ""
        self.joined = ""
        """The consumer whose heartbeat was seen: one that has not started yet has missed none."""
        self.missed_beats = 0
        self._number = number
        self._common = common
        self._name = name
        self.child = Child(Recipe(name, command, self._environment), output)

    def _environment(self) -> dict[str, str]:
        # A new name for every start: leases of the previous process are not ours.
        self.consumer = f"{self._name}-{secrets.token_hex(3)}"
        return {**self._common(self._number), "WORKER_POD_NAME": self.consumer}


class AutoscaledPool:
    """Keeps as many workers of one queue as its policy says."""

    def __init__(
        self,
        queue: RunQueue,
        arrivals: Arrivals,
        recipe: tuple[tuple[str, ...], Callable[[int], Mapping[str, str]]],
        *,
        numbers: NumberAllocator,
        output: ScalingVoice,
        metrics: Metrics,
        members: Members,
        ttl_seconds: float,
        grace_seconds: float,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.name = queue.name
        self._members = members
        self._ttl_seconds = ttl_seconds
        self._checked_at = time.monotonic()
        self._queue = queue
        self._arrivals = arrivals
        self._recipe = recipe
        self._numbers = numbers
        self._own_numbers = NumberAllocator()
        self._output = output
        self._grace_seconds = grace_seconds
        self._poll_seconds = poll_seconds
        self._pilot = Pilot(queue.settings.scaling)
        self._pooled: dict[int, PooledWorker] = {}
        self._count = 0
        self._look = asyncio.Event()
        self._hurry = asyncio.Event()
        self._blind = False
        self._group: asyncio.TaskGroup | None = None
        metrics.scaling_workers.labels(self.name).set_function(lambda: len(self._pooled))

    # -- lifecycle

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Scale until the stop, then stop every worker; a hurry makes them hand back now."""
        self._hurry = hurry
        async with asyncio.TaskGroup() as self._group:
            tasks = [self._group.create_task(self._scale()), self._group.create_task(self._listen())]
            await stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            leaving, self._pooled = list(self._pooled.values()), {}
            if leaving:
                facts = {"before": len(leaving), "workers": 0}
                self._output.tell(self.name, f"scaled {len(leaving)} -> 0: the autoscaler stops", **facts)
            await self._end(leaving)

    async def replace(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Restart every worker, for new code; their number stays."""
        await asyncio.gather(
            *(worker.child.replace(grace_seconds, hurry) for worker in self._pooled.values())
        )

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [worker.child.pid for worker in self._pooled.values() if worker.child.pid]

    # -- reading

    async def _listen(self) -> None:
        """Wake the scaling loop at an arrival, in particular at the first one without workers."""
        while True:
            try:
                await self._arrivals.mark()
                self._look.set()
                # With the maximum of workers, more arrivals change nothing.
                full = len(self._pooled) >= self._queue.settings.scaling.max_workers
                await asyncio.sleep(self._poll_seconds if full else _ARRIVAL_SECONDS)
                while not await self._arrivals.wait():
                    pass
            except TROUBLE:  # the scaling loop reports it
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
            await self._kill_unresponsive()
        except TROUBLE as exc:
            self._checked_at = time.monotonic() + _STABLE_BEATS * self._members.heartbeat_seconds
            self._pilot.blind(time.monotonic(), len(self._pooled))
            if not self._blind:
                self._output.trouble(
                    self.name,
                    f"depth can't be read: {_workers(len(self._pooled))} kept until Redis responds",
                    error=str(exc) or type(exc).__name__,
                )
            self._blind = True
            return
        if self._blind:
            self._output.tell(self.name, "depth can be read again", workers=len(self._pooled))
        self._blind = False

    # -- scaling

    async def _follow(self, need: Need) -> None:
        before = len(self._pooled)
        plan = self._pilot.follow(time.monotonic(), need, before)
        if plan.workers == before:
            return
        gone = await self._choose(before - plan.workers) if plan.workers < before else []
        facts = {"before": before, "workers": plan.workers, "demand": need.depth, "why": plan.why}
        self._output.tell(self.name, f"scaled {before} -> {plan.workers}: {plan.why}", **facts)
        for _ in range(plan.workers - before):
            self._start()
        if gone:
            self._spawn(self._end([self._pooled.pop(number) for number in gone]))

    async def _choose(self, count: int) -> list[int]:
        """Read what each worker holds, and choose the workers to stop: idle ones first."""
        held: dict[str, int] = {}
        for consumer in await self._consumers():
            held[consumer.name] = held.get(consumer.name, 0) + consumer.entries
        names = {number: worker.consumer for number, worker in self._pooled.items()}
        return [hand.number for hand in first_to_leave(hands(names, held), count)]

    async def _consumers(self) -> list[Consumer]:
        partitions = await self._queue.all_partitions()
        return [each for partition in partitions for each in await list_consumers(partition)]

    async def _kill_unresponsive(self) -> None:
        """Kill workers without a heartbeat: a frozen one would hold its runs and its slot for ever."""
        now = time.monotonic()
        if now - self._checked_at < self._members.heartbeat_seconds:
            return
        self._checked_at = now
        for worker in list(self._pooled.values()):
            consumer = worker.consumer
            if await self._members.alive(self._queue.redis, "worker", consumer):
                worker.joined, worker.missed_beats = consumer, 0
                continue
            worker.missed_beats = worker.missed_beats + 1 if worker.joined == consumer else 0
            # Twice: a worker that shuts down deregisters a moment before it ends.
            if worker.missed_beats >= _MISSED_BEATS and not await self._renews(consumer):
                self._output.trouble(self.name, f"{worker.child.name} has no heartbeat any more: killed")
                worker.missed_beats = 0
                worker.child.kill()

    async def _renews(self, consumer: str) -> bool:
        """Return whether a worker renews its leases: a blocked event loop stops only its heartbeat."""
        found = [each for each in await self._consumers() if each.name == consumer and each.entries]
        return any(each.idle_seconds < self._ttl_seconds for each in found)

    def _start(self) -> None:
        own, number = self._own_numbers.take(), self._numbers.take()
        worker = PooledWorker(f"{self.name}-{own}", number, *self._recipe, self._output)
        self._count += 1
        self._pooled[self._count] = worker
        self._spawn(self._keep(worker, own, number))

    async def _keep(self, worker: PooledWorker, own: int, number: int) -> None:
        try:
            await worker.child.run()
        finally:  # only now are its name and its port free
            self._own_numbers.give(own)
            self._numbers.give(number)

    async def _end(self, workers: Iterable[PooledWorker]) -> None:
        await asyncio.gather(*(worker.child.stop(self._grace_seconds, self._hurry) for worker in workers))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        assert self._group is not None
        self._group.create_task(coroutine)


def _workers(count: int) -> str:
    return "1 worker is" if count == 1 else f"{count} workers are"
