"""The metrics of the external scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import LOOKUP_SECONDS, counter, gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram


class ScalingMetrics:
    """What KEDA asks, and how it is answered."""

    scaling_questions: Counter = counter(
        "Calls of KEDA by their queue and their answer; `unknown` is a queue that there is not.",
        "queue",
        "result",
    )
    scaling_seconds: Histogram = histogram(
        "Time one call of KEDA took, streams apart.", "call", buckets=LOOKUP_SECONDS
    )
    scaling_streams: Gauge = gauge("Streams of KEDA that wait to be told of work.", "queue")
    scaling_pushes: Counter = counter(
        "What waiting streams were told: whether there is work.", "queue", "active"
    )
