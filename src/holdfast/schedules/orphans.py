"""Orphans: schedules whose holder died, and entries that no lawful script leaves behind.

The first net is the leases: any scheduler brings back what was not renewed, within about one ttl.
The second is the leader's sweep over both sets, page by page, for what has no lease.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.config.scheduling import KEPT_TURNS
from holdfast.leases.leadership import LeaderRecord, Leadership
from holdfast.redis.scripts import load
from holdfast.schedules.redis_errors import log_discarded
from holdfast.schedules.replies import PAGE, Found, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.redis_errors import Discarded

_RECLAIM = load(__package__, "reclaim")
_SWEEP = load(__package__, "sweep")
_POSITION_TTL_MS: Final = 86_400_000


class Reclaimed(msgspec.Struct, frozen=True):
    """A schedule that was taken from an owner which stopped renewing."""

    name: str
    owner: str
    removed: bool = False
    """Nobody defines it any more, so it was not planned again."""


class OrphanSweep(msgspec.Struct, frozen=True):
    """What a sweep looked at and put right; ``whole`` is False if its budget ended it before the end."""

    looked_at: int
    found: dict[Found, int]
    whole: bool


def cleanup_leadership(keys: ScheduleKeys, *, owner: str, ttl_ms: int) -> Leadership:
    """The leadership of orphan cleanup; it is stored as a string, so that ``GET cleanup-leader`` answers."""
    return Leadership(keys.leader, owner=owner, ttl_ms=ttl_ms, record=LeaderRecord.STRING)


class Orphans:
    """Both nets, over one set of keys."""

    def __init__(
        self,
        redis: Redis,
        keys: ScheduleKeys,
        *,
        threshold_seconds: float = 600.0,
        remove_numeric: bool = True,
        kept_turns: int = KEPT_TURNS,
        discarded: Discarded = log_discarded,
        page: int = PAGE,
        position_ttl_ms: int = _POSITION_TTL_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._where: list[Any] = [keys.waiting, keys.working, keys.leases, keys.definitions]
        self._where += [keys.record_prefix]
        self._position = keys.sweep
        self._tail = [threshold_seconds, int(remove_numeric), position_ttl_ms]
        self._kept_turns = kept_turns
        self._discarded = discarded
        self._page = page
        self._monotonic = monotonic

    async def reclaim(self, limit: int = 100) -> list[Reclaimed]:
        """Bring back what expired, at its original turn and under a higher fence."""
        discarded, *reply = await _RECLAIM(self._redis, self._where, [limit, self._kept_turns])
        self._discarded(discarded)
        return [
            Reclaimed(text(reply[i]), text(reply[i + 1]), removed=text(reply[i + 2]) == "removed")
            for i in range(0, len(reply), 3)
        ]

    async def sweep(self, *, budget_seconds: float = 0.0) -> OrphanSweep:
        """Look at both sets until their end or until the budget is used up (0 = no limit), a page at least.

        A pass goes on where the last one ended early. The position is in Redis: the tail of a long set is
        reached although another scheduler may lead each pass.
        """
        ends = self._monotonic() + budget_seconds if budget_seconds > 0 else float("inf")
        found: Counter[Found] = Counter()
        looked_at = 0
        which, rank = "", 0
        while True:
            args = [which, rank, self._page, *self._tail]
            seen, following, rank, *rest = await _SWEEP(self._redis, [*self._where, self._position], args)
            found.update(Found(text(word)) for word in rest[1::2])
            looked_at += seen
            which = text(following)
            if not which or self._monotonic() >= ends:
                return OrphanSweep(looked_at, dict(found), whole=not which)
