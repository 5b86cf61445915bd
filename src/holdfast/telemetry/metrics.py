"""Every metric, declared once with its help text; a label never takes more values than somebody configured.

Agent names come from whoever submits, so they are the one label that could grow without end:
a name nobody here knows is counted as ``other``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from holdfast.telemetry.tally import Counts, Tallies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.telemetry.tally import Count

NAMESPACE = "holdfast"
OTHER_AGENT = "other"
# A process without an app (a client, the janitor) can't tell known agents from invented ones:
# it names as many as it meets first.
MAX_UNDECLARED_AGENTS = 100
# An agent may answer from a cache or think for an hour.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
# A renewal is one script call; what matters is how near it comes to the trust window.
RENEWAL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


@dataclass(frozen=True, slots=True)
class Declared:
    """What the reference page says about one metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class Declarations:
    """Registers metrics on one registry and remembers what was said about each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.all: list[Declared] = []

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Declare a counter."""
        self._note(f"{name}_total", "counter", labels, text)
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self._registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Declare a gauge."""
        self._note(name, "gauge", labels, text)
        return Gauge(name, text, labels, namespace=NAMESPACE, registry=self._registry)

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        """Declare a histogram."""
        self._note(name, "histogram", labels, text)
        return Histogram(name, text, labels, namespace=NAMESPACE, registry=self._registry, buckets=buckets)

    def counts(self, name: str, text: str, *labels: str) -> Counts:
        """Declare a counter of the hot path."""
        self._note(f"{name}_total", "counter", labels, text)
        collector = Counts(f"{NAMESPACE}_{name}", text, labels)
        self._registry.register(collector)
        return collector

    def tallies(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Tallies:
        """Declare a histogram of the hot path."""
        self._note(name, "histogram", labels, text)
        collector = Tallies(f"{NAMESPACE}_{name}", text, labels, buckets)
        self._registry.register(collector)
        return collector

    def _note(self, name: str, kind: str, labels: tuple[str, ...], text: str) -> None:
        self.all.append(Declared(f"{NAMESPACE}_{name}", kind, labels, text))


class RunMeter:
    """What one queue and agent count for every run; get it once, from :meth:`Metrics.runs`.

    Its methods are for the worker's event loop only: they add without a lock.
    """

    __slots__ = ("_claimed", "_duration", "_finished", "_labels", "_metrics", "_wait")

    def __init__(self, metrics: Metrics, queue: str, agent: str) -> None:
        self._metrics = metrics
        self._labels = (queue, agent)
        self._claimed = metrics.runs_claimed.child(queue, agent)
        self._wait = metrics.queue_wait_seconds.child(queue)
        self._duration = metrics.run_duration_seconds.child(queue, agent)
        self._finished: dict[str, Count] = {}

    def submitted(self, count: int = 1) -> None:
        """Count runs accepted into the queue; may be called from any thread."""
        self._metrics.runs_submitted.labels(*self._labels).inc(count)

    def claimed(self, waited_seconds: float) -> None:
        """Count a run that a worker took, after waiting this long in the queue."""
        self._claimed.value += 1
        # Clocks of submitter and worker differ: a run that seems to come from the future has not waited.
        self._wait.observe(max(waited_seconds, 0.0))

    def finished(self, status: str, seconds: float) -> None:
        """Count a run that ended, and how long its last attempt took."""
        count = self._finished.get(status)
        if count is None:
            count = self._finished[status] = self._metrics.runs_finished.child(*self._labels, str(status))
        count.value += 1
        self._duration.observe(max(seconds, 0.0))

    def retried(self, reason: str) -> None:
        """Count a failed attempt that will be tried again; the reason is the failure's class."""
        self._metrics.runs_retried.labels(*self._labels, reason).inc()


class Metrics:
    """The metrics of one process, on a registry of their own."""

    def __init__(self, agents: Iterable[str] | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._agents: set[str] = set(agents or ())
        self._open_to_agents = agents is None
        self._meters: dict[tuple[str, str], RunMeter] = {}
        declare = Declarations(self.registry)
        self.declared = declare.all
        self._declare_runs(declare)
        self._declare_leases(declare)
        self._declare_redis(declare)
        self._declare_upkeep(declare)
        self._declare_queues(declare)
        ProcessCollector(namespace=NAMESPACE, registry=self.registry)

    def _declare_runs(self, declare: Declarations) -> None:
        self.runs_submitted = declare.counter(
            "runs_submitted", "Runs accepted into a queue.", "queue", "agent"
        )
        self.runs_refused = declare.counter(
            "runs_refused", "Submissions turned away (full, paused, too large, invalid).", "queue", "reason"
        )
        self.run_duplicates = declare.counter(
            "run_duplicates",
            "Submissions answered with the run that already exists under their key.",
            "queue",
        )
        self.runs_adopted = declare.counter(
            "runs_adopted", "Stream entries written by other producers and taken over as runs.", "queue"
        )
        self.entries_dropped = declare.counter(
            "entries_dropped",
            "Entries dropped at the claim: of cancelled runs, or second ones of a run.",
            "queue",
        )
        self.runs_claimed = declare.counts(
            "runs_claimed", "Attempts started by this worker.", "queue", "agent"
        )
        self.runs_finished = declare.counts(
            "runs_finished", "Runs that reached a final status.", "queue", "agent", "status"
        )
        self.runs_retried = declare.counter(
            "runs_retried",
            "Failed attempts that will be tried again, by class of failure.",
            "queue",
            "agent",
            "reason",
        )
        self.runs_handed_back = declare.counter(
            "runs_handed_back", "Runs given back unfinished by a worker that shuts down.", "queue"
        )
        self.runs_restored = declare.counter(
            "runs_restored",
            "Runs that were nowhere (their entry was deleted) and were queued again.",
            "queue",
        )
        self.runs_reclaimed = declare.counter(
            "runs_reclaimed", "Runs taken back from workers that died.", "queue"
        )
        self.runs_dead_lettered = declare.counter(
            "runs_dead_lettered", "Runs given up and kept in the dead letters.", "queue", "reason"
        )
        self.run_duration_seconds = declare.tallies(
            "run_duration_seconds",
            "Time from the start of an attempt to its end.",
            "queue",
            "agent",
            buckets=SECONDS,
        )
        self.queue_wait_seconds = declare.tallies(
            "queue_wait_seconds", "Time from being due to being started.", "queue", buckets=SECONDS
        )
        self.runs_running = declare.gauge("runs_running", "Runs being executed by this worker now.", "queue")
        self.slots = declare.gauge("slots", "Runs this worker may execute at once.", "queue")
        self.events_appended = declare.counter(
            "events_appended", "Events written to the feeds of runs.", "queue"
        )

    def _declare_leases(self, declare: Declarations) -> None:
        self.leases_held = declare.gauge("leases_held", "Leases this process holds now.", "kind")
        self.leases_lost = declare.counter(
            "leases_lost",
            "Leases that ended under a running body: taken by another, or not renewed in time.",
            "kind",
        )
        self.lease_renewal_seconds = declare.histogram(
            "lease_renewal_seconds", "Time one renewal of all leases took.", "kind", buckets=RENEWAL_SECONDS
        )
        self.lease_renewal_failures = declare.counter(
            "lease_renewal_failures", "Renewals that got no answer from Redis.", "kind"
        )
        self.settle_batch_size = declare.histogram(
            "settle_batch_size", "Runs settled by one script call.", "queue", buckets=BATCH
        )
        self.stale_settles_refused = declare.counter(
            "stale_settles_refused", "Results refused because the run had moved to a higher fence.", "queue"
        )

    def _declare_redis(self, declare: Declarations) -> None:
        self.redis_breaker_state = declare.gauge(
            "redis_breaker_state", "Circuit breaker of the sender: 0 closed, 1 half open, 2 open.", "queue"
        )
        self.redis_errors = declare.counter(
            "redis_errors", "Calls to Redis that failed, by kind of error.", "kind"
        )

    def _declare_upkeep(self, declare: Declarations) -> None:
        self.ghost_consumers_found = declare.counter(
            "ghost_consumers_found", "Consumers of the group whose process is gone.", "queue"
        )
        self.ghost_consumers_removed = declare.counter(
            "ghost_consumers_removed", "Ghost consumers deleted after their entries were moved away.", "queue"
        )
        self.entries_released = declare.counter(
            "entries_released", "Pending entries moved away from ghost consumers.", "queue"
        )
        self.cleanup_errors = declare.counter("cleanup_errors", "Cleanup rounds that failed.", "queue")
        self.retention_removed = declare.counter(
            "retention_removed", "Things removed because their time was over, by kind.", "queue", "kind"
        )
        self.shutdown_phase_seconds = declare.gauge(
            "shutdown_phase_seconds", "Time the phases of the shutdown took; kind is the phase.", "kind"
        )

    def _declare_queues(self, declare: Declarations) -> None:
        self.queue_depth = declare.gauge(
            "queue_depth", "Runs not finished: undelivered and pending.", "queue"
        )
        self.queue_undelivered = declare.gauge("queue_undelivered", "Runs no worker has taken yet.", "queue")
        self.queue_pending = declare.gauge("queue_pending", "Runs a worker holds.", "queue")
        self.queue_delayed = declare.gauge("queue_delayed", "Runs that are not due yet.", "queue")
        self.queue_dead = declare.gauge("queue_dead", "Runs in the dead letters.", "queue")
        self.queue_oldest_seconds = declare.gauge(
            "queue_oldest_seconds", "Age of the oldest run no worker has taken yet.", "queue"
        )

    def runs(self, queue: str, agent: str) -> RunMeter:
        """The meter of a queue and agent: always the same object, so a worker may ask for every run."""
        meter = self._meters.get((queue, agent))
        if meter is not None:
            return meter
        key = (queue, self.agent_label(agent))
        return self._meters.get(key) or self._meters.setdefault(key, RunMeter(self, *key))

    def agent_label(self, agent: str) -> str:
        """The label value for an agent: its name if it is known here, else ``other``."""
        if agent in self._agents:
            return agent
        if self._open_to_agents and len(self._agents) < MAX_UNDECLARED_AGENTS:
            self._agents.add(agent)
            return agent
        return OTHER_AGENT


def metrics_table() -> str:
    """Every metric as a markdown table."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.text} |"
        for metric in sorted(Metrics().declared, key=lambda metric: metric.name)
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])
