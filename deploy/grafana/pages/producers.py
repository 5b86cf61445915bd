"""The roll-out of producers: which way messages go, and how the queue takes it."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row, Variable
from queries import HERE, NAMESPACE, QUEUES, gauge, one, quantiles, rate

PRODUCER = f'{HERE}, producer=~"$producer"'

PRODUCERS = Dashboard(
    "holdfast-producers",
    "Holdfast: producers' roll-out",
    "Watch this while the share goes up: lag, retries and fallbacks must stay flat. Turn it back to 0 if one does not.",
    (NAMESPACE, Variable("producer", "holdfast_producer_sent_total"), QUEUES),
    (
        Row(
            "Roll-out",
            (
                Panel(
                    "Share that takes the queue",
                    "The percentage that producers last read: all should be the same.",
                    "percent",
                    one(
                        gauge("rollout_percent", by="producer, rollout", selector=PRODUCER),
                        "{{producer}} {{rollout}}",
                    ),
                ),
                Panel(
                    "Messages by path",
                    "What was taken by the queue, and by the fallback.",
                    "ops",
                    one(
                        rate("producer_sent", by="producer, path", selector=PRODUCER), "{{producer}} {{path}}"
                    ),
                    stacked=True,
                ),
                Panel(
                    "Fallbacks and failures",
                    "Meant for the queue and sent to the fallback, by reason; and what nobody took.",
                    "ops",
                    (
                        Query(
                            rate("producer_fallbacks", by="producer, reason", selector=PRODUCER),
                            "{{producer}} {{reason}}",
                        ),
                        Query(
                            rate("producer_failures", by="producer, path", selector=PRODUCER),
                            "{{producer}} failed on {{path}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "The queue meanwhile",
            (
                Panel(
                    "Lag",
                    "Runs that wait, and how long the oldest has waited.",
                    "short",
                    one(gauge("queue_undelivered"), "{{queue}}"),
                ),
                Panel(
                    "Oldest",
                    "How long the oldest run has waited.",
                    "s",
                    one(gauge("queue_oldest_seconds"), "{{queue}}"),
                    bad=60,
                ),
                Panel(
                    "Retries and dead letters",
                    "Attempts that failed, runs that were given up, a second.",
                    "ops",
                    (
                        Query(rate("runs_retried"), "{{queue}} retried"),
                        Query(rate("runs_dead_lettered"), "{{queue}} given up"),
                    ),
                ),
                Panel(
                    "Processing",
                    "From the start of an attempt to its end.",
                    "s",
                    quantiles("run_duration_seconds"),
                ),
                Panel(
                    "Done",
                    "Runs that ended, by status, a second.",
                    "ops",
                    one(rate("runs_finished", by="queue, status"), "{{queue}} {{status}}"),
                    stacked=True,
                ),
                Panel(
                    "Breaker",
                    "Circuit breaker of senders: 0 closed, 1 half open, 2 open.",
                    "short",
                    one(gauge("redis_breaker_state"), "{{queue}}"),
                    bad=1,
                ),
            ),
        ),
    ),
    alerts="Holdfast(Producers|Rollout|StreamLag|RunsWait|RetriesHigh|DeadLetters|BreakerOpen|Redis).*",
)
