"""What serves the work: HTTP, events to the outside, Redis and the store."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row
from queries import HERE, NAMESPACE, QUEUES, RATE, gauge, one, quantiles, rate

SERVICES = Dashboard(
    "holdfast-services",
    "Holdfast: API, events, Redis",
    "What serves the work: HTTP, the relay to the outside, Redis and the store.",
    (NAMESPACE, QUEUES),
    (
        Row(
            "HTTP",
            (
                Panel(
                    "Requests",
                    "Answers by status, a second.",
                    "ops",
                    one(rate("http_requests", by="status", selector=HERE), "{{status}}"),
                    stacked=True,
                ),
                Panel(
                    "Time",
                    "From a request to the end of its answer, by route (p95).",
                    "s",
                    one(
                        f"histogram_quantile(0.95, sum by (le, kind) (rate(holdfast_http_request_seconds_bucket{{{HERE}}}{RATE})))",
                        "{{kind}}",
                    ),
                ),
                Panel(
                    "Open streams",
                    "Event streams that are followed now.",
                    "short",
                    one(gauge("http_streams", by="instance", selector=HERE, how="sum"), "{{instance}}"),
                ),
            ),
        ),
        Row(
            "Events to the outside",
            (
                Panel(
                    "Delivered and failed",
                    "Events that receivers took, deliveries that failed, events given up.",
                    "ops",
                    (
                        Query(rate("relay_delivered", by="sink"), "{{sink}} delivered"),
                        Query(rate("relay_failures", by="sink, kind"), "{{sink}} {{kind}}"),
                        Query(rate("relay_undelivered", by="sink"), "{{sink}} given up"),
                    ),
                ),
                Panel(
                    "Waiting",
                    "Events that are not delivered yet, and the runs that they are of; receivers that are down.",
                    "short",
                    (
                        Query(gauge("relay_events_waiting", by="queue, sink"), "{{queue}} {{sink}} events"),
                        Query(gauge("relay_waiting", by="queue, sink"), "{{queue}} {{sink}} runs"),
                        Query(gauge("relay_receivers_down", by="namespace", selector=HERE), "receivers down"),
                    ),
                ),
                Panel(
                    "Lag",
                    "Time from an event to its delivery.",
                    "s",
                    quantiles("relay_lag_seconds", by="sink"),
                ),
                Panel(
                    "Receivers",
                    "Time that a receiver takes to answer.",
                    "s",
                    quantiles("relay_post_seconds", by="sink", selector=HERE),
                ),
            ),
        ),
        Row(
            "Redis and the store",
            (
                Panel(
                    "Redis errors",
                    "Calls that failed, by kind.",
                    "ops",
                    one(rate("redis_errors", by="kind", selector=HERE), "{{kind}}"),
                ),
                Panel(
                    "Redis latency",
                    "Time one renewal of leases takes.",
                    "s",
                    quantiles("lease_renewal_seconds", by="", selector=HERE),
                    bad=1,
                ),
                Panel(
                    "Store",
                    "Rows of the store, by kind.",
                    "short",
                    one(gauge("store_rows", by="kind", selector=HERE), "{{kind}}"),
                ),
                Panel(
                    "Room of the store",
                    "Bytes that it takes.",
                    "bytes",
                    one(gauge("store_bytes", by="namespace", selector=HERE), "{{namespace}}"),
                ),
            ),
        ),
    ),
)
