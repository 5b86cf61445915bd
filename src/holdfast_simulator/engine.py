"""The world that a scaler decides about: runs arrive, wait in lanes, take the slots of workers, and end.

A discrete-event simulation: time jumps from one event to the next. A run is a number, its facts are in
arrays; what is drawn comes from one seeded generator, so the same seed gives the same outcome.
"""

from __future__ import annotations

import enum
import random
from array import array
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from holdfast.runs.partition import Depth
from holdfast.scaling.policy import demand
from holdfast_simulator.marking import NO_LAG, Mark
from holdfast_simulator.outcome import Outcome, Sample, outcome_of
from holdfast_simulator.rules import Keda
from holdfast_simulator.spec import Lane, Metric
from holdfast_simulator.world import is_readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast_simulator.marking import Lag
    from holdfast_simulator.policies import Policy
    from holdfast_simulator.spec import Trigger
    from holdfast_simulator.traces import Trace
    from holdfast_simulator.world import World

_NEVER: Final = float("inf")
_WAITING: Final = -1
_ENDED: Final = -2
_SAMPLES: Final = 600
_HOUR: Final = 3600.0
_LANES: Final = {lane: at for at, lane in enumerate(Lane)}
_RETURNED: Final = _LANES[Lane.RETURNED]
_NORMAL: Final = _LANES[Lane.NORMAL]


class Phase(enum.IntEnum):
    """Where a pod is in its life; the first ones leave first."""

    PENDING = 0
    STARTING = 1
    READY = 2
    DRAINING = 3
    GONE = 4


class Worker:
    """One pod."""

    __slots__ = ("mark", "number", "phase", "placed_at", "ready_at", "runs")

    def __init__(self, number: int, lag: Lag = NO_LAG) -> None:
        self.number = number
        self.mark = Mark(lag)
        self.phase = Phase.PENDING
        self.placed_at = _NEVER
        self.ready_at = _NEVER
        self.runs: set[int] = set()


def leaving_order(worker: Worker, cost: int) -> tuple[int, int, float, int]:
    """Sort by whom a ReplicaSet ends first: not placed, not ready, cheap to delete, newly ready, new."""
    return (worker.phase, cost, -worker.ready_at, -worker.number)


class Simulation:
    """One policy on one trace in one world."""

    def __init__(self, trace: Trace, policy: Policy, world: World) -> None:
        self._trace, self._policy, self._world = trace, policy, world
        self._scaler = policy.scaler(world)
        self._slots = policy.slots_in(world)
        self._scaling = policy.scaling_in(world)
        # The local autoscaler asks its workers when it chooses; a ReplicaSet reads what was written to pods.
        self._lag = world.cost_lag if isinstance(self._scaler, Keda) else NO_LAG
        self._rng = random.Random(world.seed)  # noqa: S311 - a simulation, not a secret
        self.now = 0.0
        self._arrival = _NEVER
        self._agenda: list[tuple[float, int, Callable[..., None], object]] = []
        self._planned = 0
        # Of runs: how much is left, when it began, who has it, how long it waited for its first start.
        runs = len(trace.arrivals)
        self._left = array("d", trace.durations)
        self._began = array("d", bytes(8 * runs))
        self._owner = array("l", [_WAITING]) * runs
        self.waited = array("d", [-1.0]) * runs
        self._queued_at = array("d", trace.arrivals)
        self._finishes: list[tuple[float, int, int]] = []
        self._lanes: tuple[deque[int], ...] = (deque(), deque(), deque(), deque())
        self._lane = array("b", bytes(runs))
        self._flying = [0, 0, 0, 0]
        self._free: deque[Worker] = deque()
        self._workers: list[Worker] = []
        self._pods: dict[int, Worker] = {}
        # Counts, for the metrics and the outcome.
        self.waiting = self.pending = self.ended = self.queue_most = 0
        self._last_deleted = self._deleted = self._entries = 0
        self._entry = array("q", bytes(8 * runs))
        self.replicas = self._scaler.first
        self.replicas_most = self.replicas
        self.replica_seconds = self.worker_seconds = self.busy_seconds = self.repeated_seconds = 0.0
        self.ups = self.downs = self.handed_back = self.reclaimed = self.crashes = 0
        self._changed_at = 0.0
        self.samples: list[Sample] = []

    # -- time

    def run(self) -> Outcome:
        """Let it all happen."""
        self._begin()
        arrivals, finishes, agenda = self._trace.arrivals, self._finishes, self._agenda
        coming, total = 0, len(arrivals)
        self._arrival = arrival = arrivals[0] if total else _NEVER
        while True:
            finish = finishes[0][0] if finishes else _NEVER
            planned = agenda[0][0]
            if finish <= arrival and finish <= planned:
                self.now, run, number = heappop(finishes)
                if self._owner[run] == number:  # else it has moved to another worker since
                    self._finish(run, self._workers[number])
            elif arrival <= planned:
                self.now = arrival
                self._arrive(coming)
                coming += 1
                self._arrival = arrival = arrivals[coming] if coming < total else _NEVER
            else:
                self.now, _, action, about = heappop(agenda)
                action(about)
                if coming == total and self._over():
                    return self._close()

    def _begin(self) -> None:
        for _ in range(self.replicas):
            worker = self._hire()
            worker.placed_at = 0.0
            self._ready(worker)
        self._plan(self._scaler.next_at, self._control, None)
        self._plan(0.0, self._sample, max(self._trace.seconds / _SAMPLES, 1.0))

    def _plan(self, at: float, action: Callable[..., None], about: object) -> None:
        if at < _NEVER:
            heappush(self._agenda, (at, self._planned, action, about))
            self._planned += 1

    def _over(self) -> bool:
        past = self.now - self._trace.seconds
        done = self.ended == len(self.waited)
        return past >= self._world.patience_seconds or (done and past >= self._world.tail_seconds)

    def _close(self) -> Outcome:
        self._account()
        for worker in self._workers:
            if worker.phase is not Phase.GONE:
                self._leave(worker)
        for run, waited in enumerate(self.waited):
            if waited < 0:  # it waits still: this long at least
                self.waited[run] = self.now - self._trace.arrivals[run]
        return outcome_of(self, self._policy, self._world, slots=self._slots)

    # -- runs

    def _arrive(self, run: int) -> None:
        self._entry[run] = self._entries
        self._entries += 1
        lane = _NORMAL if self._trace.lanes is None else self._trace.lanes[run]
        self._lanes[lane].append(run)
        self.waiting += 1
        self._dispatch()
        self.queue_most = max(self.queue_most, self.waiting)
        if self.replicas == 0:
            self._scale(self._scaler.wake(self.now, self._values(), 0))

    def _dispatch(self) -> None:
        """Give waiting runs to workers with a free slot."""
        free = self._free
        while self.waiting and free:
            worker = free.popleft()
            if worker.phase is Phase.READY:
                self._start(worker)

    def _start(self, worker: Worker) -> None:
        for at, lane in enumerate(self._lanes):
            if lane:
                run = lane.popleft()
                self._lane[run] = at
                self._flying[at] += 1
                break
        else:
            return
        now = self.now
        self.waiting -= 1
        self.pending += 1
        self._owner[run] = worker.number
        self._began[run] = now
        if self.waited[run] < 0:
            self.waited[run] = now - self._trace.arrivals[run]
        worker.runs.add(run)
        heappush(self._finishes, (now + self._left[run], run, worker.number))

    def _finish(self, run: int, worker: Worker) -> None:
        self._owner[run] = _ENDED
        self.pending -= 1
        self.ended += 1
        self.busy_seconds += self.now - self._began[run]
        self._delete(run)
        self._cost(worker)
        worker.runs.discard(run)
        if worker.phase is Phase.READY:
            if self.waiting:
                self._start(worker)
            else:
                self._free.append(worker)
        elif not worker.runs:
            self._leave(worker)

    def _delete(self, run: int) -> None:
        self._flying[self._lane[run]] -= 1
        self._deleted += 1
        self._last_deleted = max(self._last_deleted, self._entry[run])

    def _stop(self, run: int) -> None:
        """Write down how far a run got that its worker will not end."""
        self._owner[run] = _WAITING
        done = self.now - self._began[run]
        self.busy_seconds += done
        if self._world.checkpoints:
            self._left[run] = max(self._left[run] - done, 0.0)
        else:
            self.repeated_seconds += done

    def _requeue(self, run: int) -> None:
        """Put a run in front: it is added again, as a new entry."""
        self._delete(run)
        self._entry[run] = self._entries
        self._entries += 1
        self._queued_at[run] = self.now
        self._lanes[_RETURNED].append(run)
        self.pending -= 1
        self.waiting += 1

    # -- workers

    def _hire(self) -> Worker:
        worker = Worker(len(self._workers), self._lag)
        self._workers.append(worker)
        self._pods[worker.number] = worker
        return worker

    def _place(self, worker: Worker) -> None:
        if worker.phase is Phase.PENDING:
            worker.phase, worker.placed_at = Phase.STARTING, self.now
            self._plan(self.now + self._world.startup.draw(self._rng), self._ready, worker)

    def _ready(self, worker: Worker) -> None:
        if worker.phase > Phase.STARTING:
            return
        worker.phase, worker.ready_at = Phase.READY, self.now
        self._free.extend([worker] * self._slots)
        if self._world.crashes_per_hour:
            after = self._rng.expovariate(self._world.crashes_per_hour / 3600)
            self._plan(self.now + after, self._crash, worker)
        self._dispatch()

    def _drain(self, worker: Worker) -> None:
        """SIGTERM: it reads no more, and has a while for what it is doing."""
        del self._pods[worker.number]
        if not worker.runs:
            self._leave(worker)
            return
        worker.phase = Phase.DRAINING
        self._plan(self.now + self._world.drain_seconds, self._hand_back, worker)

    def _hand_back(self, worker: Worker) -> None:
        if worker.phase is not Phase.DRAINING:
            return
        self.handed_back += len(worker.runs)
        for run in sorted(worker.runs):
            self._stop(run)
            self._requeue(run)
        self._leave(worker)
        self._dispatch()

    def _crash(self, worker: Worker) -> None:
        if worker.phase not in {Phase.READY, Phase.DRAINING}:
            return
        self.crashes += 1
        for run in worker.runs:
            self._stop(run)
        self._plan(self.now + self._world.lease_seconds, self._reclaim, worker)
        if worker.phase is Phase.READY:  # the kubelet starts its container again, in the same place
            del self._pods[worker.number]
            again = self._hire()
            again.phase, again.placed_at = Phase.STARTING, self.now
            self._plan(self.now + self._world.startup.draw(self._rng), self._ready, again)
        self._leave(worker)

    def _reclaim(self, worker: Worker) -> None:
        """Nobody has renewed these leases for a while: the runs are anybody's."""
        self.reclaimed += len(worker.runs)
        for run in sorted(worker.runs):
            self._requeue(run)
        self._dispatch()

    def _leave(self, worker: Worker) -> None:
        worker.phase = Phase.GONE
        self.worker_seconds += max(self.now - worker.placed_at, 0.0)

    # -- scaling

    def _control(self, about: None) -> None:
        self._scale(self._scaler.step(self.now, self._values(), self.replicas))
        self._plan(self._scaler.next_at + self._idle_seconds(), self._control, about)

    def _idle_seconds(self) -> float:
        """Whole hours in which nothing is to be decided: the times of polls stay the same."""
        still = self.replicas == self._scaler.first and not (self.waiting or self.pending)
        if not still or self._world.outages or self._arrival == _NEVER:
            return 0.0
        return max(self._arrival - self._scaler.next_at, 0.0) // _HOUR * _HOUR

    def _values(self) -> list[float | None]:
        return [self._value(trigger) for trigger in self._policy.triggers]

    def _value(self, trigger: Trigger) -> float | None:
        """What a trigger would read in Redis now."""
        if not is_readable(self.now, self._world.outages):
            return None
        if trigger.metric is Metric.DEPTH:
            depth = Depth(self.waiting, self.pending, 0, 0, 0, self._oldest_seconds(), len(self._pods))
            return demand(depth, self._scaling, self._slots)
        waiting, pending = self._seen(trigger.lane)
        if trigger.metric is Metric.STREAM_LENGTH:
            return float(waiting + pending)
        if trigger.metric is Metric.PENDING:
            return float(pending)
        # Redis can't tell how many are left once a younger entry was deleted before an older one.
        unknown = waiting and self._deleted != self._last_deleted + 1 and self._deleted
        return float(trigger.null_lag if unknown else waiting)

    def _seen(self, lane: Lane | None) -> tuple[int, int]:
        """How many wait and are in flight, in one stream or in all."""
        if lane is None:
            return self.waiting, self.pending
        at = _LANES[lane]
        return len(self._lanes[at]), self._flying[at]

    def _oldest_seconds(self) -> float:
        heads = [self._queued_at[lane[0]] for lane in self._lanes if lane]
        return self.now - min(heads) if heads else 0.0

    def _scale(self, wanted: int) -> None:
        if wanted == self.replicas:
            return
        self._account()
        if wanted > self.replicas:
            self.ups += 1
            for _ in range(wanted - self.replicas):
                self._plan(self.now + self._world.scheduling.draw(self._rng), self._place, self._hire())
        else:
            self.downs += 1
            for worker in sorted(self._pods.values(), key=self._leaving)[: self.replicas - wanted]:
                self._drain(worker)
        self.replicas = wanted
        self.replicas_most = max(self.replicas_most, wanted)

    def _leaving(self, worker: Worker) -> tuple[int, int, float, int]:
        return leaving_order(worker, self._cost(worker))

    def _cost(self, worker: Worker) -> int:
        """What the deletion of this pod costs, as far as it is written down."""
        if not self._world.deletion_cost:
            return 0
        return worker.mark.cost(self.now, [self._began[run] for run in worker.runs])

    def _account(self) -> None:
        self.replica_seconds += self.replicas * (self.now - self._changed_at)
        self._changed_at = self.now

    def _sample(self, every: float) -> None:
        ready = sum(1 for pod in self._pods.values() if pod.phase is Phase.READY)
        self.samples.append(Sample(self.now, self.replicas, ready, self.waiting, self.pending))
        self._plan(self.now + every, self._sample, every)
