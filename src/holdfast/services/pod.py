"""The fields of a worker's record about its pod: the pod's name, and how much work the worker holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.redis.members import PodName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.config import Settings


def pod_name(settings: Settings) -> PodName:
    """Return the pod of this process; by the users' document, a worker may have the name of its pod."""
    pod = settings.pod
    return PodName(pod.namespace, pod.name or (settings.worker.name if pod.uid else ""), pod.uid)


class Holding:
    """How long runs have been held, each from the first heartbeat that found it running."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, int], float] = {}

    def seconds(self, running: Iterable[tuple[str, int]]) -> float:
        """Update the running runs, by run and fence; return the sum of their seconds."""
        now = self._clock()
        self._since = {key: self._since.get(key, now) for key in running}
        return sum(now - since for since in self._since.values())
