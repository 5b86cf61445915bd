"""The metrics of producers: which way their messages went, and why not the way that was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import counter, gauge

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge


class ProducerMetrics:
    """What becomes of a producer's messages."""

    producer_sent: Counter = counter(
        "Messages that were taken, by path: queue or fallback.", "producer", "path"
    )
    producer_fallbacks: Counter = counter(
        "Messages meant for the queue that went to the fallback, by reason: unavailable, full, paused, "
        "too_large or error.",
        "producer",
        "reason",
    )
    producer_failures: Counter = counter(
        "Messages that nobody took; the caller was given the error.", "producer", "path"
    )
    rollout_percent: Gauge = gauge(
        "Share of tenants that goes to the queue, as this producer last read it.", "producer", "rollout"
    )
