"""Every metric of a process, each declared once in the module of its area.

The number of values of a label is limited by the configuration. Agent names come from submitters and could
grow without a limit: an unknown name is counted as ``other``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector

from holdfast.telemetry.hostmetrics import HostMetrics
from holdfast.telemetry.housemetrics import HttpMetrics, RedisMetrics, RelayMetrics, UpkeepMetrics
from holdfast.telemetry.metric_types import NAMESPACE, declarations
from holdfast.telemetry.producermetrics import ProducerMetrics
from holdfast.telemetry.runmetrics import LeaseMetrics, QueueMetrics, RunMetrics
from holdfast.telemetry.scalingmetrics import ScalingMetrics
from holdfast.telemetry.schedulemetrics import ScheduleMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.telemetry.fast_metrics import Count
    from holdfast.telemetry.metric_types import Declared

OTHER_AGENT = "other"
# A process without an app (a client, the janitor) can't tell known agents from unknown ones:
# it uses the first names up to this limit.
MAX_UNDECLARED_AGENTS = 100
MAX_GUILDS = 50
"""Guilds come and go, and counters stay: guilds beyond this limit are counted as ``other``."""


class RunMeter:
    """The counters of one queue and agent; get it once, from :meth:`Metrics.runs`.

    Its methods are for the worker's event loop only: they add without a lock.
    """

    __slots__ = ("_claimed", "_duration", "_finished", "_labels", "_metrics", "_wait")

    def __init__(self, metrics: Metrics, queue: str, agent: str) -> None:
        self._metrics = metrics
        self._labels = (queue, agent)
        self._claimed = metrics.runs_claimed.child(queue, agent)
        self._wait = metrics.queue_wait_seconds.child(queue)
        self._duration = metrics.run_duration_seconds.child(queue, agent)
        self._finished: dict[str, Count] = {}

    def submitted(self, count: int = 1) -> None:
        """Count runs accepted into the queue; may be called from any thread."""
        self._metrics.runs_submitted.labels(*self._labels).inc(count)

    def claimed(self, waited_seconds: float) -> None:
        """Count a run that a worker took, after waiting this long in the queue."""
        self._claimed.value += 1
        # Clocks of submitter and worker differ: a negative wait counts as 0.
        self._wait.observe(max(waited_seconds, 0.0))

    def finished(self, status: str, seconds: float) -> None:
        """Count a run that ended, and how long its last attempt took."""
        count = self._finished.get(status)
        if count is None:
            count = self._finished[status] = self._metrics.runs_finished.child(*self._labels, str(status))
        count.value += 1
        self._duration.observe(max(seconds, 0.0))

    def abandoned(self) -> None:
        """Count a run that ended while its agent ignores its stop."""
        self._metrics.runs_abandoned.labels(*self._labels).inc()

    def retried(self, reason: str) -> None:
        """Count a failed attempt that will be tried again; the reason is the failure's class."""
        self._metrics.runs_retried.labels(*self._labels, reason).inc()


class Metrics(
    RunMetrics,
    LeaseMetrics,
    RedisMetrics,
    UpkeepMetrics,
    QueueMetrics,
    RelayMetrics,
    ScheduleMetrics,
    HostMetrics,
    HttpMetrics,
    ProducerMetrics,
    ScalingMetrics,
):
    """The metrics of one process, on their own registry."""

    def __init__(self, agents: Iterable[str] | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._agents: set[str] = set(agents or ())
        self._open_to_agents = agents is None
        self._meters: dict[tuple[str, str], RunMeter] = {}
        self._guilds: set[str] = set()
        self.declared: list[Declared] = []
        for area in Metrics.__bases__:
            for name, declaration in declarations(area):
                self.declared.append(declaration.declared(name))
                setattr(self, name, declaration.make(name, self.registry))
        ProcessCollector(namespace=NAMESPACE, registry=self.registry)

    def runs(self, queue: str, agent: str) -> RunMeter:
        """Return the meter of a queue and agent, which is always the same object."""
        meter = self._meters.get((queue, agent))
        if meter is not None:
            return meter
        key = (queue, self.agent_label(agent))
        return self._meters.get(key) or self._meters.setdefault(key, RunMeter(self, *key))

    def expect(self, queue: str) -> None:
        """Create a queue's error counters at 0: a counter that appears at 1 has no increase to alert on."""
        for each in (self.runs_reclaimed, self.runs_restored, self.stale_settles_refused):
            each.labels(queue)
        self.cleanup_errors.labels(queue)

    def agent_label(self, agent: str) -> str:
        """Return the label value of an agent: its name if it is known here, else ``other``."""
        if agent in self._agents:
            return agent
        if self._open_to_agents and len(self._agents) < MAX_UNDECLARED_AGENTS:
            self._agents.add(agent)
            return agent
        return OTHER_AGENT

    def guild_label(self, guild_id: str) -> str:
        """Return the label value of a guild: its id if it is one of the first here, else ``other``."""
        if guild_id in self._guilds or len(self._guilds) < MAX_GUILDS:
            self._guilds.add(guild_id)
            return guild_id
        return OTHER_AGENT


def metrics_table() -> str:
    """Return every metric as a markdown table."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.text} |"
        for metric in sorted(Metrics().declared, key=lambda metric: metric.name)
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])
