"""Completion: a run ends once, under its fence, and its schedule gets its next turn in the same script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.config.scheduling import KEPT_TURNS
from holdfast.redis.scripts import load
from holdfast.schedules.troubles import say_discarded
from holdfast.schedules.words import CHUNK, Ended, score, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.leases.lease import Lease
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.troubles import Discarded

_COMPLETE = load(__package__, "complete")
_GIVE_BACK = load(__package__, "give_back")
_ERROR_MOST = 1000
"""Characters of an error that are kept; the rest is in the logs."""


class Done(msgspec.Struct, frozen=True):
    """How a run ended and when its schedule's next turn is; ``next_at`` None is never again."""

    name: str
    fence: int
    next_at: float | None
    streak: int = 0
    outcome: str = "succeeded"
    error: str = ""
    duration_ms: float = 0.0
    pause_after: int = 0
    """Failures in a row after which the schedule is paused; Redis counts those of parallel turns, too."""
    doubtful: float | None = None
    """A turn that was perhaps placed beside this one: if Redis has not, that is the next one."""
    history: bytes = b""
    """The turn as its schedule's history keeps it; empty if it is not to be listed."""


class Completer:
    """Ends the runs of one owner."""

    def __init__(
        self,
        redis: Redis,
        keys: ScheduleKeys,
        *,
        owner: str,
        kept_turns: int = KEPT_TURNS,
        discarded: Discarded = say_discarded,
    ) -> None:
        self._redis = redis
        self._where: list[Any] = [keys.waiting, keys.working, keys.leases, keys.definitions]
        self._where += [keys.record_prefix]
        self._priorities, self._nudge = keys.priorities, keys.nudge
        self._head: list[Any] = [owner, kept_turns]
        self._discarded = discarded

    async def complete(self, runs: Sequence[Done]) -> list[Ended]:
        """End runs; a stale one changes nothing. Safe to send again when the answer was lost."""
        done: list[Ended] = []
        for start in range(0, len(runs), CHUNK):
            args = list(self._head)
            for run in runs[start : start + CHUNK]:
                args += (run.name, run.fence, score(run.next_at), run.streak, run.outcome)
                args += (run.error[:_ERROR_MOST], round(run.duration_ms, 3), run.pause_after)
                args += (score(run.doubtful), run.history)
            discarded, *told = await _COMPLETE(self._redis, [*self._where, self._priorities], args)
            self._discarded(discarded)
            done += words(Ended, told)
        return done

    async def give_back(
        self,
        leases: Sequence[Lease],
        after: Sequence[float] | None = None,
        history: Sequence[bytes] | None = None,
    ) -> list[Ended]:
        """Give runs back that did not end: due so many seconds from now, or at their original turn.

        ``history`` has those that had begun, as the histories of their schedules keep them.
        """
        done: list[Ended] = []
        delays = ["" for _ in leases] if after is None else [f"{delay:.6f}" for delay in after]
        runs = list(zip(leases, delays, history or [b""] * len(leases), strict=True))
        for start in range(0, len(runs), CHUNK):
            args = list(self._head)
            for lease, delay, turn in runs[start : start + CHUNK]:
                args += (lease.key, lease.fence, delay, turn)
            discarded, *reply = await _GIVE_BACK(self._redis, [*self._where, self._nudge], args)
            self._discarded(discarded)
            done += words(Ended, reply)
        return done
