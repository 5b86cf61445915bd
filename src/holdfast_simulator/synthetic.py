"""Traces that nobody recorded: ``synthetic:poisson?rate=2&duration=30&for=1h``; chance is in the seed."""

from __future__ import annotations

import math
import random
from array import array
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

import msgspec

from holdfast.config.durations import DAY, parse_duration, parse_number
from holdfast.errors import InputError
from holdfast_simulator.traces import LONGEST_SECONDS, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX: Final = "synthetic:"
_MOST_RUNS: Final = 20_000_000
_SHAPES: Final = ("exponential", "constant", "lognormal")


class Wanted(msgspec.Struct, frozen=True):
    """What was asked for; rates are runs a second, times are seconds."""

    rate: float = 1.0
    duration: float = 30.0
    shape: str = "exponential"
    sigma: float = 1.0
    """Of the lognormal: 1 is heavy-tailed, with a mean of 1.6 medians."""
    length: float = 3600.0
    peak: float = 0.0
    """The highest rate of a day, or the rate after a step; four times ``rate`` if it is not given."""
    runs: int = 1000
    """How many come with a burst."""
    at: float = -1.0
    """When the burst or the step comes; halfway if it is not given."""

    @property
    def top(self) -> float:
        """The highest rate."""
        return self.peak or 4 * self.rate

    @property
    def turn(self) -> float:
        """When it changes."""
        return self.at if self.at >= 0 else self.length / 2


def synthetic_trace(text: str, seed: int) -> Trace:
    """Make the trace that ``synthetic:KIND?key=value&…`` describes."""
    kind, _, query = text.removeprefix(PREFIX).partition("?")
    if kind not in _KINDS:
        raise InputError(f"there is no synthetic trace {kind[:40]!r}: there are {', '.join(_KINDS)}")
    wanted = _read(query, text, Wanted(length=float(DAY)) if kind == "diurnal" else Wanted())
    _check_times(wanted, text)
    expected = (
        max(wanted.rate, wanted.top if kind in {"diurnal", "step"} else 0.0) * wanted.length + wanted.runs
    )
    if expected > _MOST_RUNS:
        raise InputError(
            f"{text[:80]!r} may have {expected:,.0f} runs: at most {_MOST_RUNS:,} can be simulated"
        )
    rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    arrivals = array("d", _KINDS[kind](wanted, rng))
    draw = _durations(wanted, rng)
    return Trace(arrivals, array("d", [draw() for _ in arrivals]), None, wanted.length)


def _check_times(wanted: Wanted, text: str) -> None:
    if wanted.length > LONGEST_SECONDS:
        raise InputError(
            f"{text[:80]!r} takes longer than {LONGEST_SECONDS / DAY:,.0f} days: say less by for="
        )
    if wanted.at > wanted.length:
        raise InputError(f"{text[:80]!r} changes after its end: at= must not be later than for=")


def _poisson(rate: float, begin: float, end: float, rng: random.Random) -> Iterator[float]:
    at = begin
    while rate > 0:
        at += rng.expovariate(rate)
        if at >= end:
            return
        yield at


def _steady(wanted: Wanted, rng: random.Random) -> Iterator[float]:
    return _poisson(wanted.rate, 0.0, wanted.length, rng)


def _step(wanted: Wanted, rng: random.Random) -> Iterator[float]:
    yield from _poisson(wanted.rate, 0.0, wanted.turn, rng)
    yield from _poisson(wanted.top, wanted.turn, wanted.length, rng)


def _burst(wanted: Wanted, rng: random.Random) -> Iterator[float]:
    before = list(_poisson(wanted.rate, 0.0, wanted.length, rng))
    return iter(sorted([*before, *[wanted.turn] * wanted.runs]))


def _diurnal(wanted: Wanted, rng: random.Random) -> Iterator[float]:
    """From ``rate`` at midnight to ``peak`` at noon and back, every day: thinned from the peak."""
    low, top = wanted.rate, max(wanted.top, wanted.rate)
    for at in _poisson(top, 0.0, wanted.length, rng):
        now = low + (top - low) * (1 - math.cos(2 * math.pi * at / DAY)) / 2
        if rng.random() * top < now:
            yield at


_KINDS: Final[dict[str, Callable[[Wanted, random.Random], Iterator[float]]]] = {
    "poisson": _steady,
    "diurnal": _diurnal,
    "burst": _burst,
    "step": _step,
}


def _durations(wanted: Wanted, rng: random.Random) -> Callable[[], float]:
    """Lengths with the mean that was asked for, whatever their shape."""
    mean = wanted.duration
    if wanted.shape == "constant" or not mean:
        return lambda: mean
    if wanted.shape == "exponential":
        return lambda: rng.expovariate(1 / mean)
    mu = math.log(mean) - wanted.sigma**2 / 2
    return lambda: rng.lognormvariate(mu, wanted.sigma)


def _read(query: str, text: str, defaults: Wanted) -> Wanted:
    named = {"for": "length"}
    found: dict[str, float | int | str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        name = named.get(key, key)
        if key == "length" or name not in Wanted.__struct_fields__:
            known = "rate, duration, shape, sigma, for, peak, runs, at"
            raise InputError(f"{text[:80]!r}: there is no {key[:20]!r}; there are {known}")
        found[name] = _value(name, key, value)
    return msgspec.structs.replace(defaults, **found)


def _value(name: str, key: str, value: str) -> float | int | str:
    if name == "shape":
        if value not in _SHAPES:
            raise InputError(f"shape {value[:20]!r} is not one of {', '.join(_SHAPES)}")
        return value
    timed = name in {"duration", "length", "at"}
    number = parse_duration(value, unit="s") if timed else parse_number(value)
    if number is None or number < 0 or (name == "length" and not number):
        raise InputError(f"{key}={value[:20]} is not a {'time like 30s' if timed else 'number'} of 0 or more")
    return int(number) if name == "runs" else number
