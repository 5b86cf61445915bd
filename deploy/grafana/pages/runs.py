"""Runs and queues: how much there is to do, and what becomes of it."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row
from queries import NAMESPACE, QUEUE, QUEUES, gauge, one, quantiles, rate

RUNS = Dashboard(
    "holdfast-runs",
    "Holdfast: runs and queues",
    "How much there is to do, how long it waits, what becomes of it.",
    (NAMESPACE, QUEUES),
    (
        Row(
            "Now",
            (
                Panel(
                    "Depth",
                    "Runs that a worker should be doing.",
                    "short",
                    one(gauge("queue_depth")),
                    "stat",
                    4,
                ),
                Panel(
                    "Oldest",
                    "How long the oldest run has waited.",
                    "s",
                    one(gauge("queue_oldest_seconds")),
                    "stat",
                    4,
                    bad=60,
                ),
                Panel(
                    "Running",
                    "Runs that workers execute.",
                    "short",
                    one(gauge("runs_running", how="sum")),
                    "stat",
                    4,
                ),
                Panel(
                    "Workers",
                    "Workers that live and serve it.",
                    "short",
                    one(gauge("queue_workers")),
                    "stat",
                    4,
                ),
                Panel(
                    "Dead letters",
                    "Runs that were given up.",
                    "short",
                    one(gauge("queue_dead")),
                    "stat",
                    4,
                    bad=1,
                ),
                Panel(
                    "Paused",
                    "1 while the queue is paused.",
                    "short",
                    one(gauge("queue_paused")),
                    "stat",
                    4,
                    bad=1,
                ),
            ),
        ),
        Row(
            "Work",
            (
                Panel(
                    "Depth by state",
                    "Waiting, held by workers, not due yet. What waits and grows is lag.",
                    "short",
                    (
                        Query(gauge("queue_undelivered"), "{{queue}} waiting"),
                        Query(gauge("queue_pending"), "{{queue}} pending"),
                        Query(gauge("queue_delayed"), "{{queue}} delayed"),
                    ),
                    width=12,
                    stacked=True,
                ),
                Panel(
                    "In and out",
                    "Submitted and adopted against finished, runs a second.",
                    "ops",
                    (
                        Query(rate("runs_submitted"), "{{queue}} submitted"),
                        Query(rate("runs_adopted"), "{{queue}} adopted"),
                        Query(rate("runs_finished"), "{{queue}} finished"),
                    ),
                    width=12,
                ),
                Panel(
                    "Stream length",
                    "Entries in the queue's streams; more than its depth where finished ones are kept.",
                    "short",
                    (
                        Query(gauge("queue_length"), "{{queue}} length"),
                        Query(gauge("queue_depth"), "{{queue}} depth"),
                    ),
                    width=12,
                ),
                Panel(
                    "Longest running",
                    "How long the attempt has been running that began first.",
                    "s",
                    one(gauge("queue_longest_running_seconds")),
                    width=12,
                ),
                Panel(
                    "Waiting time",
                    "From being due to being started.",
                    "s",
                    quantiles("queue_wait_seconds"),
                    width=12,
                ),
                Panel(
                    "Duration",
                    "From the start of an attempt to its end.",
                    "s",
                    quantiles("run_duration_seconds"),
                    width=12,
                ),
            ),
        ),
        Row(
            "Ends",
            (
                Panel(
                    "Finished by status",
                    "How runs end, a second.",
                    "ops",
                    one(rate("runs_finished", by="queue, status"), "{{queue}} {{status}}"),
                    stacked=True,
                ),
                Panel(
                    "Retries by class",
                    "Failed attempts that are tried again, by class of failure.",
                    "ops",
                    one(rate("runs_retried", by="queue, reason"), "{{queue}} {{reason}}"),
                ),
                Panel(
                    "Dead letters by reason",
                    "Runs given up in the last hour, and those that are kept.",
                    "short",
                    (
                        Query(
                            f"sum by (queue, reason) (increase(holdfast_runs_dead_lettered_total{{{QUEUE}}}[1h]))",
                            "{{queue}} {{reason}}",
                        ),
                        Query(gauge("queue_dead"), "{{queue}} kept"),
                    ),
                ),
                Panel(
                    "Refused",
                    "Submissions turned away, by reason: full, paused, busy, too large, invalid; unavailable is Redis.",
                    "ops",
                    one(rate("runs_refused", by="queue, reason"), "{{queue}} {{reason}}"),
                ),
                Panel(
                    "By agent",
                    "Attempts started, a second.",
                    "ops",
                    one(rate("runs_claimed", by="agent"), "{{agent}}"),
                    stacked=True,
                ),
                Panel(
                    "Came back",
                    "Handed back by those who leave, reclaimed from the dead, restored after their entry was deleted.",
                    "ops",
                    (
                        Query(rate("runs_handed_back"), "{{queue}} handed back"),
                        Query(rate("runs_reclaimed"), "{{queue}} reclaimed"),
                        Query(rate("runs_restored"), "{{queue}} restored"),
                    ),
                ),
            ),
        ),
    ),
)
