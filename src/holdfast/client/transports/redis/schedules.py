"""Schedules over Redis: what is paused is written to the database first, if this machine has a way to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.client.schedules import ScheduleInfo
from holdfast.config.names import unknown_queue
from holdfast.errors import Conflict, InputError, NotFound
from holdfast.redis.translate import translate_errors
from holdfast.runs.scope import scoped
from holdfast.schedules.declaration import declared
from holdfast.schedules.definitions import Definitions, missing, removal_refused
from holdfast.schedules.entries import Entries, upcoming
from holdfast.schedules.history import History
from holdfast.schedules.registry import Registry, schedule_keys
from holdfast.schedules.replies import Changed
from holdfast.schedules.schedule import decoded, family

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.config import Settings
    from holdfast.redis.client import Redis
    from holdfast.schedules.entries import Entry
    from holdfast.schedules.history import PastTurn
    from holdfast.schedules.schedule import Schedule
    from holdfast.store.store import Store

_PAGE = 200


class RedisSchedules:
    """The schedules of one set of keys."""

    def __init__(
        self, redis: Redis, settings: Settings, store: Callable[[], Awaitable[Store | None]]
    ) -> None:
        keys = schedule_keys(settings.redis)
        self._url = settings.redis.url
        self._queues = settings.queue_names()
        self._registry, self._entries = Registry(redis, keys), Entries(redis, keys)
        self._history = History(redis, keys)
        self._definitions = Definitions(self._registry, self._entries, store, keys.definitions)

    async def list(self, pattern: str, state: str, limit: int) -> list[ScheduleInfo]:
        """Read up to ``limit`` schedules."""
        found: dict[str, ScheduleInfo] = {}  # a scan may bring one twice
        cursor, more = "", True
        with translate_errors(self._url):
            while more and len(found) < limit:
                page = await self._entries.list(pattern, limit=_PAGE, cursor=cursor)
                seen = [_info(entry) for entry in page.entries if family(entry.name) == entry.name]
                found |= {one.name: one for one in seen if state in {"", one.state}}
                cursor, more = page.cursor, bool(page.cursor)
        return list(found.values())[:limit]

    async def create(self, name: str, agent: str, options: dict[str, Any]) -> ScheduleInfo:
        """Make one."""
        state = {word: options.pop(word) for word in ("paused", "reason") if word in options}
        tenant = options.pop("tenant", "")
        schedule = declared(scoped(tenant, name), agent, options, tenant=tenant)
        if schedule.target and schedule.target not in self._queues:
            raise unknown_queue(schedule.target, self._queues)
        with translate_errors(self._url):
            await self._definitions.create(schedule, **state)
        return await self.get(schedule.name)

    async def remove(self, name: str, *, force: bool) -> None:
        """Remove one for good."""
        with translate_errors(self._url):
            (word,) = await self._definitions.remove([name], force=force)
        if _done(word, name) is Changed.DECLARED:
            raise removal_refused(name)

    async def get(self, name: str) -> ScheduleInfo:
        """Read one."""
        return _info(await self._entry(name))

    async def trigger(self, name: str) -> str:
        """Run one now."""
        with translate_errors(self._url):
            (word,) = await self._registry.trigger([name])
        return _done(word, name).value

    async def pause(self, name: str, reason: str) -> ScheduleInfo:
        """Take one out of its turn."""
        with translate_errors(self._url):
            (word,) = await self._definitions.pause([name], reason)
        _done(word, name)
        return await self.get(name)

    async def resume(self, name: str) -> ScheduleInfo:
        """Let one take its turns again."""
        with translate_errors(self._url):
            (word,) = await self._definitions.resume([name])
        _done(word, name)
        return await self.get(name)

    async def next(self, name: str, count: int) -> list[float]:
        """Tell its next turns."""
        entry = await self._entry(name)
        schedule = _schedule(entry)
        if schedule is None:
            return []
        with translate_errors(self._url):
            now = (await self._registry.count()).now
        return upcoming(entry, schedule, now, count)

    async def turns(self, name: str, limit: int) -> list[PastTurn]:
        """Read its past turns."""
        await self._entry(name)
        with translate_errors(self._url):
            return await self._history.turns(name, limit)

    async def _entry(self, name: str) -> Entry:
        try:
            with translate_errors(self._url):
                return await self._entries.get(name)
        except NotFound:
            raise missing(name) from None


def _done(word: Changed, name: str) -> Changed:
    if word is Changed.UNKNOWN:
        raise missing(name)
    if word is Changed.STALE:
        raise Conflict(f"the schedule {name!r} is being changed by others: try again")
    return word


def _schedule(entry: Entry) -> Schedule | None:
    try:
        return decoded(entry.spec)
    except InputError:
        return None


def _info(entry: Entry) -> ScheduleInfo:
    schedule = _schedule(entry)
    known: dict[str, Any] = {
        name: getattr(entry, name) if hasattr(entry, name) else getattr(schedule, name, "")
        for name in ScheduleInfo.__struct_fields__
    }
    known["state"] = entry.state.value
    known["trigger"] = schedule.trigger if schedule is not None else None
    return ScheduleInfo(**known)
