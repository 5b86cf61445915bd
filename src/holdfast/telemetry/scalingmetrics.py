"""The metrics of the external scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import LOOKUP_SECONDS, counter, gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram


class ScalingMetrics:
    """The metrics of KEDA's calls."""

    scaling_questions: Counter = counter(
        "Calls of KEDA by queue and result; `unknown` is a queue that is not configured.",
        "queue",
        "result",
    )
    scaling_seconds: Histogram = histogram(
        "Time that one call of KEDA took, without streams.", "call", buckets=LOOKUP_SECONDS
    )
    scaling_streams: Gauge = gauge("Open streams of KEDA.", "queue")
    scaling_pushes: Counter = counter(
        "States sent on streams of KEDA: whether there is work.", "queue", "active"
    )
