"""Queues in which runs wait while no worker serves them, for longer than a scale-up takes.

A system that was scaled to zero on purpose has no waiting runs, so it is never reported: when one comes, its
autoscaler brings a worker within ``api.unserved_seconds``. Runs that wait longer have a wrong queue, worker
type or autoscaler. Pure: what was read of Redis goes in, what to report comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from holdfast.redis.members import Member
    from holdfast.scaling.depth import Need


class UnservedQueues:
    """Remembers since when each queue has had waiting runs and no worker."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._since: dict[str, float] = {}
        self.names: tuple[str, ...] = ()

    def observe(
        self, now: float, needs: Sequence[Need], workers: Iterable[Member], unread: Collection[str] = ()
    ) -> tuple[list[Need], list[str]]:
        """Note what there is now; return the queues to report from now on, and those to report no longer.

        A queue that could not be read stays reported or unreported, and its time begins anew.
        """
        served = _served(workers)
        waiting = [need for need in needs if _waits(need) and need.queue not in served]
        self._since = {need.queue: self._since.get(need.queue, now) for need in waiting}
        before = self.names
        late = [need for need in waiting if need.queue in before or self._is_late(now, need.queue)]
        kept = [name for name in before if name in unread]  # guard: unserved-unread-stays-reported
        self.names = (*(need.queue for need in late), *kept)
        began = [need for need in late if need.queue not in before]
        return began, [name for name in before if name not in self.names]

    def forget_times(self) -> None:
        """Begin to count anew: after an outage of Redis, live workers announce themselves only gradually."""
        self._since.clear()  # guard: unserved-not-during-outage

    def _is_late(self, now: float, queue: str) -> bool:
        return now - self._since[queue] >= self._after_seconds


def _waits(need: Need) -> bool:
    return need.undelivered + need.due > 0 and not need.paused  # guard: unserved-only-with-waiting-runs


def _served(workers: Iterable[Member]) -> set[str]:
    """The queues of the workers that take new runs."""
    working = (worker for worker in workers if worker.fields.get("state") != "draining")
    return {queue for worker in working for queue in worker.fields.get("queues", "").split(",")}
