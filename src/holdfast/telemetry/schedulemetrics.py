"""The metrics of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import SECONDS, counter, counts, gauge, tallies

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge

    from holdfast.telemetry.fast_metrics import FastCounter, Tallies


class ScheduleMetrics:
    """The metrics of schedules and their turns."""

    schedule_acquired: FastCounter = counts("Turns that were acquired.")
    schedule_acquire_failures: Counter = counter("Failed reads of due schedules.")
    schedule_script_errors: Counter = counter(
        "Scripts of a scheduler that failed, without renewals, by kind of error.", "kind"
    )
    schedule_lateness_seconds: Tallies = tallies("Time from a turn to its acquisition.", buckets=SECONDS)
    schedule_runs: FastCounter = counts("Turns that ended; status is the outcome.", "status")
    schedule_run_seconds: Tallies = tallies(
        "Time from the acquisition of a turn to its end.", buckets=SECONDS
    )
    schedule_failures: Counter = counter("Turns that failed, by class of failure.", "kind")
    schedule_missed: Counter = counter("Turns that were missed.")
    schedule_given_back: Counter = counter("Turns that were given back without an end.")
    schedule_stale: Counter = counter("Outcomes refused because the schedule had a newer fence.")
    schedule_recovery: Counter = counter(
        "Retries of writing an outcome; status is told (written) or failed; given_up is an outcome whose "
        "last try has failed.",
        "status",
    )
    schedule_recovery_queue: Gauge = gauge("Outcomes that wait for another try.")
    schedule_zombies: Counter = counter(
        "Turns beyond deadline and threshold; kind is deadman or scan.", "kind"
    )
    schedule_zombie_scans: Counter = counter("Scans for zombies; status is whole or over_budget.", "status")
    schedule_reclaimed: Counter = counter("Turns reclaimed from schedulers that stopped renewing.")
    schedule_repaired: Counter = counter("Entries and keys that were repaired; kind is the damage.", "kind")
    schedule_sweeps: Counter = counter(
        "Sweeps; status is whole, over_budget, elsewhere, hung, failed or skipped.", "status"
    )
    schedule_running: Gauge = gauge("Turns that run in this scheduler now.")
    schedule_permits_free: Gauge = gauge("Permits of this scheduler that are free.")
    schedule_registered: Gauge = gauge("Registered schedules.")
    schedule_waiting: Gauge = gauge("Schedules that wait for their turn.")
    schedule_working: Gauge = gauge("Schedules that run now, in any scheduler.")
    schedule_due: Gauge = gauge(
        "Schedules that are due and wait, of those that this scheduler runs; NaN while Redis is unavailable."
    )
    schedule_due_elsewhere: Gauge = gauge(
        "Schedules that are due and that this scheduler does not run: disabled, another's, without an agent; "
        "NaN while Redis is unavailable."
    )
    schedule_oldest_overdue_seconds: Gauge = gauge(
        "How long the most overdue schedule of this scheduler waits; also counted while Redis is unavailable."
    )
    schedule_degraded: Gauge = gauge("1 while the scheduler's health is DEGRADED.")
    schedule_capacity: Gauge = gauge("Schedules that this scheduler could acquire at once now.")
    schedule_breaker_state: Gauge = gauge("0 closed, 1 half open, 2 open, kind is the breaker.", "kind")
    schedule_breaker_events: Counter = counter(
        "Trips, blocked calls and recoveries of a breaker; kind is the breaker, reason the event.",
        "kind",
        "reason",
    )
    schedule_signals: Gauge = gauge(
        "1 while a watchdog of the scheduler reports a problem; kind is which one.", "kind"
    )
