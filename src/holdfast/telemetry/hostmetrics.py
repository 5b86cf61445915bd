"""The metrics of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.telemetry.metric_types import LOOKUP_SECONDS, SECONDS, counter, gauge, histogram, snapshot

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram

    from holdfast.telemetry.fast_metrics import Snapshot


class HostMetrics:
    """The metrics of long-lived agents on one host."""

    host_agents: Gauge = gauge("Agents that this host has.")
    host_capacity: Gauge = gauge("Agents that this host may have.")
    host_density: Gauge = gauge("How full this host is, from 0 to 1.")
    host_memory_bytes: Gauge = gauge("Memory that the agents of this host use.")
    host_cpu_seconds: Counter = counter(
        "CPU time that the agents of this host have used, also those that have ended."
    )
    host_cpus: Gauge = gauge("Cores that this host may use.")
    host_memory_limit_bytes: Gauge = gauge("Memory that this host may use.")
    host_guild_agents: Snapshot = snapshot(
        "Agents that this host has, by guild and status.", "guild_id", "status"
    )
    host_agent_memory_bytes: Snapshot = snapshot(
        "Memory that an agent's process uses; as many series as agents, or none by hosts.agent_metrics.",
        "agent_id",
        "guild_id",
    )
    host_agent_cpu_seconds: Snapshot = snapshot(
        "CPU time that an agent's process has used; as many series as of its memory.", "agent_id", "guild_id"
    )
    host_create_seconds: Histogram = histogram(
        "Time from the call until the agent is ready, for agents that were started.",
        "guild_id",
        buckets=SECONDS,
    )
    host_create_errors: Counter = counter(
        "Requested agents that this host did not start; status is the gRPC code.",
        "guild_id",
        "status",
    )
    host_calls: Counter = counter(
        "Calls that were answered; kind is the call, status its gRPC code.", "kind", "status"
    )
    host_call_seconds: Histogram = histogram("Time that a call took.", "kind", buckets=SECONDS)
    host_agents_ended: Counter = counter(
        "Agents that ended on this host: stopped, crashed or moving.", "status"
    )
    host_restarts: Counter = counter("Agents that ended by themselves and were restarted on this host.")
    host_lease_ends: Counter = counter(
        "Agents that were stopped on this host because their lease was not renewed, until it is held again."
    )
    host_disowned: Counter = counter(
        "Agents stopped because the registry has them elsewhere or not at all; reason is lost or unwanted.",
        "reason",
    )
    host_rescued: Counter = counter(
        "Agents of dead hosts that this host handled; status is the result.", "status"
    )
    host_messages: Counter = counter(
        "Messages that residents of this host finished, reported every few seconds; status is the result.",
        "agent",
        "status",
    )
    host_message_seconds: Counter = counter("Time that residents of this host spent on messages.", "agent")
    host_message_retries: Counter = counter(
        "Messages that a resident of this host failed to process and that are delivered again.", "agent"
    )
    host_lookups: Counter = counter(
        "Lookups of one agent in the registry; status is found, missing or failed.", "status"
    )
    host_lookup_seconds: Histogram = histogram(
        "Time that a lookup in the registry took.", buckets=LOOKUP_SECONDS
    )
