"""What a worker writes down for whoever looks at pods: which one it is in, and how much work it holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.redis.members import PodName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.config import Settings


def pod_name(settings: Settings) -> PodName:
    """Name the pod that this process runs in; by the users' document, a worker may be named after it."""
    pod = settings.pod
    return PodName(pod.namespace, pod.name or (settings.worker.name if pod.uid else ""), pod.uid)


class Holding:
    """For how long runs have been held; each counts from the first heartbeat that found it going."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, int], float] = {}

    def seconds(self, running: Iterable[tuple[str, int]]) -> float:
        """Look at what is running now, by run and fence; return the seconds of all of it together."""
        now = self._clock()
        self._since = {key: self._since.get(key, now) for key in running}
        return sum(now - since for since in self._since.values())
