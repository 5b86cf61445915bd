"""The metrics of Redis, upkeep, the relay and the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import SECONDS, counter, counts, gauge, histogram, tallies

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

    from holdfast.telemetry.fast_metrics import FastCounter, Tallies


class RedisMetrics:
    """The metrics of Redis."""

    redis_breaker_state: Gauge = gauge(
        "Circuit breaker of the sender: 0 closed, 1 half open, 2 open.", "queue"
    )
    redis_errors: Counter = counter("Calls to Redis that failed, by kind of error.", "kind")


class UpkeepMetrics:
    """The metrics of cleanup and of a process's health."""

    ghost_consumers_found: Counter = counter("Consumers of the group whose process is gone.", "queue")
    ghost_consumers_removed: Counter = counter(
        "Ghost consumers deleted after their entries were returned to the queue.", "queue"
    )
    entries_released: Counter = counter("Pending entries of ghost consumers returned to the queue.", "queue")
    cleanup_errors: Counter = counter("Cleanup rounds that failed.", "queue")
    retention_removed: Counter = counter("Objects removed after their retention, by kind.", "queue", "kind")
    shutdown_phase_seconds: Gauge = gauge(
        "Time that a phase of the shutdown has taken so far, or took; kind is the phase, 1 to 3.", "kind"
    )
    loop_blocked_seconds: Histogram = histogram(
        "How long agent code blocked the event loop.", buckets=(1, 2, 5, 10, 30, 60, 300)
    )
    kubernetes_errors: Counter = counter(
        "Failed reads of pods; kind is the cause: away, forbidden, unauthorized, refused, odd.", "kind"
    )
    pods_watched: Gauge = gauge("Pods of workers that this janitor watches; 0 if it is not the leader.")
    pod_costs_written: Counter = counter("Deletion costs written to pods; kind is raised or lowered.", "kind")
    runs_archived: Counter = counter("Ended runs written to the store.", "queue")
    store_rows: Gauge = gauge("Rows in the store, by kind.", "kind")
    store_bytes: Gauge = gauge("Size of the store.")


class RelayMetrics:
    """The metrics of the delivery of events."""

    relay_delivered: FastCounter = counts("Events that a receiver has accepted.", "queue", "sink")
    relay_failures: Counter = counter(
        "Deliveries that failed; kind is the cause: status, rejected (3xx, 401, 403, 404, …), timeout, "
        "connection, address, breaker, sink.",
        "queue",
        "sink",
        "kind",
    )
    relay_undelivered: Counter = counter("Events given up, which are stored as undelivered.", "queue", "sink")
    relay_lag_seconds: Tallies = tallies(
        "Time from an event to its delivery.", "queue", "sink", buckets=SECONDS
    )
    relay_post_seconds: Tallies = tallies("Time a receiver took to answer.", "sink", buckets=SECONDS)
    relay_waiting: Gauge = gauge("Runs with events for a sink that are not delivered yet.", "queue", "sink")
    relay_events_waiting: Gauge = gauge(
        "Events for a sink that are not delivered yet; estimated where more than 1,000 runs have some.",
        "queue",
        "sink",
    )
    relay_undelivered_kept: Gauge = gauge("Undelivered events that are stored.", "queue")
    relay_receivers_down: Gauge = gauge("Receivers that this relay does not call now because they are down.")


class HttpMetrics:
    """The metrics of the API."""

    http_requests: FastCounter = counts("Requests answered by the API; kind is the route.", "kind", "status")
    http_request_seconds: Tallies = tallies(
        "Time from a request to the end of its answer; kind is the route.", "kind", buckets=SECONDS
    )
    http_streams: Gauge = gauge("Event streams that are open now.")
