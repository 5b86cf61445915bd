"""Workers and scaling: what queues are worth, what they have, how workers live and leave."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row
from queries import HERE, NAMESPACE, QUEUES, RATE, gauge, one, quantiles, rate

# KEDA's operator is scraped in its own namespace: that of the ScaledObject is a label of its metrics.
KEDA = 'exported_namespace=~"$namespace"'


def hpa(name: str) -> str:
    """What kube-state-metrics says of the HPAs of this namespace."""
    return f"max by (horizontalpodautoscaler) (kube_horizontalpodautoscaler_{name}{{{HERE}}})"


WORKERS = Dashboard(
    "holdfast-workers",
    "Holdfast: workers and scaling",
    "What the queues are worth, what they have, and how workers live and leave.",
    (NAMESPACE, QUEUES),
    (
        Row(
            "Scaling",
            (
                Panel(
                    "Workers: wanted and there",
                    "What the scaling policy asks for against those that live. KEDA follows the demand.",
                    "short",
                    (
                        Query(gauge("scaling_wanted"), "{{queue}} wanted"),
                        Query(gauge("queue_workers"), "{{queue}} there"),
                    ),
                    width=12,
                ),
                Panel(
                    "Demand and slots",
                    "Runs that want a slot (what waits is weighted by its age) against the slots that there are.",
                    "short",
                    (
                        Query(gauge("scaling_demand"), "{{queue}} demand"),
                        Query(gauge("slots", how="sum"), "{{queue}} slots"),
                        Query(gauge("runs_running", how="sum"), "{{queue}} taken"),
                    ),
                    width=12,
                ),
                Panel(
                    "Slots taken",
                    "Share of all slots that execute a run.",
                    "percentunit",
                    one(f"{gauge('runs_running', how='sum')} / on (queue) {gauge('slots', how='sum')}"),
                ),
                Panel(
                    "Backlog per worker",
                    "Runs for each worker; the line is MAX_PENDING_PER_WORKER.",
                    "short",
                    (
                        Query(
                            f"{gauge('queue_depth')} / on (queue) ({gauge('queue_workers')} > 0)", "{{queue}}"
                        ),
                        Query(gauge("queue_max_pending"), "{{queue}} limit"),
                    ),
                ),
                Panel(
                    "Answers to autoscalers",
                    "What those who ask for the demand are told; 503 and unavailable mean that Redis can't be asked.",
                    "ops",
                    (
                        Query(
                            rate(
                                "http_requests", by="status", selector=f'{HERE}, kind=~"/internal/scaling/.*"'
                            ),
                            "HTTP {{status}}",
                        ),
                        Query(rate("scaling_questions", by="result", selector=HERE), "gRPC {{result}}"),
                    ),
                ),
                Panel(
                    "Time to answer KEDA",
                    "Time one gRPC call of KEDA takes, streams apart.",
                    "s",
                    quantiles("scaling_seconds", by="call", selector=HERE),
                    width=12,
                ),
                Panel(
                    "Pushes",
                    "What KEDA's waiting streams were told, a second, and how many streams wait.",
                    "short",
                    (
                        Query(rate("scaling_pushes", by="queue, active"), "{{queue}} active={{active}}"),
                        Query(gauge("scaling_streams", how="sum"), "{{queue}} streams"),
                    ),
                    width=12,
                ),
            ),
        ),
        Row(
            "KEDA and the HPA",
            (
                Panel(
                    "HPA: wanted and there",
                    "What the HPA of each worker type asks for against what it has (kube-state-metrics).",
                    "short",
                    (
                        Query(hpa("status_desired_replicas"), "{{horizontalpodautoscaler}} wanted"),
                        Query(hpa("status_current_replicas"), "{{horizontalpodautoscaler}} there"),
                        Query(hpa("spec_max_replicas"), "{{horizontalpodautoscaler}} at most"),
                    ),
                    width=12,
                ),
                Panel(
                    "Replicas of Deployments",
                    "Pods that each Deployment wants and has ready; 0 with demand above is a type that nobody wakes.",
                    "short",
                    (
                        Query(
                            f"max by (deployment) (kube_deployment_spec_replicas{{{HERE}}})",
                            "{{deployment}} wanted",
                        ),
                        Query(
                            f"max by (deployment) (kube_deployment_status_replicas_ready{{{HERE}}})",
                            "{{deployment}} ready",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "What KEDA measures",
                    "The value that KEDA's operator last read for each ScaledObject (its own metrics).",
                    "short",
                    one(f"max by (scaledObject) (keda_scaler_metrics_value{{{KEDA}}})", "{{scaledObject}}"),
                ),
                Panel(
                    "KEDA: active and paused",
                    "1 while a ScaledObject's trigger is active, or while somebody has paused it.",
                    "short",
                    (
                        Query(
                            f"max by (scaledObject) (keda_scaler_active{{{KEDA}}})", "{{scaledObject}} active"
                        ),
                        Query(
                            f"max by (scaledObject) (keda_scaled_object_paused{{{KEDA}}})",
                            "{{scaledObject}} paused",
                        ),
                    ),
                ),
                Panel(
                    "KEDA: errors",
                    "How often KEDA could not ask, a second, for each ScaledObject.",
                    "ops",
                    one(
                        f"sum by (scaledObject) (rate(keda_scaler_detail_errors_total{{{KEDA}}}{RATE}))",
                        "{{scaledObject}}",
                    ),
                ),
            ),
        ),
        Row(
            "Leases",
            (
                Panel(
                    "Held",
                    "Leases that processes hold, by kind.",
                    "short",
                    one(gauge("leases_held", by="kind", selector=HERE, how="sum"), "{{kind}}"),
                ),
                Panel(
                    "Renewal",
                    "Time one renewal of all leases of a process takes: how quick Redis is for them.",
                    "s",
                    quantiles("lease_renewal_seconds", by="kind", selector=HERE),
                ),
                Panel(
                    "Lost and refused",
                    "Leases that ended under running work, renewals without an answer, results that came too late.",
                    "ops",
                    (
                        Query(rate("leases_lost", by="kind", selector=HERE), "{{kind}} lost"),
                        Query(
                            rate("lease_renewal_failures", by="kind", selector=HERE), "{{kind}} not renewed"
                        ),
                        Query(rate("stale_settles_refused"), "{{queue}} stale results"),
                    ),
                ),
            ),
        ),
        Row(
            "Life",
            (
                Panel(
                    "Consumers and ghosts",
                    "Consumers of the group against workers that live: what is more is ghosts.",
                    "short",
                    (
                        Query(gauge("queue_consumers"), "{{queue}} consumers"),
                        Query(gauge("queue_workers"), "{{queue}} workers"),
                    ),
                ),
                Panel(
                    "Idlest consumer",
                    "Since Redis saw it. One that lives and waits may look idle, too: the workers of the panel before are who lives.",
                    "s",
                    one(gauge("queue_consumer_idle_seconds")),
                ),
                Panel(
                    "Cleanup",
                    "Ghosts found and removed, entries moved away from them, passes that failed.",
                    "ops",
                    (
                        Query(rate("ghost_consumers_found"), "{{queue}} found"),
                        Query(rate("ghost_consumers_removed"), "{{queue}} removed"),
                        Query(rate("entries_released"), "{{queue}} entries moved"),
                        Query(rate("cleanup_errors"), "{{queue}} failed"),
                    ),
                ),
                Panel(
                    "Shutdown",
                    "Time that the phases of workers' shutdowns have taken so far, or took; kind is the phase.",
                    "s",
                    one(gauge("shutdown_phase_seconds", by="kind", selector=HERE), "phase {{kind}}"),
                ),
                Panel(
                    "Memory",
                    "Memory of each process.",
                    "bytes",
                    one(
                        f"max by (instance) (holdfast_process_resident_memory_bytes{{{HERE}}})",
                        "{{instance}}",
                    ),
                ),
                Panel(
                    "CPU",
                    "Cores that each process uses.",
                    "short",
                    one(
                        f"sum by (instance) (rate(holdfast_process_cpu_seconds_total{{{HERE}}}{RATE}))",
                        "{{instance}}",
                    ),
                ),
                Panel(
                    "Agents that behave badly",
                    "Those that go on after their runs, processes that crash, event loops that stand.",
                    "short",
                    (
                        Query(gauge("bodies_lingering", how="sum"), "{{queue}} lingering"),
                        Query(rate("processes_crashed"), "{{queue}} crashes/s"),
                        Query(
                            f"sum by (job) (rate(holdfast_loop_blocked_seconds_count{{{HERE}}}{RATE}))",
                            "{{job}} blocked/s",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
