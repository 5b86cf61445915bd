"""SQL sync: the schedules in SQL and those in Redis are made the same; the newer revision wins.

::

    SQL has it, Redis has not          put it back, paused and done as it was
    SQL has removed it, Redis has it   remove it, unless it was defined anew
    SQL is newer                       write that to Redis
    Redis is newer, or SQL lacks it    keep that in SQL: made without SQL, or paused for its failures

A name that the code declares is the code's: SQL keeps only its pause.
"""

from __future__ import annotations

import dataclasses
import enum
import time
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import InputError
from holdfast.schedules.entries import Entry, ScheduleState
from holdfast.schedules.registry import registration_of, spread
from holdfast.schedules.replies import BATCH, PAGE, Registered
from holdfast.schedules.schedule import decoded, family
from holdfast.store.names import LABEL_BYTES
from holdfast.store.schedules import StoredSchedule
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.schedules.entries import Entries
    from holdfast.schedules.registry import DefinitionsVersion, Registration, ScheduleRegistry
    from holdfast.store.schedules import SchedulesHead
    from holdfast.store.store import Store

WHOLE_EVERY: Final = 10
"""Every so many passes everything is compared, both ways."""
OVERLAP_SECONDS: Final = 60.0
"""How much later than its time of writing a row may be seen: clocks and transactions differ."""
KEEP_REMOVED_SECONDS: Final = 30 * 86400.0
_FIRST: Final = 0.001

_log = get_logger(__name__)


class RedisChange(enum.Enum):
    """A change that brings Redis to what SQL has."""

    NOTHING = enum.auto()
    PUT = enum.auto()
    REMOVE = enum.auto()
    PAUSE = enum.auto()
    RESUME = enum.auto()


def is_made(spec: bytes) -> bool:
    """Return whether a definition was made at run time; the code's, and an unreadable one, was not."""
    try:
        return decoded(spec).source == "api"  # guard: sql-source-api-only
    except InputError:
        return False


def is_declared(spec: bytes) -> bool:
    """Return whether a definition is declared in code; a turn, and an unreadable one, is not."""
    try:
        return decoded(spec).source == "code"
    except InputError:
        return False


def redis_changes(row: StoredSchedule, entry: Entry | None) -> tuple[RedisChange, ...]:
    """Return the changes that Redis needs for one row, in order."""
    if entry is None:
        return (RedisChange.PUT,) if row.spec and not row.removed else ()
    newer, made = row.revision > entry.revision, is_made(entry.spec)
    if row.removed:
        return (RedisChange.REMOVE,) if newer and made else ()
    paused = entry.paused_since is not None
    # Under the same revision Redis may be paused and SQL not (for failures), but not the other way round.
    pause_or_resume = RedisChange.PAUSE if row.paused_since else RedisChange.RESUME
    lacks = row.revision == entry.revision and bool(row.paused_since) and not paused
    return ((RedisChange.PUT,) if newer and made and row.spec else ()) + (
        (pause_or_resume,) if newer or lacks else ()
    )


def adopted(entry: Entry, row: StoredSchedule | None) -> StoredSchedule | None:
    """Return the row that SQL needs for an entry of Redis; None if it has it already, or needs none."""
    made, paused_since = is_made(entry.spec), entry.paused_since or 0.0
    known = row.revision if row is not None else 0
    done = entry.state is ScheduleState.DONE
    if row is None or entry.revision > known:
        news = made or bool(paused_since) or (row is not None and not row.removed)
    elif entry.revision < known or row.removed:
        return None
    else:
        news = bool(paused_since and not row.paused_since) or (made and done and not row.done)
    if not news or family(entry.name) != entry.name or len(entry.name.encode()) > LABEL_BYTES:
        return None
    return StoredSchedule(
        name=entry.name,
        revision=max(entry.revision, known + 1),
        spec=entry.spec if made else b"",
        paused=entry.paused if paused_since else "",
        paused_since=paused_since,
        done=made and done,
    )


@dataclasses.dataclass(slots=True)
class _Pass:
    """One comparison, and how far it has come."""

    found: tuple[SchedulesHead, DefinitionsVersion]
    whole: bool
    since: float = 0.0
    after: str = ""
    restored: bool = False
    cursor: str = ""


class SqlSync:
    """Compares one set of keys with one space of a database, and repairs both."""

    def __init__(
        self,
        registry: ScheduleRegistry,
        entries: Entries,
        store: Callable[[], Awaitable[Store | None]],
        space: str,
        *,
        jitter_seconds: float = 0.0,
    ) -> None:
        self._registry = registry
        self._entries = entries
        self._store = store
        self._space = space
        self._jitter = jitter_seconds
        self._seen: tuple[SchedulesHead, DefinitionsVersion] | None = None
        self._current: _Pass | None = None
        self._passes = 0

    async def paused(self, names: Sequence[str]) -> dict[str, StoredSchedule]:
        """Read the rows of the names that are paused in SQL."""
        store = await self._store()
        if store is None:
            return {}
        rows = await store.find_schedules(self._space, names)
        return {name: row for name, row in rows.items() if row.paused_since and not row.removed}

    async def run_once(self, ends: float = float("inf")) -> tuple[bool, int]:
        """Do one pass until ``ends``; return whether it is whole, and how many schedules it repaired."""
        store = await self._store()
        if store is None:
            return True, 0
        current = self._current = self._current or await self._begun(store)
        if current is None:
            return True, 0
        repaired = await self._restore(store, current, ends)
        if current.restored and current.whole:
            repaired += await self._adopt(store, current, ends)
        if not current.restored or current.cursor:
            return False, repaired
        self._seen, self._current = current.found, None
        self._passes += 1
        return True, repaired

    async def _begun(self, store: Store) -> _Pass | None:
        """Decide what to compare: everything, what was written since, or nothing."""
        found = await store.schedules_head(self._space), await self._registry.standing()
        emptied = self._seen is None or not found[1].era or self._seen[1].era != found[1].era
        if self._seen is None or emptied or self._passes % WHOLE_EVERY == 0:
            return _Pass(found, whole=True)
        if found == self._seen:
            self._passes += 1
            return None
        return _Pass(found, whole=False, since=max(self._seen[0].changed_at - OVERLAP_SECONDS, _FIRST))

    # -- from SQL to Redis

    async def _restore(self, store: Store, current: _Pass, ends: float) -> int:
        repaired = 0
        while not current.restored:
            rows = await store.page_schedules(
                self._space, after=current.after, limit=BATCH, since=current.since
            )
            repaired += await self._repair(rows)
            current.restored = len(rows) < BATCH
            current.after = rows[-1].name if rows else ""
            if time.monotonic() >= ends:  # after a page: a pass that does nothing would never come to an end
                break
        return repaired

    async def _repair(self, rows: Sequence[StoredSchedule]) -> int:
        entries = {one.name: one for one in await self._entries.get_many([row.name for row in rows])}
        wanted = {row.name: (row, redis_changes(row, entries.get(row.name))) for row in rows}
        repaired = await self._put([row for row, todo in wanted.values() if RedisChange.PUT in todo])
        for row, todo in wanted.values():
            if RedisChange.REMOVE in todo:
                await self._registry.remove([row.name], revisions={row.name: row.revision})
            elif RedisChange.PAUSE in todo:
                await self._pause(row)
            elif RedisChange.RESUME in todo:
                await self._registry.resume([row.name], revisions={row.name: row.revision})
            repaired += bool({RedisChange.REMOVE, RedisChange.PAUSE, RedisChange.RESUME} & set(todo))
        return repaired

    async def _pause(self, row: StoredSchedule) -> None:
        # Not resumed first to change its reason: it could run in between.
        under = {row.name: row.revision}
        since = row.paused_since  # guard: pause-reason-without-resume
        await self._registry.pause([row.name], row.paused, since=since, revisions=under, anew=True)

    async def _put(self, rows: Sequence[StoredSchedule]) -> int:
        if not rows:
            return 0
        now = (await self._registry.count()).now
        planned = [one for row in rows if (one := _planned(row, now, spread(self._jitter))) is not None]
        words = await self._registry.put(planned)
        return sum(word not in {Registered.UNCHANGED, Registered.STALE} for word in words)

    # -- from Redis to SQL

    async def _adopt(self, store: Store, current: _Pass, ends: float) -> int:
        kept = 0
        while True:
            page = await self._entries.list(limit=PAGE, cursor=current.cursor)
            rows = await store.find_schedules(self._space, [one.name for one in page.entries])
            news = [row for one in page.entries if (row := adopted(one, rows.get(one.name))) is not None]
            now = (await self._registry.count()).now
            if news:
                await store.put_schedules(self._space, news, now=now)
                kept += len(news)
            current.cursor = page.cursor
            if not current.cursor:
                await store.forget_schedules(self._space, before=now - KEEP_REMOVED_SECONDS)
                return kept
            if time.monotonic() >= ends:
                return kept


def _planned(row: StoredSchedule, now: float, jitter: float) -> Registration | None:
    try:
        planned = registration_of(decoded(row.spec), now, jitter)
    except InputError as exc:
        _log.error("a schedule in SQL can't be read: make it again", schedule=row.name, error=str(exc))
        return None
    return msgspec.structs.replace(
        planned,
        revision=row.revision,
        paused=row.paused,
        paused_since=row.paused_since,
        first=None if row.done else planned.first,  # guard: finished-schedule-stays
    )
