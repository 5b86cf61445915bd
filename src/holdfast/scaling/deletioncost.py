"""Pod deletion costs: the more work a worker holds, the later a scale-in should end its pod.

Pure: from the workers' load to the costs of their pods. A cost is raised when a worker has held that much
for ``raise_seconds`` (by default at once), and lowered when it has held less for ``lower_seconds``. So it
does not change with each run: at most ``2 x len(STEPS)`` times per pod in ``lower_seconds``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.scaling.policy import Damper

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.config import JanitorSettings

STEPS: Final = ((0.0, 100), (60.0, 1000), (600.0, 10_000))
"""The cost from that many seconds of work in progress, over all runs; without a run it is 0."""
_AGAIN_SECONDS: Final = 60.0
"""The pause before a cost is written again to a pod that refused it."""
_GAP_SECONDS: Final = 30.0
_GAP_LOOKS: Final = 3
"""If no sample was taken for longer than both, the samples before are discarded."""


class Busy(msgspec.Struct, frozen=True):
    """A sample of a worker's pod: its present deletion cost, and the work that the worker holds."""

    uid: str
    cost: int
    runs: int
    held_seconds: float


class Patch(msgspec.Struct, frozen=True):
    """The deletion cost to write to a pod."""

    uid: str
    cost: int
    raised: bool


def cost(runs: int, held_seconds: float) -> int:
    """Return the deletion cost of the pod of a worker with so many runs, held for so long in total."""
    return max((step for least, step in STEPS if held_seconds >= least), default=0) if runs > 0 else 0


class Costs:
    """Tracks for how long each worker has been at its level of work."""

    def __init__(self, settings: JanitorSettings) -> None:
        self._raise_seconds = settings.deletion_cost_raise_seconds
        self._lower_seconds = settings.deletion_cost_lower_seconds
        self._most = max(1, int(settings.deletion_cost_per_second * settings.deletion_cost_seconds))
        self._longest_gap = max(_GAP_SECONDS, _GAP_LOOKS * settings.deletion_cost_seconds)
        self._known: dict[str, _Memory] = {}
        self._looked_at: float | None = None

    def look(self, now: float, workers: Iterable[Busy]) -> list[Patch]:
        """Return the patches to write now, the most urgent first, limited to the rate until the next call."""
        if self._looked_at is not None and now - self._looked_at > self._longest_gap:
            self._known.clear()  # guard: cost-times-cleared
        self._looked_at = now
        seen = {worker.uid: worker for worker in workers}
        self._known = {uid: memory for uid, memory in self._known.items() if uid in seen}
        wanted = [patch for worker in seen.values() if (patch := self._patch_of(now, worker))]
        # A worker that became busy may be ended until its cost is written; lower costs can wait.
        wanted.sort(key=lambda patch: (not patch.raised, -abs(patch.cost - seen[patch.uid].cost)))
        return wanted[: self._most]

    def wrote(self, now: float, patch: Patch) -> None:
        """Note that a patch was sent: it is not sent again soon, even if the pod does not have it yet."""
        if memory := self._known.get(patch.uid):
            memory.wrote(now, patch.cost)

    def _patch_of(self, now: float, worker: Busy) -> Patch | None:
        memory = self._known.get(worker.uid)
        if memory is None:
            memory = self._known[worker.uid] = _Memory(now, self._raise_seconds, self._lower_seconds)
        least, most = memory.follow(now, cost(worker.runs, worker.held_seconds))
        lasted = now - memory.since
        if least > worker.cost and lasted >= self._raise_seconds:
            patch = Patch(worker.uid, least, raised=True)
        elif most < worker.cost and lasted >= self._lower_seconds:
            patch = Patch(worker.uid, most, raised=False)
        else:
            return None
        return None if memory.tried_lately(now, patch.cost) else patch  # guard: refused-cost-backoff


class _Memory:
    """The recent work of one worker, and the last cost written to its pod."""

    __slots__ = ("_least", "_most", "_wrote", "since")

    def __init__(self, now: float, raise_seconds: float, lower_seconds: float) -> None:
        self.since = now
        self._least = Damper(raise_seconds)  # guard: cost-raise-damped
        self._most = Damper(lower_seconds)  # guard: cost-lower-damped
        self._wrote: tuple[float, int] | None = None

    def follow(self, now: float, level: int) -> tuple[int, int]:
        """Return the lowest level of the shorter time, and the highest of the longer."""
        return -self._least.follow(now, -level), self._most.follow(now, level)

    def wrote(self, now: float, cost: int) -> None:
        """Store the cost that was sent."""
        self._wrote = (now, cost)

    def tried_lately(self, now: float, cost: int) -> bool:
        """Return whether this cost was sent lately: it may have been refused, or not be visible yet."""
        return self._wrote is not None and self._wrote[1] == cost and now - self._wrote[0] < _AGAIN_SECONDS
