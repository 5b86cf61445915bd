"""The metrics of runs: the runs themselves, the leases on them, and their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import (
    BATCH,
    RENEWAL_SECONDS,
    SECONDS,
    counter,
    counts,
    gauge,
    histogram,
    tallies,
)

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

    from holdfast.telemetry.fast_metrics import FastCounter, Tallies


class RunMetrics:
    """The metrics of runs."""

    runs_submitted: Counter = counter("Runs accepted into a queue.", "queue", "agent")
    runs_refused: Counter = counter(
        "Submissions refused; reason is full, paused, busy (its thread), too_large, invalid, or "
        "unavailable (Redis did not answer).",
        "queue",
        "reason",
    )
    run_duplicates: Counter = counter(
        "Submissions answered with the run that already exists under their key.", "queue"
    )
    runs_adopted: Counter = counter(
        "Stream entries written by other producers and taken over as runs.", "queue"
    )
    entries_dropped: Counter = counter(
        "Entries dropped at the claim: of cancelled runs, or duplicates.", "queue"
    )
    runs_claimed: FastCounter = counts("Attempts started by this worker.", "queue", "agent")
    runs_finished: FastCounter = counts("Runs that reached a final status.", "queue", "agent", "status")
    runs_retried: Counter = counter(
        "Failed attempts that will be tried again, by class of failure.", "queue", "agent", "reason"
    )
    runs_handed_back: Counter = counter("Runs handed back unfinished by a worker that shuts down.", "queue")
    runs_restored: Counter = counter(
        "Runs without an entry (it was deleted) that were queued again.", "queue"
    )
    runs_reclaimed: Counter = counter("Runs reclaimed from workers that died.", "queue")
    runs_dead_lettered: Counter = counter("Runs given up and kept in the dead letters.", "queue", "reason")
    run_duration_seconds: Tallies = tallies(
        "Time from the start of an attempt to its end.", "queue", "agent", buckets=SECONDS
    )
    queue_wait_seconds: Tallies = tallies("Time from being due to being started.", "queue", buckets=SECONDS)
    runs_running: Gauge = gauge("Runs being executed by this worker now.", "queue")
    runs_abandoned: Counter = counter("Runs that ended while their agent ignored its stop.", "queue", "agent")
    bodies_lingering: Gauge = gauge(
        "Agents that continue after their runs have ended; each takes a slot until it returns.", "queue"
    )
    processes_killed: Counter = counter(
        "Processes of attempts that had to be killed, by reason.", "queue", "agent", "reason"
    )
    processes_crashed: Counter = counter(
        "Processes of attempts that ended before their agent did.", "queue", "agent"
    )
    slots: Gauge = gauge("Runs this worker may execute at once.", "queue")
    events_appended: Counter = counter(
        "Events written to the feeds of runs, as far as Redis has answered: submitted, adopted, started, "
        "emitted, ended, retried, queued when due, handed back, reclaimed, restored; not those of limits "
        "(parked) and calls (cancel, resume, replay).",
        "queue",
    )


class LeaseMetrics:
    """The metrics of leases and settlements."""

    leases_held: Gauge = gauge("Leases this process holds now.", "kind")
    leases_lost: Counter = counter(
        "Leases lost under a running agent: taken by another owner, or not renewed in time.", "kind"
    )
    lease_renewal_seconds: Histogram = histogram(
        "Time one renewal of all leases took.", "kind", buckets=RENEWAL_SECONDS
    )
    lease_renewal_failures: Counter = counter("Renewals that Redis did not answer.", "kind")
    settle_batch_size: Histogram = histogram("Runs settled by one script call.", "queue", buckets=BATCH)
    stale_settles_refused: Counter = counter("Results refused because the run had a higher fence.", "queue")


class QueueMetrics:
    """The metrics of queues."""

    queue_depth: Gauge = gauge("Runs that workers should perform now: undelivered, pending and due.", "queue")
    queue_undelivered: Gauge = gauge("Runs that no worker has claimed yet.", "queue")
    queue_pending: Gauge = gauge("Runs that a worker holds.", "queue")
    queue_delayed: Gauge = gauge("Runs that are not due yet.", "queue")
    queue_dead: Gauge = gauge("Runs in the dead letters.", "queue")
    queue_oldest_seconds: Gauge = gauge("Age of the oldest run that no worker has claimed yet.", "queue")
    queue_paused: Gauge = gauge("1 while the queue is paused.", "queue")
    queue_workers: Gauge = gauge("Live workers that serve the queue.", "queue")
    queue_consumers: Gauge = gauge("Consumers of the queue's group, including ghosts.", "queue")
    queue_consumer_idle_seconds: Gauge = gauge(
        "Idle time of the most idle consumer of the queue's group. It is no sign of a dead worker: on Redis "
        "7.0 a read that returns nothing does not count, and ghosts are consumers too; "
        "holdfast_queue_workers counts live workers.",
        "queue",
    )
    queue_length: Gauge = gauge(
        "Entries in the queue's streams; more than its depth where `delete_after_ack` is false.", "queue"
    )
    queue_longest_running_seconds: Gauge = gauge(
        "Time since the longest running attempt began, of the ten oldest entries held in each stream.",
        "queue",
    )
    queue_max_pending: Gauge = gauge("Runs that one worker may hold unfinished, as configured.", "queue")
    scaling_demand: Gauge = gauge(
        "Runs that need a slot: undelivered ones, weighted by their age, and those pending and due.", "queue"
    )
    scaling_wanted: Gauge = gauge(
        "Workers that the queue needs; missing where `scaling.enabled` is false.", "queue"
    )
    scaling_workers: Gauge = gauge("Worker processes that an autoscaler keeps for the queue.", "queue")
