"""Schedules: whether turns are taken in time, by whom, and how they end."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row
from queries import HERE, NAMESPACE, gauge, one, quantiles, rate

SCHEDULES = Dashboard(
    "holdfast-schedules",
    "Holdfast: schedules",
    "Whether turns are taken in time, by whom, and how they end.",
    (NAMESPACE,),
    (
        Row(
            "Now",
            (
                Panel(
                    "Registered",
                    "Schedules that there are.",
                    "short",
                    one(gauge("schedule_registered", by="namespace", selector=HERE), "{{namespace}}"),
                    "stat",
                    4,
                ),
                Panel(
                    "Due",
                    "Schedules that are due and wait.",
                    "short",
                    one(gauge("schedule_due", by="namespace", selector=HERE), "{{namespace}}"),
                    "stat",
                    4,
                ),
                Panel(
                    "Most overdue",
                    "How long the most overdue one waits.",
                    "s",
                    one(
                        gauge("schedule_oldest_overdue_seconds", by="namespace", selector=HERE),
                        "{{namespace}}",
                    ),
                    "stat",
                    4,
                    bad=120,
                ),
                Panel(
                    "Running",
                    "Turns that go on now.",
                    "short",
                    one(gauge("schedule_running", by="namespace", selector=HERE, how="sum"), "{{namespace}}"),
                    "stat",
                    4,
                ),
                Panel(
                    "Degraded",
                    "Schedulers that call themselves DEGRADED.",
                    "short",
                    one(
                        gauge("schedule_degraded", by="namespace", selector=HERE, how="sum"), "{{namespace}}"
                    ),
                    "stat",
                    4,
                    bad=1,
                ),
                Panel(
                    "Breaker",
                    "0 closed, 1 half open, 2 open.",
                    "short",
                    one(gauge("schedule_breaker_state", by="kind", selector=HERE), "{{kind}}"),
                    "stat",
                    4,
                    bad=1,
                ),
            ),
        ),
        Row(
            "Turns",
            (
                Panel(
                    "Acquired",
                    "Turns that schedulers take, a second.",
                    "ops",
                    one(rate("schedule_acquired", by="instance", selector=HERE), "{{instance}}"),
                    stacked=True,
                ),
                Panel(
                    "Lateness",
                    "Time from a turn to its acquisition.",
                    "s",
                    quantiles("schedule_lateness_seconds", by="", selector=HERE),
                ),
                Panel(
                    "Duration",
                    "Time from the acquisition of a turn to its end.",
                    "s",
                    quantiles("schedule_run_seconds", by="", selector=HERE),
                ),
                Panel(
                    "Ends",
                    "How turns end, a second.",
                    "ops",
                    one(rate("schedule_runs", by="status", selector=HERE), "{{status}}"),
                    stacked=True,
                ),
                Panel(
                    "Failures",
                    "Turns that failed, by class.",
                    "ops",
                    one(rate("schedule_failures", by="kind", selector=HERE), "{{kind}}"),
                ),
                Panel(
                    "Permits and capacity",
                    "What schedulers could still take.",
                    "short",
                    (
                        Query(
                            gauge("schedule_permits_free", by="instance", selector=HERE),
                            "{{instance}} permits",
                        ),
                        Query(
                            gauge("schedule_capacity", by="instance", selector=HERE), "{{instance}} capacity"
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Repairs",
            (
                Panel(
                    "Zombies, dead schedulers, orphans",
                    "Turns beyond their deadline, turns taken back from the dead, entries put right.",
                    "ops",
                    (
                        Query(rate("schedule_zombies", by="kind", selector=HERE), "zombies {{kind}}"),
                        Query(rate("schedule_reclaimed", by="namespace", selector=HERE), "reclaimed"),
                        Query(rate("schedule_repaired", by="kind", selector=HERE), "repaired {{kind}}"),
                    ),
                ),
                Panel(
                    "Watchdogs",
                    "1 while one reports a problem; kind is which one.",
                    "short",
                    one(gauge("schedule_signals", by="kind", selector=HERE), "{{kind}}"),
                    bad=1,
                ),
                Panel(
                    "Redis",
                    "Scripts that failed, looks that failed, breaker trips.",
                    "ops",
                    (
                        Query(rate("schedule_script_errors", by="kind", selector=HERE), "script {{kind}}"),
                        Query(rate("schedule_acquire_failures", by="namespace", selector=HERE), "looks"),
                        Query(
                            rate("schedule_breaker_events", by="kind, reason", selector=HERE),
                            "{{kind}} {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
