"""The counter deltas of a resident's worker, reported to its host every few seconds.

Differences, not totals: the host adds them up, independently of restarts of the process.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.hosts.host_metrics import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.processes.control import ChildControl
    from holdfast.telemetry.metrics import Metrics

_EVERY_SECONDS: Final = 5.0


class CounterDeltas:
    """Reports the counter deltas of one worker to its host."""

    def __init__(self, metrics: Metrics, control: ChildControl) -> None:
        self._metrics = metrics
        self._control = control
        self._reported: collections.Counter[str] = collections.Counter()

    async def run(self) -> None:
        """Report the deltas periodically, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            self.tell()

    def tell(self) -> None:
        """Report the deltas, if there are any."""
        counted = self._counted()
        deltas = counted - self._reported
        self._reported = counted
        if not deltas:
            return
        finished = {name: count for name, count in deltas.items() if name not in {"/retried", "/seconds"}}
        with contextlib.suppress(OSError):  # the end of the host ends this process anyway
            self._control.report(
                MESSAGES, finished=finished, retried=deltas["/retried"], seconds=deltas["/seconds"]
            )

    def _counted(self) -> collections.Counter[str]:
        counted: collections.Counter[str] = collections.Counter()
        for name, value in _samples(self._metrics.runs_finished, "_total", "status"):
            counted[name] += value
        for _, value in _samples(self._metrics.runs_retried, "_total"):
            counted["/retried"] += value
        for _, value in _samples(self._metrics.run_duration_seconds, "_sum"):
            counted["/seconds"] += value
        return counted


def _samples(metric: Any, suffix: str, label: str = "") -> Iterable[tuple[str, Any]]:
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix):
                yield sample.labels.get(label, ""), sample.value
