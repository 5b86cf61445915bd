"""Declarations of metrics: attributes of classes, under the names of the metrics, made for each process.

``runs_claimed: FastCounter = counts("Attempts started by this worker.", "queue", "agent")``
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge, Histogram

from holdfast.telemetry.fast_metrics import FastCounter, Snapshot, Tallies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client import CollectorRegistry

NAMESPACE = "holdfast"
# An agent may answer from a cache or run for an hour.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
# A renewal is one script call; the relevant values are those near the trust window.
RENEWAL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# A lookup in the registry is one round trip.
LOOKUP_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
BATCH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


@dataclass(frozen=True, slots=True)
class Declared:
    """The row of one metric on the reference page."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared metric: ``make`` creates it, from its name and a registry."""

    kind: str
    text: str
    labels: tuple[str, ...]
    make: Callable[[str, CollectorRegistry], Any]

    def declared(self, name: str) -> Declared:
        """Return the row of the reference page under that name."""
        suffix = "_total" if self.kind == "counter" else ""
        return Declared(f"{NAMESPACE}_{name}{suffix}", self.kind, self.labels, self.text)


def declarations(area: type) -> Iterator[tuple[str, Declaration]]:
    """Yield every metric that a class declares, in order, with its name."""
    for name, value in vars(area).items():
        if isinstance(value, Declaration):
            yield name, value


# They return Any, like a dataclass's ``field``: the type of the attribute is its annotation.


def counter(text: str, *labels: str) -> Any:
    """Declare a counter."""

    def make(name: str, registry: CollectorRegistry) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=registry)

    return Declaration("counter", text, labels, make)


def gauge(text: str, *labels: str) -> Any:
    """Declare a gauge."""

    def make(name: str, registry: CollectorRegistry) -> Gauge:
        return Gauge(name, text, labels, namespace=NAMESPACE, registry=registry)

    return Declaration("gauge", text, labels, make)


def histogram(text: str, *labels: str, buckets: Sequence[float]) -> Any:
    """Declare a histogram."""

    def make(name: str, registry: CollectorRegistry) -> Histogram:
        return Histogram(name, text, labels, namespace=NAMESPACE, registry=registry, buckets=buckets)

    return Declaration("histogram", text, labels, make)


def counts(text: str, *labels: str) -> Any:
    """Declare a counter of the hot path."""

    def make(name: str, registry: CollectorRegistry) -> FastCounter:
        collector = FastCounter(f"{NAMESPACE}_{name}", text, labels)
        registry.register(collector)
        return collector

    return Declaration("counter", text, labels, make)


def tallies(text: str, *labels: str, buckets: Sequence[float]) -> Any:
    """Declare a histogram of the hot path."""

    def make(name: str, registry: CollectorRegistry) -> Tallies:
        collector = Tallies(f"{NAMESPACE}_{name}", text, labels, buckets)
        registry.register(collector)
        return collector

    return Declaration("histogram", text, labels, make)


def snapshot(text: str, *labels: str) -> Any:
    """Declare a gauge of objects that come and go."""

    def make(name: str, registry: CollectorRegistry) -> Snapshot:
        collector = Snapshot(f"{NAMESPACE}_{name}", text, labels)
        registry.register(collector)
        return collector

    return Declaration("gauge", text, labels, make)
