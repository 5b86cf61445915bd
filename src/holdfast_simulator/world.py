"""What the simulated workers are like: how many runs they do, how they start, leave, crash, and cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from holdfast.config import Settings
from holdfast.config.durations import HOW_TO_WRITE, parse_duration
from holdfast.config.scaling import ScalingSettings
from holdfast.errors import InputError
from holdfast_simulator.marking import Lag, lag_of

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence


class Spread(msgspec.Struct, frozen=True):
    """A length of time that differs: between two bounds, or lognormal around a median."""

    low: float
    high: float
    sigma: float = 0.0

    def draw(self, rng: random.Random) -> float:
        """Return one of its values; the same seed gives the same ones."""
        if self.sigma:
            return rng.lognormvariate(math.log(self.low), self.sigma)
        return self.low if self.low == self.high else rng.uniform(self.low, self.high)


def parse_spread(text: str, option: str) -> Spread:
    """Read ``8s``, ``5s..20s`` or ``8s~0.4`` (lognormal: its median and its sigma)."""
    low, dots, high = text.partition("..")
    median, tilde, sigma = text.partition("~")
    try:
        if tilde:
            spread = Spread(_seconds(median), _seconds(median), float(sigma))
        else:
            spread = Spread(_seconds(low), _seconds(high if dots else low))
    except ValueError:
        spread = Spread(-1, -1)
    if not 0 <= spread.low <= spread.high or not 0 <= spread.sigma <= 5 or (tilde and not spread.low):
        raise InputError(
            f"{option} {text[:40]!r} is not a time: write {HOW_TO_WRITE}, a range like 5s..20s, or a median "
            "with the sigma of a lognormal, like 8s~0.4"
        )
    return spread


def _seconds(text: str) -> float:
    seconds = parse_duration(text, unit="s")
    return -1.0 if seconds is None else seconds


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the trace and the policy."""

    slots: Annotated[int, Meta(ge=1)] = 3
    scaling: ScalingSettings = ScalingSettings()
    """How runs weigh by their age, in the depth that KEDA reads."""
    scheduling: Spread = Spread(1.0, 1.0)
    """From the wish for a pod to its place on a node; it costs from then on."""
    startup: Spread = Spread(5.0, 5.0)
    """From there until it reads the queue."""
    drain_seconds: float = 25.0
    """How long a worker that must leave may finish its runs; then it hands them back."""
    lease_seconds: float = 30.0
    """How long a dead worker's runs wait before another takes them."""
    checkpoints: bool = True
    """Whether a run that moves goes on where it was, or from its start."""
    crashes_per_hour: float = 0.0
    """Of one worker."""
    deletion_cost: bool = True
    """Whether busy workers are marked, so that the idle ones leave first."""
    cost_lag: Lag = lag_of(Settings())
    """How late pods show who is busy."""
    price_per_hour: float = 0.0
    outages: tuple[tuple[float, float], ...] = ()
    """When the metric can't be read: from, until."""
    tail_seconds: float = 600.0
    """How long to go on after the last arrival, at least."""
    patience_seconds: float = 21_600.0
    """How long to go on after the last arrival, at most: a policy may never finish."""
    seed: int = 1


def is_readable(now: float, outages: Sequence[tuple[float, float]]) -> bool:
    """Whether the metric answers now."""
    return not any(begin <= now < end for begin, end in outages)
