"""Definitions made at run time: written to SQL first, then to Redis, each change under a revision of its own.

A crash between the two is healed by the next reconcile, as SQL has it. Without SQL, Redis has them alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import Conflict, NotFound
from holdfast.schedules.registry import registration_of
from holdfast.schedules.replies import BATCH, ChangeReply, Registered
from holdfast.schedules.schedule import checked, decoded, encoded
from holdfast.schedules.sql_sync import adopted, is_declared, is_made
from holdfast.store.schedules import StoredSchedule

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from holdfast.schedules.entries import Entries, Entry
    from holdfast.schedules.registry import ScheduleRegistry
    from holdfast.schedules.schedule import Schedule
    from holdfast.store.store import Store

_TRIES: Final = 10


class Definitions:
    """Makes, changes, pauses and removes the schedules of one set of keys."""

    def __init__(
        self,
        registry: ScheduleRegistry,
        entries: Entries,
        store: Callable[[], Awaitable[Store | None]],
        space: str,
    ) -> None:
        self.registry = registry
        self.entries = entries
        self._store = store
        self._space = space

    # -- one schedule

    async def create(self, schedule: Schedule, *, paused: bool = False, reason: str = "") -> bool:
        """Make a schedule; False if the very same is there already, Conflict if it is another one."""
        schedule = _made(schedule)
        spec = encoded(schedule)
        for _ in range(_TRIES):
            entry, row = await self._known(schedule.name)
            if entry is not None and entry.spec != spec:
                raise _taken(entry.name) if is_made(entry.spec) else _change_refused(entry.name)
            if row is not None and not row.removed and row.spec and row.spec != spec:
                raise _taken(schedule.name)
            if entry is not None:
                return False
            now = (await self.registry.count()).now
            wanted = row
            if wanted is None or wanted.removed or wanted.spec != spec:
                wanted = StoredSchedule(
                    name=schedule.name,
                    revision=max(_microseconds(now), _revision(row) + 1),
                    spec=spec,
                    paused=_storable(reason) if paused else "",
                    paused_since=now if paused else 0.0,
                )
            if await self._write(wanted, now) and await self._put(wanted, schedule, now):
                return True
        raise contended(schedule.name)

    async def change(self, name: str, change: Callable[[Schedule], Schedule]) -> Schedule:
        """Change a schedule that was made at run time; it keeps its turn unless its trigger changes."""
        for _ in range(_TRIES):
            entry, row = await self._known(name)
            if entry is not None and not is_made(entry.spec):
                raise _change_refused(name)
            base = _base(entry, row)
            if base is None or not base.spec:
                raise missing(name)
            schedule = _made(change(decoded(base.spec)))
            now = (await self.registry.count()).now
            spec = encoded(schedule)
            done = base.done and spec == base.spec
            revision = _next(entry, row, _microseconds(now))
            wanted = msgspec.structs.replace(base, revision=revision, spec=spec, done=done)
            if await self._write(wanted, now) and await self._put(wanted, schedule, now):
                return schedule
        raise contended(name)

    # -- many

    async def remove(self, names: Iterable[str], *, stop: str = "", force: bool = False) -> list[ChangeReply]:
        """Remove schedules for good; those declared in code only by ``force``, as they come back."""

        def gone(base: StoredSchedule) -> StoredSchedule:
            # guard: removal-tombstone
            return StoredSchedule(name=base.name, revision=base.revision, removed=True)

        async def apply(rows: Sequence[StoredSchedule]) -> list[ChangeReply]:
            return await self.registry.remove(_names(rows), stop=stop, revisions=_revisions(rows))

        asked = list(names)
        kept = set[str]() if force else await self._held_by_code(asked)  # guard: declared-schedule-kept
        going = [name for name in asked if name not in kept]
        done = dict(zip(going, await self._each(going, gone, apply, again=True), strict=True))
        return [done.get(name, ChangeReply.DECLARED) for name in asked]

    async def pause(self, names: Iterable[str], reason: str = "") -> list[ChangeReply]:
        """Pause schedules until they are resumed; running ones end their run first."""
        now = (await self.registry.count()).now
        reason = _storable(reason)

        def paused(base: StoredSchedule) -> StoredSchedule:
            if base.paused_since:
                return base
            return msgspec.structs.replace(base, paused=reason, paused_since=now)

        async def apply(rows: Sequence[StoredSchedule]) -> list[ChangeReply]:
            return await self.registry.pause(_names(rows), reason, since=now, revisions=_revisions(rows))

        return await self._each(list(names), paused, apply)

    async def resume(self, names: Iterable[str]) -> list[ChangeReply]:
        """Resume paused schedules."""

        def resumed(base: StoredSchedule) -> StoredSchedule:
            return msgspec.structs.replace(base, paused="", paused_since=0.0) if base.paused_since else base

        async def apply(rows: Sequence[StoredSchedule]) -> list[ChangeReply]:
            return await self.registry.resume(_names(rows), revisions=_revisions(rows))

        return await self._each(list(names), resumed, apply)

    async def _each(
        self,
        names: list[str],
        change: Callable[[StoredSchedule], StoredSchedule],
        apply: Callable[[Sequence[StoredSchedule]], Awaitable[list[ChangeReply]]],
        *,
        again: bool = False,
    ) -> list[ChangeReply]:
        done: dict[str, ChangeReply] = {}
        for start in range(0, len(names), BATCH):
            left = names[start : start + BATCH]
            for _ in range(_TRIES):
                written = await self._write_all(left, change, done, again=again)
                words = await apply(written) if written else []
                done.update(zip(_names(written), words, strict=True))
                # Another writer was first with some: its revision is read before the next try.
                left = [name for name in left if done.get(name, ChangeReply.STALE) is ChangeReply.STALE]
                if not left:
                    break
        return [done.get(name, ChangeReply.STALE) for name in names]

    async def _write_all(
        self,
        names: Sequence[str],
        change: Callable[[StoredSchedule], StoredSchedule],
        done: dict[str, ChangeReply],
        *,
        again: bool,
    ) -> list[StoredSchedule]:
        """Write the changes to SQL; return those that stand, and note what is unknown in ``done``.

        With ``again`` what was removed before is returned too: Redis may still have it.
        """
        entries, rows = await self._all_known(names)
        now = (await self.registry.count()).now
        wanted: list[StoredSchedule] = []
        for name in names:
            entry, row = entries.get(name), rows.get(name)
            base = _base(entry, row)
            if base is None and again and row is not None and row.removed:
                wanted.append(row)
            elif base is None:
                done[name] = ChangeReply.UNKNOWN
            elif (changed := change(base)) == base and row in (None, base):
                wanted.append(base)
            else:
                revision = _next(entry, row, _microseconds(now))
                wanted.append(msgspec.structs.replace(changed, revision=revision))
        store = await self._store()
        news = [one for one in wanted if one.revision > _revision(rows.get(one.name))]
        if store is None or not news:
            return wanted
        stands = await store.put_schedules(self._space, news, now=now)
        return [one for one in wanted if one not in news or stands.get(one.name) == one]

    # -- reading and writing

    async def _held_by_code(self, names: Sequence[str]) -> set[str]:
        return {one.name for one in await self.entries.get_many(names) if is_declared(one.spec)}

    async def _known(self, name: str) -> tuple[Entry | None, StoredSchedule | None]:
        entries, rows = await self._all_known([name])
        return entries.get(name), rows.get(name)

    async def _all_known(self, names: Sequence[str]) -> tuple[dict[str, Entry], dict[str, StoredSchedule]]:
        store = await self._store()
        rows = {} if store is None else await store.find_schedules(self._space, names)
        entries = {one.name: one for one in await self.entries.get_many(names)}
        return {name: one for name, one in entries.items() if not _is_gone(one, rows.get(name))}, rows

    async def _write(self, wanted: StoredSchedule, now: float) -> bool:
        """Write to SQL, if there is a store; False if another writer was first."""
        store = await self._store()
        if store is None:
            return True
        return (await store.put_schedules(self._space, [wanted], now=now))[wanted.name] == wanted

    async def _put(self, wanted: StoredSchedule, schedule: Schedule, now: float) -> bool:
        planned = msgspec.structs.replace(
            registration_of(schedule, now),
            revision=wanted.revision,
            paused=wanted.paused,
            paused_since=wanted.paused_since,
        )
        (word,) = await self.registry.put([planned])
        return word is not Registered.STALE


def missing(name: str) -> NotFound:
    """Return the error for a schedule that does not exist."""
    return NotFound(f"there is no schedule {name[:200]!r}: check the name, or list what there is")


def _made(schedule: Schedule) -> Schedule:
    return checked(msgspec.structs.replace(schedule, source="api"))


def _base(entry: Entry | None, row: StoredSchedule | None) -> StoredSchedule | None:
    """Return the newer of the rows of SQL and Redis; None if there is no such schedule."""
    if entry is None:
        return None if row is None or row.removed or not row.spec else row
    newer = adopted(entry, row)
    if newer is not None:
        return newer
    if row is not None and not row.removed:
        return row
    return StoredSchedule(name=entry.name, revision=entry.revision)


def _is_gone(entry: Entry, row: StoredSchedule | None) -> bool:
    """Return whether SQL has removed it and Redis still has it."""
    return row is not None and row.removed and row.revision > entry.revision and is_made(entry.spec)


def _revision(row: StoredSchedule | None) -> int:
    return row.revision if row is not None else 0


def _next(entry: Entry | None, row: StoredSchedule | None, first: int) -> int:
    """Return the revision after the newest: of two writers that have read the same one, one wins."""
    newest = max(entry.revision if entry is not None else 0, _revision(row))
    return newest + 1 if newest else first


def _storable(reason: str) -> str:
    return reason.replace("\0", "?")


def _microseconds(now: float) -> int:
    return int(now * 1_000_000)


def _names(rows: Sequence[StoredSchedule]) -> list[str]:
    return [row.name for row in rows]


def _revisions(rows: Sequence[StoredSchedule]) -> dict[str, int]:
    return {row.name: row.revision for row in rows}


def _taken(name: str) -> Conflict:
    return Conflict(f"there is a schedule {name!r} already: change it, or remove it first")


def removal_refused(name: str) -> Conflict:
    """Return the error for the removal of a schedule that is declared in code."""
    return Conflict(
        f"the schedule {name!r} is declared in the code, which would bring it back: take it out there, or "
        "pause it; if no code has it any more, remove it by force (?force=true, --force)"
    )


def _change_refused(name: str) -> Conflict:
    return Conflict(f"the schedule {name!r} is declared in the code: change it there, or choose another name")


def contended(name: str) -> Conflict:
    """Return the error for a schedule that others change at the same time."""
    return Conflict(f"the schedule {name!r} is being changed by others: try again")
