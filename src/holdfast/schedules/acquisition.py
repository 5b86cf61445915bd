"""Acquisition: one script leases the schedules that are due, as many as there are free permits.

Invariant: no schedule is acquired before it is due, nor while another scheduler holds it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import boot_time
from holdfast.leases.lease import Lease
from holdfast.leases.sortedsets import SortedSetLeases
from holdfast.redis.scripts import load
from holdfast.schedules.replies import BATCH, seconds, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys

    Accept: TypeAlias = Callable[[str, float], bool]
    """Whether a name that has been due for so many seconds is taken."""
    Owns: TypeAlias = Callable[[str], bool]
    """Whether a name is in this scheduler's share."""

_ACQUIRE = load(__package__, "acquire")
_DUE = load(__package__, "due")
_HEAD, _FIELDS = 6, 10
_TURN_OF_ITS_OWN = "-"
_SPARE = 4  # guard: acquire-spare-candidates
"""A scheduler that chooses names asks for several times its limit: others may be quicker with the first."""


class Acquired(msgspec.Struct, frozen=True):
    """A schedule that this scheduler holds under ``fence``; times are epoch seconds by Redis TIME."""

    name: str
    fence: int
    ready: float
    """Its turn: the score it was found at."""
    acquired_at: float
    deadline: float
    streak: int
    runs: int
    spec: bytes
    triggered: bool
    """A manual run: completing it does not move its turns."""
    beside: float = 0.0
    """The last turn that was placed beside this one, by a holder that did not end it."""
    attempt: int = 1
    """One more for every holder of this turn that has died; giving it back does not count."""

    def lease(self, owner: str) -> Lease:
        """The lease it is held by."""
        return Lease(self.name, owner, self.fence)


class Acquisition(msgspec.Struct, frozen=True):
    """The reply of one call; its leases are trusted from ``asked_at``, a ``boot_time()`` before it."""

    schedules: list[Acquired]
    asked_at: float
    now: float
    """Redis TIME of the call."""
    earliest: float | None
    """The first turn that is still to come, or became due after the look; None if there is none."""
    backlog: int
    """How many are due, accepted and left, among the names that were read."""
    due: int
    """How many are due and left, for any scheduler."""
    dropped: int = 0
    """Entries that were no schedules that can run: without a definition, held by another, or paused."""
    unreadable: list[str] = []
    """Names that are no text and were discarded, as they can be shown."""


def schedule_leases(keys: ScheduleKeys, *, owner: str, ttl_ms: int) -> SortedSetLeases:
    """The lease table of schedules for the keeper, which renews; the scripts of this package do all else."""
    return SortedSetLeases(keys.leases, keys.record_prefix, kind="schedule", owner=owner, ttl_ms=ttl_ms)


class Look(msgspec.Struct, frozen=True):
    """The due names that a scheduler accepts, and when it began to look for them, by Redis's clock."""

    names: list[str]
    at: float


class _Due(msgspec.Struct, frozen=True):
    """A name that is due: since when, and the time that it is ordered by."""

    name: str
    at: float
    rank: float


class _Page(msgspec.Struct, frozen=True):
    """What one look saw: ``size`` names by their time, then urgent ones from further back."""

    now: float
    names: list[_Due]
    due: int
    size: int

    @property
    def reached(self) -> float:
        """The time of the last name: those behind it that are not urgent are not ordered before it."""
        return self.names[self.size - 1].at if self.size else -math.inf


def _own_first(names: list[str], owns: Owns, limit: int) -> list[str]:
    """Add names of other shards only where the own ones leave permits free.

    After an outage all are overdue, so any scheduler may run them: they must not all ask for the same head.
    """
    own = [name for name in names if owns(name)]
    room = max(limit - len(own), 0) * _SPARE  # guard: own-share-first
    return own + [name for name in names if not owns(name)][:room]


class Acquirer:
    """Acquires schedules for one owner: finds due names, where names matter, and takes them."""

    def __init__(
        self,
        redis: Redis,
        keys: ScheduleKeys,
        *,
        owner: str,
        ttl_ms: int,
        priority_seconds: float = 60.0,
        default_timeout_ms: int = 300_000,
        scan_pages: int = 10,
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._where: list[Any] = [keys.waiting, keys.working, keys.leases, keys.definitions]
        self._where += [keys.priorities, keys.record_prefix]
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._tail = [priority_seconds, default_timeout_ms]
        self._scan_pages = scan_pages
        self._position = 0

    async def acquire(
        self, limit: int, accept: Accept | None = None, owns: Owns | None = None
    ) -> Acquisition:
        """Acquire up to ``limit`` due schedules whose name ``accept`` takes; those of the own shard first."""
        limit = min(limit, BATCH)
        if accept is None:
            return await self._call(limit, ())
        # guard: acquire-after-failure
        return await self.take(limit, await self.look(limit, accept, owns))

    async def look(self, limit: int, accept: Accept, owns: Owns | None = None) -> Look:
        """Find due names that ``accept`` takes, more than ``limit`` if there are; nothing is taken yet.

        Reads on from where the last look ended, so that foreign names at the head hide none of its own.
        """
        wanted = min(max(limit, 0) * _SPARE, BATCH)
        head = await self._page(0)
        found = {one.name: one.rank for one in head.names if accept(one.name, head.now - one.at)}
        # The head is looked at every time, for the most overdue; the pages behind it take turns.
        position, reached = max(self._position, head.size), head.reached
        # guard: acquire-scan-pages
        for _ in range(min(self._scan_pages, math.ceil((head.due - head.size) / BATCH))):
            # Patient ones at the head may hide others that go before them.
            if sum(rank <= reached for rank in found.values()) >= wanted:  # guard: look-past-patient
                break
            page = await self._page(position)
            found.update((one.name, one.rank) for one in page.names if accept(one.name, page.now - one.at))
            reached = max(reached, page.reached)
            position = position + BATCH if position + BATCH < head.due else head.size
        self._position = position  # guard: acquire-scan-position
        ordered = sorted(found, key=lambda name: (found[name], name))
        names = _own_first(ordered, owns, limit)[:wanted] if owns is not None else ordered[:wanted]
        return Look(names, head.now)

    async def take(self, limit: int, look: Look) -> Acquisition:
        """Acquire up to ``limit`` of the names found, as far as they are due and still wait."""
        return await self._call(min(limit, BATCH), look.names, looked_at=f"{look.at:.6f}")

    async def _page(self, position: int) -> _Page:
        keys = [self._keys.waiting, self._keys.priorities]
        now, due, size, *rest = await _DUE(self._redis, keys, [position, BATCH, self._tail[0]])
        names = [
            _Due(text(rest[at]), float(rest[at + 1]), float(rest[at + 2])) for at in range(0, len(rest), 3)
        ]
        return _Page(float(now), names, int(due), int(size))

    async def _call(self, limit: int, names: Sequence[str], *, looked_at: str = "") -> Acquisition:
        asked_at = boot_time()
        args = [self._owner, self._ttl_ms, max(limit, 0), *self._tail, looked_at, *names]
        reply = await _ACQUIRE(self._redis, self._where, args)
        now = float(text(reply[0]))
        return Acquisition(
            [_acquired(reply, at, now) for at in range(_HEAD, len(reply), _FIELDS)],
            asked_at,
            now,
            seconds(reply[1]),
            backlog=int(reply[5]),
            due=int(reply[2]),
            dropped=int(reply[3]),
            unreadable=[repr(name) for name in reply[4]],
        )


def _acquired(reply: list[Any], at: int, now: float) -> Acquired:
    name, fence, ready, deadline, streak, runs, spec, cadence, beside, died = reply[at : at + _FIELDS]
    return Acquired(
        text(name),
        int(fence),
        float(ready),
        now,
        float(deadline),
        _whole(streak),
        _whole(runs),
        spec,
        text(cadence) != _TURN_OF_ITS_OWN,
        _time(beside),
        1 + _whole(died),  # guard: acquired-attempt
    )


def _time(value: Any) -> float:
    """Read a time of a record; 0 where there is none, or no number."""
    try:
        return float(value)
    except ValueError:
        return 0.0


def _whole(value: Any) -> int:
    """Read a counter of a record; 0 where it is no number."""
    try:
        return int(value)
    except ValueError:
        return 0
