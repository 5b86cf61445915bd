"""Traces from a formula, ``synthetic:poisson?rate=2&duration=30&for=1h``: the same seed, the same trace."""

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


class TraceOptions(msgspec.Struct, frozen=True):
    """The parameters of a trace; rates are runs a second, times are seconds."""

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
    options = _read(query, text, TraceOptions(length=float(DAY)) if kind == "diurnal" else TraceOptions())
    _check_times(options, text)
    expected = (
        max(options.rate, options.top if kind in {"diurnal", "step"} else 0.0) * options.length + options.runs
    )
    if expected > _MOST_RUNS:
        raise InputError(
            f"{text[:80]!r} may have {expected:,.0f} runs: at most {_MOST_RUNS:,} can be simulated"
        )
    rng = random.Random(seed)  # noqa: S311 - a simulation, not a secret
    arrivals = array("d", _KINDS[kind](options, rng))
    draw = _durations(options, rng)
    return Trace(arrivals, array("d", [draw() for _ in arrivals]), None, options.length)


def _check_times(options: TraceOptions, text: str) -> None:
    if options.length > LONGEST_SECONDS:
        raise InputError(
            f"{text[:80]!r} takes longer than {LONGEST_SECONDS / DAY:,.0f} days: say less by for="
        )
    if options.at > options.length:
        raise InputError(f"{text[:80]!r} changes after its end: at= must not be later than for=")


def _poisson(rate: float, begin: float, end: float, rng: random.Random) -> Iterator[float]:
    at = begin
    while rate > 0:
        at += rng.expovariate(rate)
        if at >= end:
            return
        yield at


def _steady(options: TraceOptions, rng: random.Random) -> Iterator[float]:
    return _poisson(options.rate, 0.0, options.length, rng)


def _step(options: TraceOptions, rng: random.Random) -> Iterator[float]:
    yield from _poisson(options.rate, 0.0, options.turn, rng)
    yield from _poisson(options.top, options.turn, options.length, rng)


def _burst(options: TraceOptions, rng: random.Random) -> Iterator[float]:
    before = list(_poisson(options.rate, 0.0, options.length, rng))
    return iter(sorted([*before, *[options.turn] * options.runs]))


def _diurnal(options: TraceOptions, rng: random.Random) -> Iterator[float]:
    """From ``rate`` at midnight to ``peak`` at noon and back, every day: thinned from the peak."""
    low, top = options.rate, max(options.top, options.rate)
    for at in _poisson(top, 0.0, options.length, rng):
        now = low + (top - low) * (1 - math.cos(2 * math.pi * at / DAY)) / 2
        if rng.random() * top < now:
            yield at


_KINDS: Final[dict[str, Callable[[TraceOptions, random.Random], Iterator[float]]]] = {
    "poisson": _steady,
    "diurnal": _diurnal,
    "burst": _burst,
    "step": _step,
}


def _durations(options: TraceOptions, rng: random.Random) -> Callable[[], float]:
    """Return a function that draws durations with this mean, whatever their shape."""
    mean = options.duration
    if options.shape == "constant" or not mean:
        return lambda: mean
    if options.shape == "exponential":
        return lambda: rng.expovariate(1 / mean)
    mu = math.log(mean) - options.sigma**2 / 2
    return lambda: rng.lognormvariate(mu, options.sigma)


def _read(query: str, text: str, defaults: TraceOptions) -> TraceOptions:
    named = {"for": "length"}
    found: dict[str, float | int | str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        name = named.get(key, key)
        if key == "length" or name not in TraceOptions.__struct_fields__:
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
