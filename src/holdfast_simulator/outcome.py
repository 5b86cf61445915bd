"""What came of a simulation: how long runs waited, how many workers that took, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast_simulator.engine import Simulation
    from holdfast_simulator.policies import Policy
    from holdfast_simulator.world import World


class Sample(msgspec.Struct, frozen=True):
    """How it was at one moment."""

    at: float
    replicas: int
    ready: int
    waiting: int
    in_flight: int


class Waits(msgspec.Struct, frozen=True):
    """Seconds that runs waited for their first start; one that never started counts with its wait so far."""

    mean: float
    p50: float
    p95: float
    p99: float
    most: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one policy."""

    policy: str
    runs: int
    ended: int
    seconds: float
    slots: int
    replicas_mean: float
    replicas_most: int
    queue_most: int
    wait_seconds: Waits
    worker_hours: float
    cost: float
    used: float
    """Share of the paid slots' time in which a run was done."""
    scaled_up: int
    scaled_down: int
    handed_back: int
    crashes: int
    reclaimed: int
    repeated_seconds: float
    samples: list[Sample]

    @property
    def unfinished(self) -> int:
        """Runs that had not ended when it was given up."""
        return self.runs - self.ended


def outcome_of(done: Simulation, policy: Policy, world: World, *, slots: int) -> Outcome:
    """Sum up a simulation that has ended."""
    hours = done.worker_seconds / 3600
    paid = done.worker_seconds * slots
    return Outcome(
        policy=policy.name,
        runs=len(done.waited),
        ended=done.ended,
        seconds=done.now,
        slots=slots,
        replicas_mean=done.replica_seconds / done.now if done.now else float(done.replicas),
        replicas_most=done.replicas_most,
        queue_most=done.queue_most,
        wait_seconds=waits_of(sorted(done.waited)),
        worker_hours=hours,
        cost=hours * world.price_per_hour,
        used=min(done.busy_seconds / paid, 1.0) if paid else 0.0,
        scaled_up=done.ups,
        scaled_down=done.downs,
        handed_back=done.handed_back,
        crashes=done.crashes,
        reclaimed=done.reclaimed,
        repeated_seconds=done.repeated_seconds,
        samples=done.samples,
    )


def waits_of(ordered: Sequence[float]) -> Waits:
    """The shares of waits that are in order."""
    if not ordered:
        return Waits(0.0, 0.0, 0.0, 0.0, 0.0)

    def at(share: float) -> float:
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

    return Waits(sum(ordered) / len(ordered), at(0.5), at(0.95), at(0.99), ordered[-1])
