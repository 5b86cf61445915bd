"""The metrics of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.declaring import SECONDS, counter, gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram


class HostMetrics:
    """What becomes of long-lived agents on one host."""

    host_agents: Gauge = gauge("Agents that this host has.")
    host_capacity: Gauge = gauge("Agents that this host may have.")
    host_density: Gauge = gauge("How full this host is, from 0 to 1.")
    host_memory_bytes: Gauge = gauge("Memory that the agents of this host use.")
    host_cpu_seconds: Gauge = gauge("CPU time that the agents of this host have used.")
    host_create_seconds: Histogram = histogram(
        "Time from the call to an agent that can receive.", buckets=SECONDS
    )
    host_calls: Counter = counter(
        "Calls that were answered; kind is the call, status its gRPC code.", "kind", "status"
    )
    host_call_seconds: Histogram = histogram("Time that a call took.", "kind", buckets=SECONDS)
    host_agents_ended: Counter = counter(
        "Agents that this host has no more: stopped, crashed or moving.", "status"
    )
    host_restarts: Counter = counter("Agents that ended unasked and were started again here.")
    host_disowned: Counter = counter(
        "Copies stopped because the registry said so; reason is lost or unwanted.", "reason"
    )
    host_rescued: Counter = counter(
        "Agents of dead hosts that this host looked after; status is how.", "status"
    )
