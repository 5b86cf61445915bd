"""What a resident's worker has counted since the last time, told to its host every few seconds.

Differences, not totals: the host adds them up, and need not know when a process began anew.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.hosts.host_metrics import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.processes.control import Control
    from holdfast.telemetry.metrics import Metrics

_EVERY_SECONDS: Final = 5.0


class CounterDeltas:
    """The counts of one worker, as its host is told of them."""

    def __init__(self, metrics: Metrics, control: Control) -> None:
        self._metrics = metrics
        self._control = control
        self._told: collections.Counter[str] = collections.Counter()

    async def run(self) -> None:
        """Tell the news again and again, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            self.tell()

    def tell(self) -> None:
        """Tell what is new, if anything is."""
        counted = self._counted()
        news = counted - self._told
        self._told = counted
        if not news:
            return
        finished = {name: count for name, count in news.items() if name not in {"/retried", "/seconds"}}
        with contextlib.suppress(OSError):  # a host that is gone ends this process by other ways
            self._control.report(
                MESSAGES, finished=finished, retried=news["/retried"], seconds=news["/seconds"]
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
