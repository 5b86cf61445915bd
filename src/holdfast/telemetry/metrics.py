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

    def abandoned(self) -> None:
        """Count a run that ended without its agent, which ignores its stop."""
        self._metrics.runs_abandoned.labels(*self._labels).inc()

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
        self._declare_relay(declare)
        self._declare_schedules(declare)
        self._declare_http(declare)
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
        self.runs_abandoned = declare.counter(
            "runs_abandoned",
            "Runs that ended while their agent ignored its stop and went on.",
            "queue",
            "agent",
        )
        self.bodies_lingering = declare.gauge(
            "bodies_lingering",
            "Agents that go on after their runs; each takes a slot until it ends.",
            "queue",
        )
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

        self.loop_blocked_seconds = declare.histogram(
            "loop_blocked_seconds",
            "How long agent code blocked the event loop, when it was noticed.",
            buckets=(1, 2, 5, 10, 30, 60, 300),
        )
        self.runs_archived = declare.counter("runs_archived", "Ended runs that the store has.", "queue")
        self.store_rows = declare.gauge("store_rows", "Rows in the store, by kind.", "kind")
        self.store_bytes = declare.gauge("store_bytes", "Room that the store takes.")

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

    def _declare_http(self, declare: Declarations) -> None:
        self.http_requests = declare.counts(
            "http_requests", "Requests answered by the API; kind is the route.", "kind", "status"
        )
        self.http_request_seconds = declare.tallies(
            "http_request_seconds",
            "Time from a request to the end of its answer; kind is the route.",
            "kind",
            buckets=SECONDS,
        )
        self.http_streams = declare.gauge("http_streams", "Event streams that are open now.")

    def _declare_relay(self, declare: Declarations) -> None:
        self.relay_delivered = declare.counts(
            "relay_delivered", "Events that a receiver has taken.", "queue", "sink"
        )
        self.relay_failures = declare.counter(
            "relay_failures", "Deliveries that failed; kind is why.", "queue", "sink", "kind"
        )
        self.relay_undelivered = declare.counter(
            "relay_undelivered", "Events given up: they are among the undelivered.", "queue", "sink"
        )
        self.relay_lag_seconds = declare.tallies(
            "relay_lag_seconds", "Time from an event to its delivery.", "queue", "sink", buckets=SECONDS
        )
        self.relay_post_seconds = declare.tallies(
            "relay_post_seconds", "Time a receiver took to answer.", "sink", buckets=SECONDS
        )
        self.relay_waiting = declare.gauge(
            "relay_waiting", "Runs with events for a sink that are not delivered yet.", "queue", "sink"
        )
        self.relay_undelivered_kept = declare.gauge(
            "relay_undelivered_kept", "Undelivered events that are kept.", "queue"
        )
        self.relay_receivers_down = declare.gauge(
            "relay_receivers_down", "Receivers that this relay does not call now because they are down."
        )

    def _declare_schedules(self, declare: Declarations) -> None:
        self.schedule_acquired = declare.counts("schedule_acquired", "Turns that were acquired.")
        self.schedule_acquire_failures = declare.counter(
            "schedule_acquire_failures", "Looks at what is due that failed."
        )
        self.schedule_lateness_seconds = declare.tallies(
            "schedule_lateness_seconds", "Time from a turn to its acquisition.", buckets=SECONDS
        )
        self.schedule_runs = declare.counts("schedule_runs", "Turns that ended; status is how.", "status")
        self.schedule_run_seconds = declare.tallies(
            "schedule_run_seconds", "Time from the acquisition of a turn to its end.", buckets=SECONDS
        )
        self.schedule_failures = declare.counter(
            "schedule_failures", "Turns that failed, by class of failure.", "kind"
        )
        self.schedule_missed = declare.counter("schedule_missed", "Turns that were left out.")
        self.schedule_given_back = declare.counter(
            "schedule_given_back", "Turns that were given back without an end."
        )
        self.schedule_stale = declare.counter(
            "schedule_stale", "Ends that were refused: the schedule had moved on."
        )
        self.schedule_recovery = declare.counter(
            "schedule_recovery",
            "Ends that Redis was not there for; status is told or given_up.",
            "status",
        )
        self.schedule_recovery_queue = declare.gauge(
            "schedule_recovery_queue", "Ends that wait for another try."
        )
        self.schedule_zombies = declare.counter(
            "schedule_zombies", "Turns beyond deadline and threshold; kind is deadman or scan.", "kind"
        )
        self.schedule_reclaimed = declare.counter(
            "schedule_reclaimed", "Turns taken back from schedulers that stopped renewing."
        )
        self.schedule_repaired = declare.counter(
            "schedule_repaired", "Entries that a sweep put right, kind is what was wrong.", "kind"
        )
        self.schedule_sweeps = declare.counter(
            "schedule_sweeps",
            "Sweeps; status is whole, over_budget, elsewhere, hung, failed or skipped.",
            "status",
        )
        self.schedule_running = declare.gauge("schedule_running", "Turns that go on in this scheduler now.")
        self.schedule_permits_free = declare.gauge(
            "schedule_permits_free", "Permits of this scheduler that are free."
        )
        self.schedule_registered = declare.gauge("schedule_registered", "Schedules that there are.")
        self.schedule_waiting = declare.gauge("schedule_waiting", "Schedules that wait for their turn.")
        self.schedule_working = declare.gauge("schedule_working", "Schedules that run somewhere.")
        self.schedule_due = declare.gauge("schedule_due", "Schedules that are due and wait.")
        self.schedule_oldest_overdue_seconds = declare.gauge(
            "schedule_oldest_overdue_seconds", "How long the most overdue schedule waits."
        )
        self.schedule_degraded = declare.gauge(
            "schedule_degraded", "1 while the scheduler's health is DEGRADED."
        )
        self.schedule_capacity = declare.gauge(
            "schedule_capacity", "Schedules that this scheduler could acquire at once now."
        )
        self.schedule_breaker_state = declare.gauge(
            "schedule_breaker_state", "0 closed, 1 half open, 2 open, kind is the breaker.", "kind"
        )
        self.schedule_breaker_events = declare.counter(
            "schedule_breaker_events",
            "Trips, blocked calls and recoveries of a breaker; kind is the breaker, reason what happened.",
            "kind",
            "reason",
        )
        self.schedule_signals = declare.gauge(
            "schedule_signals", "1 while a watchdog barks, kind is its signal.", "kind"
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
