"""Hosts: long-lived agents, where they are and what they use."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row, Variable
from queries import HERE, NAMESPACE, RATE, one, quantiles, rate

HOSTS = Dashboard(
    "holdfast-hosts",
    "Holdfast: hosts",
    "Long-lived agents: how many, where, how quickly they start, what they use.",
    (NAMESPACE, Variable("instance", "holdfast_host_capacity")),
    (
        Row(
            "Agents",
            (
                Panel(
                    "Agents by guild",
                    "Agents of each guild; residents have none.",
                    "short",
                    one(
                        'sum by (guild_id) (holdfast_host_guild_agents{namespace=~"$namespace", instance=~"$instance"})',
                        "{{guild_id}}",
                    ),
                    stacked=True,
                ),
                Panel(
                    "How full hosts are",
                    "Agents of what a host may have; the HPA adds hosts at 80 %.",
                    "percentunit",
                    one(
                        'max by (instance) (holdfast_host_density{namespace=~"$namespace", instance=~"$instance"})',
                        "{{instance}}",
                    ),
                    bad=0.9,
                ),
                Panel(
                    "Ended, restarted, rescued",
                    "Agents that a host has no more, by how; those that it started again; those of dead hosts.",
                    "ops",
                    (
                        Query(rate("host_agents_ended", by="status", selector=HERE), "{{status}}"),
                        Query(rate("host_restarts", by="namespace", selector=HERE), "restarted"),
                        Query(rate("host_rescued", by="status", selector=HERE), "rescued {{status}}"),
                    ),
                ),
                Panel(
                    "Creation",
                    "Agents that were started, and those that were not by gRPC code, a second.",
                    "ops",
                    (
                        Query(
                            f"sum by (instance) (rate(holdfast_host_create_seconds_count{{{HERE}}}{RATE}))",
                            "{{instance}}",
                        ),
                        Query(rate("host_create_errors", by="status", selector=HERE), "{{status}}"),
                    ),
                ),
                Panel(
                    "Creation time",
                    "Time from the call to an agent that can receive.",
                    "s",
                    quantiles("host_create_seconds", by="", selector=HERE),
                    bad=3,
                ),
                Panel(
                    "Messages",
                    "Messages that residents were done with, by how, a second.",
                    "ops",
                    one(rate("host_messages", by="agent, status", selector=HERE), "{{agent}} {{status}}"),
                ),
            ),
        ),
        Row(
            "Resources",
            (
                Panel(
                    "CPU of hosts",
                    "Share of its cores that the agents of a host use.",
                    "percentunit",
                    one(
                        f"sum by (instance) (rate(holdfast_host_cpu_seconds_total{{{HERE}}}{RATE}))"
                        f" / on (instance) max by (instance) (holdfast_host_cpus{{{HERE}}})",
                        "{{instance}}",
                    ),
                    bad=0.8,
                ),
                Panel(
                    "Memory of hosts",
                    "Share of its memory that the agents of a host use.",
                    "percentunit",
                    one(
                        f"max by (instance) (holdfast_host_memory_bytes{{{HERE}}})"
                        f" / on (instance) max by (instance) (holdfast_host_memory_limit_bytes{{{HERE}}})",
                        "{{instance}}",
                    ),
                    bad=0.9,
                ),
                Panel(
                    "Largest agents",
                    "The ten agents with the most memory.",
                    "bytes",
                    one(f"topk(10, holdfast_host_agent_memory_bytes{{{HERE}}})", "{{agent_id}}"),
                ),
            ),
        ),
        Row(
            "Calls and registry",
            (
                Panel(
                    "Calls",
                    "gRPC calls by call and code, a second.",
                    "ops",
                    one(rate("host_calls", by="kind, status", selector=HERE), "{{kind}} {{status}}"),
                ),
                Panel(
                    "Call time",
                    "Time that a call took (p50, p95, p99).",
                    "s",
                    quantiles("host_call_seconds", by="kind", selector=HERE),
                ),
                Panel(
                    "Registry",
                    "Time that a look into the registry takes: Redis, and the wait for a connection.",
                    "s",
                    quantiles("host_lookup_seconds", by="", selector=HERE),
                ),
            ),
        ),
    ),
)
