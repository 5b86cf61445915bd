"""Counters and histograms for the hot path: plain additions, and Prometheus families only at a scrape.

A child is written by one thread only (the worker's event loop), so it needs no lock; a scrape in
another thread may miss the last addition.
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


class FastCounter(Collector):
    """A counter metric made of :class:`Count` children."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._family = (name, text, labels)
        self._children: dict[tuple[str, ...], Count] = {}

    def child(self, *labels: str) -> Count:
        """Return the counter of these label values; keep it, as the lookup is slow."""
        return self._children.setdefault(labels, Count())

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the family for Prometheus."""
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
        """Return the histogram of these label values; keep it, as the lookup is slow."""
        return self._children.setdefault(labels, Tally(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the family for Prometheus, with cumulative buckets."""
        name, text, labels = self._family
        family = HistogramMetricFamily(name, text, labels=labels)
        for values, tally in self._children.copy().items():
            buckets = list(zip(self._edges, accumulate(tally.counts), strict=True))
            family.add_metric(values, buckets, tally.total)
        yield family


class Snapshot(Collector):
    """A gauge of objects that come and go: all values are replaced at once, so none outlives its object."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._family = (name, text, labels)
        self._values: Mapping[tuple[str, ...], float] = {}

    def show(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Replace all values."""
        self._values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the family for Prometheus."""
        name, text, labels = self._family
        family = GaugeMetricFamily(name, text, labels=labels)
        for key, value in self._values.items():
            family.add_metric(key, value)
        yield family
