"""Counters and histograms for the hot path: plain additions now, Prometheus families when somebody scrapes.

A child is written by one thread only (the worker's event loop), so it needs no lock; a scrape from
another thread may read it a moment early, never wrongly for long.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Count:
    """One counter of one label set."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Add ``amount``."""
        self.value += amount


class Tally:
    """One histogram of one label set."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Counts(Collector):
    """A counter metric made of :class:`Count` children."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._family = (name, text, labels)
        self._children: dict[tuple[str, ...], Count] = {}

    def child(self, *labels: str) -> Count:
        """The counter of these label values; keep it, the lookup is the expensive part."""
        return self._children.setdefault(labels, Count())

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Give Prometheus what has been counted so far."""
        name, text, labels = self._family
        family = CounterMetricFamily(name, text, labels=labels)
        # A copy, because the event loop may add a child while a scrape walks them.
        for values, count in self._children.copy().items():
            family.add_metric(values, count.value)
        yield family


class Tallies(Collector):
    """A histogram metric made of :class:`Tally` children."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._family = (name, text, labels)
        self._bounds = tuple(bounds)
        self._edges = [*(f"{float(bound)}" for bound in bounds), "+Inf"]
        self._children: dict[tuple[str, ...], Tally] = {}

    def child(self, *labels: str) -> Tally:
        """The histogram of these label values; keep it, the lookup is the expensive part."""
        return self._children.setdefault(labels, Tally(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Give Prometheus what has been counted so far, cumulated as it wants it."""
        name, text, labels = self._family
        family = HistogramMetricFamily(name, text, labels=labels)
        for values, tally in self._children.copy().items():
            buckets = list(zip(self._edges, accumulate(tally.counts), strict=True))
            family.add_metric(values, buckets, tally.total)
        yield family


class Snapshot(Collector):
    """A gauge of things that come and go: all its values are replaced at once, so none outlives its thing."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._family = (name, text, labels)
        self._values: Mapping[tuple[str, ...], float] = {}

    def show(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Have these be all the values from now on."""
        self._values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Give Prometheus what was last shown."""
        name, text, labels = self._family
        family = GaugeMetricFamily(name, text, labels=labels)
        for key, value in self._values.items():
            family.add_metric(key, value)
        yield family
