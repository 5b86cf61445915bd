"""The metrics of a host's agents: how many they are, what they use, and what they count themselves.

A series of one agent ends with it: such gauges are replaced as a whole. Reports of agents are added to
counters whose labels the host sets: a report can't add a label.
"""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.hosts.container_limits import allotted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.hosts.host import Host
    from holdfast.hosts.placement import HostLoad as Seen
    from holdfast.telemetry.metrics import Metrics

MESSAGES: Final = "messages"
"""A report of the work since the last one: ``finished`` (status to count), ``retried``, ``seconds``."""
_STATUSES: Final = ("succeeded", "failed", "timed_out", "cancelled", "interrupted")


def measure(host: Host, seen: Seen) -> None:
    """Set the gauges of a host."""
    metrics = host.metrics
    metrics.host_agents.set(seen.agents)
    metrics.host_capacity.set(seen.capacity)
    metrics.host_density.set(seen.density)
    may_use = allotted()
    metrics.host_cpus.set(may_use.cpus)
    metrics.host_memory_limit_bytes.set(may_use.memory_bytes)
    agents = {copy.agent.agent_id: (copy.agent.guild_id, process.status) for copy, process in host.all()}
    metrics.host_guild_agents.show(collections.Counter(map(tuple, agents.values())))
    usage = host.processes.usage()
    metrics.host_memory_bytes.set(sum(each.memory_bytes for each in usage.values()))
    metrics.host_cpu_seconds.inc(host.processes.spent_seconds())  # guard: host-cpu-of-all-agents
    if host.settings.agent_metrics:
        each = {(name, agents[name][0]): used for name, used in usage.items() if name in agents}
        metrics.host_agent_memory_bytes.show({key: used.memory_bytes for key, used in each.items()})
        metrics.host_agent_cpu_seconds.show({key: used.cpu_seconds for key, used in each.items()})


def count_messages(metrics: Metrics, name: str, fields: Mapping[str, Any]) -> None:
    """Add a report of an agent to the counters; values that are no numbers are ignored."""
    agent = metrics.agent_label(name)
    finished = fields.get("finished")
    counts = cast("dict[Any, Any]", finished) if isinstance(finished, dict) else {}
    for status in _STATUSES:
        if count := _count(counts.get(status)):
            metrics.host_messages.labels(agent, status).inc(count)
    if retried := _count(fields.get("retried")):
        metrics.host_message_retries.labels(agent).inc(retried)
    if seconds := _count(fields.get("seconds")):
        metrics.host_message_seconds.labels(agent).inc(seconds)


def _count(value: Any) -> float:
    usable = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if usable else 0.0
