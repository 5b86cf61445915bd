"""The metrics of producers: the path of their messages, and the reasons for the fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import counter, gauge

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge


class ProducerMetrics:
    """The metrics of a producer's messages."""

    producer_sent: Counter = counter(
        "Messages that were accepted, by path: queue or fallback.", "producer", "path"
    )
    producer_fallbacks: Counter = counter(
        "Messages meant for the queue that went to the fallback, by reason: unavailable, full, paused, "
        "too_large or error.",
        "producer",
        "reason",
    )
    producer_failures: Counter = counter(
        "Messages that neither path accepted; the caller got the error.", "producer", "path"
    )
    rollout_percent: Gauge = gauge(
        "Share of tenants that use the queue, as this producer last read it.", "producer", "rollout"
    )
