"""Rules for the number of replicas: KEDA with its HPA, the local autoscaler, or a fixed number.

They have a memory but no clock and no connections, so a simulation and a loop in real time drive them alike::

    while now < scaler.next_at: wait
    replicas = scaler.step(now, values, replicas)

``values`` are the triggers' metrics, in their order; None is a metric that could not be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.scaling.policy import Damper, workers_wanted
from holdfast_simulator.hpa import Hpa
from holdfast_simulator.spec import HPA_PERIOD_SECONDS, FallbackBehavior

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config.scaling import ScalingSettings
    from holdfast_simulator.spec import Fallback, KedaSpec, Trigger


class Scaler(Protocol):
    """Whoever decides about replicas."""

    @property
    def next_at(self) -> float:
        """When the next decision is due."""
        ...

    @property
    def first(self) -> int:
        """The number of replicas before the first decision."""
        ...

    def step(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Say how many replicas there should be from now on."""
        ...

    def wake(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Say the same because work has arrived, if that tells it anything."""
        ...


class Every:
    """Something that is done again and again; one that was late goes on from then, it does not catch up."""

    __slots__ = ("_seconds", "next_at")

    def __init__(self, seconds: float, first: float = 0.0) -> None:
        self._seconds = seconds
        self.next_at = first

    def due(self, now: float) -> bool:
        """Whether it is time, which it then is not again for a period."""
        if now < self.next_at:
            return False
        planned = self.next_at + self._seconds
        self.next_at = planned if planned > now else now + self._seconds
        return True


class Keda:
    """The operator (0 to 1 and N to 0, every pollingInterval) and the HPA (the rest, every 15 s)."""

    def __init__(self, spec: KedaSpec, *, started: float = 0.0) -> None:
        self._spec = spec
        self._hpa = Hpa(
            [trigger.target for trigger in spec.triggers],
            least=max(1, spec.min_replica_count),
            most=spec.max_replica_count,
            behavior=spec.behavior,
        )
        self._poll = Every(spec.polling_interval, started)
        self._sync = Every(HPA_PERIOD_SECONDS, started)
        self._last_active: float | None = None
        self._failures = [0] * len(spec.triggers)

    @property
    def next_at(self) -> float:
        """When the operator or the HPA looks next."""
        return min(self._poll.next_at, self._sync.next_at)

    @property
    def first(self) -> int:
        """As many as there are without work."""
        idle = self._spec.idle_replica_count
        return self._spec.min_replica_count if idle is None else idle

    def step(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Let the controllers that are due decide; in between nothing changes."""
        if self._poll.due(now):
            replicas = self._operate(now, values, replicas)
        if self._sync.due(now):
            replicas = self._autoscale(now, values, replicas)
        return replicas

    def wake(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Leave zero at once if a trigger that pushes is active; the others wait for the next poll."""
        metrics = zip(self._spec.triggers, values, strict=True)
        if any(trigger.push and _active(trigger, value) for trigger, value in metrics):
            return self._activated(now, replicas)
        return replicas

    def _operate(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        self._count(values)
        fallback = self._spec.fallback
        # KEDA 2.19 and later: a fallback that counts is activity, so it wakes from zero even without work.
        fallen_back = fallback is not None and fallback.replicas > 0 and self._failed(fallback)
        metrics = zip(self._spec.triggers, values, strict=True)
        if fallen_back or any(_active(trigger, value) for trigger, value in metrics):
            return self._activated(now, replicas)
        # An error is no reason to go to zero, except by a fallback that says so.
        if None in values and (fallback is None or fallback.replicas > 0):
            return replicas
        return self._deactivated(now, replicas)

    def _activated(self, now: float, replicas: int) -> int:
        self._last_active = now
        least = max(1, self._spec.min_replica_count)
        asleep = replicas == 0 or (self._spec.idle_replica_count is not None and replicas < least)
        return least if asleep else replicas

    def _deactivated(self, now: float, replicas: int) -> int:
        """Go to zero in one step once the cooldown is over: the HPA does every other step down."""
        least, idle = self._spec.min_replica_count, self._spec.idle_replica_count
        bottom = idle if idle is not None else 0 if least == 0 else None
        if bottom is None:
            return max(replicas, least)
        since = self._last_active
        cool = since is None or since + self._spec.cooldown_period < now
        return bottom if replicas > bottom and cool else replicas

    def _autoscale(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        if replicas in {0, self._spec.idle_replica_count}:
            return replicas
        self._count(values)
        return self._hpa.sync(now, self._supposed(values, replicas), replicas)

    def _count(self, values: Sequence[float | None]) -> None:
        """Count failures, of the operator's polls and the HPA's questions.

        Those of a push count, too: Redis is away, and our scalers answer that. Only while no scaler can be
        reached KEDA counts none (its issue 8056); that is not simulated.
        """
        for at, value in enumerate(values):
            self._failures[at] = self._failures[at] + 1 if value is None else 0

    def _failed(self, fallback: Fallback) -> bool:
        return any(failures > fallback.failure_threshold for failures in self._failures)

    def _supposed(self, values: Sequence[float | None], replicas: int) -> list[float | None]:
        """Put what makes the fallback's replicas in the place of a metric that failed too often."""
        fallback = self._spec.fallback
        if fallback is None:
            return list(values)
        wanted = _fallback_replicas(fallback, replicas)
        return [
            trigger.target * wanted if value is None and failures > fallback.failure_threshold else value
            for value, trigger, failures in zip(values, self._spec.triggers, self._failures, strict=True)
        ]


def _active(trigger: Trigger, value: float | None) -> bool:
    return value is not None and value > trigger.activation


def _fallback_replicas(fallback: Fallback, replicas: int) -> int:
    if fallback.behavior is FallbackBehavior.CURRENT:
        return replicas
    if fallback.behavior is FallbackBehavior.IF_HIGHER:
        return max(replicas, fallback.replicas)
    if fallback.behavior is FallbackBehavior.IF_LOWER:
        return min(replicas, fallback.replicas)
    return fallback.replicas


class Local:
    """The local autoscaler: up at once, down to the most that was needed in the last ``down_seconds``."""

    def __init__(
        self, scaling: ScalingSettings, slots: int, *, started: float = 0.0, every: float = 1.0
    ) -> None:
        self._scaling, self._slots = scaling, slots
        self._damper = Damper(scaling.down_seconds)
        self._look = Every(every, started)

    @property
    def next_at(self) -> float:
        """When it looks next."""
        return self._look.next_at

    @property
    def first(self) -> int:
        """As many as stay when there is no work."""
        return self._scaling.min_workers

    def step(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Follow the first value, which is the demand; while it is unknown, all that are there are needed."""
        if not self._look.due(now):
            return replicas
        demand = values[0]
        wanted = replicas if demand is None else workers_wanted(demand, self._slots, self._scaling)
        followed = self._damper.follow(now, wanted)
        return replicas if demand is None else followed

    def wake(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Have the first one at once: what else is needed it sees when it looks, within a second."""
        if values[0] is None:  # without Redis there are no notifications of arrivals either
            return replicas
        return max(replicas, self._damper.follow(now, min(1, self._scaling.max_workers)))


class Fixed:
    """Nobody decides: there are always as many."""

    next_at = float("inf")

    def __init__(self, replicas: int) -> None:
        self.first = replicas

    def step(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Leave it as it is."""
        del now, values
        return replicas

    def wake(self, now: float, values: Sequence[float | None], replicas: int) -> int:
        """Leave it as it is."""
        del now, values
        return replicas
