"""Reading schedules: the state of each, its last run, and its next turns."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import NotFound
from holdfast.redis.command import command
from holdfast.redis.scripts import load
from holdfast.schedules.fire_times import fire_times
from holdfast.schedules.replies import CHUNK, NORMAL_PRIORITY, seconds, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.schedule import Schedule

_ENTRIES = load(__package__, "entries")
_HEAD = 5


class ScheduleState(enum.StrEnum):
    """The state of a schedule: the sorted set or the field of its record that it is in.

    ::

        (register) --> waiting --acquire.lua--> running (lease, fence + 1, deadline)
                        |  ^ ^                     |
                        |  | +--complete.lua, give_back.lua, reclaim.lua (the lease has expired)
                        |  |                       |
                        |  +--resume.lua-- paused <--complete.lua: paused meanwhile, or by failures in a row
                        +--pause.lua--------> ^    |
                                                   +--complete.lua, no turn is left--> done
        any state --remove.lua--> (gone; a running one is removed when it ends)
        in none of these: missing --repopulation--> waiting
    """

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    MISSING = "missing"
    """In no set: a key was changed from outside. The next repopulation brings it back."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule as it is in Redis; times are epoch seconds, None where there is none."""

    name: str
    spec: bytes
    state: ScheduleState
    next_at: float | None
    """Its next turn; while paused the one it keeps, while running None."""
    triggered: bool
    """Whether a manual run waits or goes on."""
    priority: int
    fence: int
    owner: str
    ready: float | None
    acquired_at: float | None
    deadline: float | None
    lease_expires_at: float | None
    streak: int
    runs: int
    revision: int
    """Of its definition and its pause; 0 if it is declared in code and was never paused."""
    reclaimed: int
    """How often its holder died since it last ended."""
    paused: str
    """Why it is paused, or will be after this run."""
    paused_since: float | None
    last_start: float | None
    last_end: float | None
    last_duration_ms: float | None
    last_outcome: str
    last_error: str
    """Of the last run that failed: a successful run keeps it."""
    last_error_at: float | None


class EntryPage(msgspec.Struct, frozen=True):
    """Some schedules; ``cursor`` is "" after the last page."""

    entries: list[Entry]
    cursor: str


def upcoming(entry: Entry, schedule: Schedule, now: float, count: int) -> list[float]:
    """Return the next ``count`` turns; those of a paused schedule are what it would have."""
    if entry.state is ScheduleState.DONE:
        return []
    if schedule.max_runs:
        count = min(count, max(schedule.max_runs - entry.runs, 0))
    first = entry.next_at
    if first is None:
        return fire_times(schedule, now, count)
    return [first, *fire_times(schedule, max(first, now), count - 1)][:count]


async def scan_names(
    redis: Redis, keys: ScheduleKeys, pattern: str, cursor: str, count: int
) -> tuple[str, list[str]]:
    """One page of the names that fit a glob, about ``count`` looked at; the cursor begins and ends as "0"."""
    scan = ("HSCAN", keys.definitions, cursor, "MATCH", pattern, "COUNT", max(count, 10))
    after, page = await command(redis, *scan)
    return text(after), [text(name) for name in page]  # redis-py has made a dict of it


class Entries:
    """Reads the schedules of one set of keys."""

    def __init__(self, redis: Redis, keys: ScheduleKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def get(self, name: str) -> Entry:
        """Read one schedule."""
        (entry,) = await self.get_many([name]) or [None]
        if entry is None:
            raise NotFound(f"There is no schedule named {name!r}; `holdfast schedules list` shows them all.")
        return entry

    async def get_many(self, names: Sequence[str]) -> list[Entry]:
        """Read schedules; unknown ones are left out."""
        keys = self._keys
        where = [keys.waiting, keys.working, keys.leases, keys.definitions, keys.priorities]
        found: list[Entry] = []
        for start in range(0, len(names), CHUNK):
            page = names[start : start + CHUNK]
            rows = await _ENTRIES(self._redis, [*where, keys.record_prefix], page)
            found += [_entry(name, row) for name, row in zip(page, rows, strict=True) if row[0]]
        return found

    async def list(self, pattern: str = "*", *, limit: int = 100, cursor: str = "") -> EntryPage:
        """Read about ``limit`` schedules whose name fits the glob ``pattern``, in no particular order."""
        names: list[str] = []
        at = cursor or "0"
        while len(names) < limit:
            at, found = await scan_names(self._redis, self._keys, pattern, at, limit)
            names += found
            if at == "0":
                break
        return EntryPage(await self.get_many(list(dict.fromkeys(names))), "" if at == "0" else at)


def _entry(name: str, row: list[Any]) -> Entry:
    spec, waits, deadline, expiry, priority = row[:_HEAD]
    record = {text(row[i]): row[i + 1] for i in range(_HEAD, len(row), 2)}
    state = _state(waits, deadline or expiry, record)
    expires_ms = seconds(expiry)
    return Entry(
        name=name,
        spec=spec,
        state=state,
        next_at=_number(waits) if state is ScheduleState.WAITING else _number(record.get("next")),
        triggered="cadence" in record,
        priority=int(_number(priority) or 0) if priority else NORMAL_PRIORITY,
        fence=int(_number(record.get("fence")) or 0),
        owner=text(record.get("owner", "")),
        ready=_number(record.get("ready")),
        acquired_at=_number(record.get("acquired_at")),
        deadline=_number(deadline),
        lease_expires_at=None if expires_ms is None else expires_ms / 1000,
        streak=int(_number(record.get("streak")) or 0),
        runs=int(_number(record.get("runs")) or 0),
        revision=int(_number(record.get("revision")) or 0),
        reclaimed=int(_number(record.get("reclaimed")) or 0),
        paused=text(record.get("paused", "")),
        paused_since=_number(record.get("paused_since")),
        last_start=_number(record.get("last_start")),
        last_end=_number(record.get("last_end")),
        last_duration_ms=_number(record.get("last_duration_ms")),
        last_outcome=text(record.get("last_outcome", "")),
        last_error=text(record.get("last_error", "")),
        last_error_at=_number(record.get("last_error_at")),
    )


def _state(waits: Any, runs: Any, record: dict[str, Any]) -> ScheduleState:
    if runs:
        return ScheduleState.RUNNING
    if waits:
        return ScheduleState.WAITING
    if "paused_since" in record:
        return ScheduleState.PAUSED
    return ScheduleState.DONE if "done" in record else ScheduleState.MISSING


def _number(value: Any) -> float | None:
    """Read a number of a record; None also where it is no number."""
    try:
        return float(value) if value not in {b"", "", None} else None
    except ValueError:
        return None
