"""A small Kubernetes of processes: a scale target of real workers, driven by KEDA's and the HPA's rules, only faster.

The rules have no clock, so a second of theirs is as long as the test likes: with ``speed`` 50 the HPA looks every
0.3 s instead of every 15 s. The depth is the real one of a real queue, and a pod is a real worker process that is
ended as a kubelet does it: SIGTERM, the grace period, SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from holdfast.redis.client import TROUBLE
from holdfast.runs.cleanup import list_consumers
from holdfast.runs.run import Status
from holdfast.scaling.depth import needs
from holdfast_simulator.rules import Scaler
from tests.support.runs.system import System, WorkerChild
from tests.support.runs.worker_processes import AGENTS, Ledger

_TICK_SECONDS = 0.02


@dataclass(eq=False)
class Pod:
    """One worker process."""

    name: str
    number: int
    child: WorkerChild
    created_at: float = field(default_factory=time.monotonic)
    ready_at: float | None = None
    told_at: float | None = None
    killed: bool = False
    cost: int = 0

    @property
    def gone(self) -> bool:
        return self.child.process.poll() is not None

    def look(self) -> None:
        """Note when it became ready, as its probe would."""
        if self.ready_at is None and "worker ready" in self.child.logged():
            self.ready_at = time.monotonic()


def leaving_order(pod: Pod) -> tuple[bool, int, float, int]:
    """Whom a ReplicaSet ends first: not ready, then cheap to delete, then ready for less long, then newer."""
    return (pod.ready_at is not None, pod.cost, -(pod.ready_at or 0.0), -pod.number)


class ReplicaSet:
    """As many pods as it is told, and the kubelet that ends the others."""

    def __init__(
        self,
        system: System,
        ledger: Ledger,
        *,
        grace_seconds: float = 20.0,
        costs: bool = True,
        **environ: str,
    ) -> None:
        self._system = system
        self._grace_seconds = grace_seconds
        self._costs = costs
        self._environ = {"CHAOS_LEDGER": str(ledger.path), **environ}
        self._numbers = itertools.count(1)
        self.pods: list[Pod] = []
        self.leaving: list[Pod] = []
        self.left: list[Pod] = []

    @property
    def replicas(self) -> int:
        return len(self.pods)

    async def scale(self, replicas: int) -> None:
        """Start what is missing, or end what is too much."""
        for _ in range(replicas - len(self.pods)):
            number = next(self._numbers)
            name = f"pod-{number}"
            child = WorkerChild(self._system.settings, AGENTS, name, **self._environ)
            self.pods.append(Pod(name, number, child))
        if replicas < len(self.pods):
            await self._mark_costs()
            for pod in sorted(self.pods, key=leaving_order)[: len(self.pods) - replicas]:
                self._end(pod)

    async def _mark_costs(self) -> None:
        """Mark who is busy; while Redis can't be asked the marks stay as they are."""
        with contextlib.suppress(*TROUBLE):
            held: Counter[str] = Counter()
            for partition in self._system.queue.partitions:
                held.update({each.name: each.entries for each in await list_consumers(partition)})
            for pod in self.pods:
                pod.cost = int(held[pod.name] > 0) if self._costs else 0

    def _end(self, pod: Pod) -> None:
        self.pods.remove(pod)
        self.leaving.append(pod)
        pod.told_at = time.monotonic()
        pod.child.terminate()

    def tick(self) -> None:
        """Do what a kubelet does all the time: look at probes, and kill what has outlived its grace."""
        for pod in self.pods:
            pod.look()
            assert not pod.gone, f"{pod.name} died by itself:\n{pod.child.close()}"
        for pod in list(self.leaving):
            assert pod.told_at is not None
            if pod.gone:
                self.leaving.remove(pod)
                self.left.append(pod)
            elif not pod.killed and time.monotonic() - pod.told_at > self._grace_seconds:
                pod.killed = True
                pod.child.process.kill()

    def close(self) -> None:
        for pod in (*self.pods, *self.leaving, *self.left):
            print(f"--- {pod.name}\n{pod.child.close()}", file=sys.stderr)


class Cluster:
    """A ReplicaSet whose replicas a scaler decides about, by the real depth of the queue."""

    def __init__(self, system: System, pods: ReplicaSet, scaler: Scaler, *, speed: float) -> None:
        self._system = system
        self._scaler = scaler
        self.pods = pods
        self.speed = speed
        self.outages = 0
        self.longest_gap_seconds = 0.0
        """Between two looks at the pods and the rules: a machine without a CPU for us is late by so much."""
        self.curve: list[tuple[float, int]] = [(0.0, 0)]
        """The replicas from when on, in the time of the rules."""
        self.started = time.time()
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """The time of the rules."""
        return (time.monotonic() - self._began) * self.speed

    @property
    def most(self) -> int:
        return max(replicas for _, replicas in self.curve)

    async def run(self) -> None:
        """Scale until cancelled."""
        await self.pods.scale(self._scaler.first)
        looked = time.monotonic()
        while True:
            before, looked = looked, time.monotonic()
            self.longest_gap_seconds = max(self.longest_gap_seconds, looked - before)
            self.pods.tick()
            if self.now >= self._scaler.next_at:
                wanted = self._scaler.step(self.now, [await self._demand()], self.pods.replicas)
                if wanted != self.pods.replicas:
                    self.curve.append((self.now, wanted))
                    await self.pods.scale(wanted)
            await asyncio.sleep(min(_TICK_SECONDS, max((self._scaler.next_at - self.now) / self.speed, 0.0)))

    async def _demand(self) -> float | None:
        """What the scaler's trigger says; nothing while Redis can't be asked."""
        try:
            return (await needs(self._system.queue.redis, (self._system.queue,)))[0].depth
        except TROUBLE:
            self.outages += 1
            return None

    def replicas_at(self, at: float) -> int:
        return next(replicas for since, replicas in reversed(self.curve) if since <= at)


@contextlib.asynccontextmanager
async def running(
    system: System, ledger: Ledger, scaler: Scaler, *, speed: float, **pods: object
) -> AsyncIterator[Cluster]:
    """A cluster that scales meanwhile; whatever goes wrong in it, no process stays."""
    cluster = Cluster(system, ReplicaSet(system, ledger, **pods), scaler, speed=speed)  # type: ignore[arg-type]
    task = asyncio.create_task(cluster.run())
    try:
        yield cluster
        if task.done():
            task.result()
    except AssertionError as exc:
        exc.add_note(f"replicas were {cluster.curve}")
        raise
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        cluster.pods.close()


async def check_nothing_was_lost_or_doubled(system: System, ledger: Ledger, run_ids: Sequence[str]) -> int:
    """Every run has ended once, as its first attempt; return how often one was handed back on the way.

    What a worker began it has ended or handed back: nobody waited for a dead worker's lease.
    """
    handed_back = 0
    for run_id in run_ids:
        run = await system.ended(run_id, 60)
        events = Counter(await system.events(run_id))
        assert (run.status, run.attempt) == (Status.SUCCEEDED, 1), (run, events)
        assert (events["succeeded"], events["reclaimed"]) == (1, 0), events
        unfinished = len(ledger.lines("begin", run_id)) - len(ledger.lines("end", run_id))
        assert unfinished == events["handed_back"], (events, ledger.lines("", run_id))
        handed_back += unfinished
    ledger.check_nothing_ran_twice_under_one_fence()
    await system.nothing_left()
    return handed_back


async def check_everybody_left_politely(system: System, pods: ReplicaSet) -> None:
    """Who had to leave was not killed: it has said goodbye, and holds nothing any more."""
    assert not [pod.name for pod in pods.left if pod.killed]
    assert {pod.child.process.returncode for pod in pods.left if pod.ready_at is not None} <= {0}
    for partition in system.queue.partitions:
        there = {consumer.name for consumer in await list_consumers(partition)}
        assert not there & {pod.name for pod in pods.left}
