"""The schedules as one caller may see them: a tenant's begin with its name, which the tenant never sees."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from holdfast.api.scheduledruns import submitter
from holdfast.api.scheduleshapes import (
    S,
    ScheduleList,
    ScheduleRow,
    ScheduleTurn,
    ScheduleView,
    schedule_view,
)
from holdfast.config import duration_seconds
from holdfast.errors import ConfigError, Conflict, InputError, NotFound
from holdfast.runs.paging import read_cursor, write_cursor
from holdfast.runs.scope import scoped, unscoped
from holdfast.schedules.backfill import Backfill
from holdfast.schedules.declaration import declared
from holdfast.schedules.definitions import Definitions, missing
from holdfast.schedules.entries import Entries, Entry, scan_names
from holdfast.schedules.history import History
from holdfast.schedules.registry import Registry, schedule_keys
from holdfast.schedules.schedule import Schedule, decoded, family
from holdfast.schedules.trigger import Cron, Every, trigger_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from holdfast.api.scheduleshapes import ScheduleChange, ScheduleRequest
    from holdfast.operations import Operations

_LOOKS: Final = 10
_BATCH: Final = 200
_SPANS: Final = {"timeout": "timeout_seconds", "error_interval": "error_seconds"}
_MOMENTS: Final = ("starts_at", "ends_at")
_CURSOR: Final = 1 << 64
_UNREADABLE: Final = Schedule(name="", agent="", trigger=Every(seconds=1))


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule that the caller may see."""

    entry: Entry
    schedule: Schedule
    readable: bool = True


class Book:
    """The schedules for one caller."""

    def __init__(self, here: Operations) -> None:
        try:
            self._keys = schedule_keys(here.system.settings.redis)
        except ConfigError as exc:
            raise Conflict(str(exc)) from None
        self.here = here
        self._redis = here.system.redis
        self.registry = Registry(self._redis, self._keys)
        self._entries = Entries(self._redis, self._keys)
        self.definitions = Definitions(
            self.registry, self._entries, here.system.store.get, self._keys.definitions
        )

    # -- names

    def stored(self, name: str) -> str:
        """What the schedule is called inside."""
        return scoped(self.here.caller.tenant, name)

    def shown(self, name: str) -> str:
        """What the caller calls it."""
        return unscoped(self.here.caller.tenant, name)

    # -- reading

    async def find(self, name: str) -> Found:
        """The schedule of that name, if the caller may see it."""
        try:
            found = _found(await self._entries.get(self.stored(name)))
        except NotFound:
            raise missing(name) from None
        # The same words whether it does not exist or belongs to another tenant.
        if not self.here.caller.sees(found.schedule.tenant):  # guard: schedule-change-own-tenant
            raise missing(name)
        return found

    async def view(self, name: str) -> ScheduleView:
        """Everything known of a schedule."""
        return self.viewed(await self.find(name))

    def viewed(self, found: Found) -> ScheduleView:
        """The schedule as the caller sees it."""
        return self._view(found, ScheduleView)

    async def turns(self, name: str, limit: int) -> list[ScheduleTurn]:
        """The past turns of a schedule, by the ids that the caller knows."""
        stored = (await self.find(name)).entry.name
        found = await History(self._redis, self._keys).turns(stored, limit)
        shown = (msgspec.structs.replace(each, turn=self.shown(each.turn)) for each in found)
        return [ScheduleTurn(**msgspec.structs.asdict(each)) for each in shown]

    async def list(self, wanted: Mapping[str, str], *, limit: int, cursor: str) -> ScheduleList:
        """Read one page; it may be short and yet not the last."""
        at, after = _place(cursor)
        pattern = self.stored(wanted["pattern"] or "*")
        rows: list[ScheduleRow] = []
        for _ in range(_LOOKS):
            following, names = await scan_names(self._redis, self._keys, pattern, at, _BATCH)
            # A batch may be larger than the page: sorted, the next page knows where to go on in it.
            # guard: schedule-page-position
            names = sorted({name for name in names if name > after and family(name) == name})
            for start in range(0, len(names), limit):
                for found in map(_found, await self._entries.get_many(names[start : start + limit])):
                    if self._fits(found, wanted):
                        rows.append(self._view(found, ScheduleRow))
                    if len(rows) == limit:
                        return ScheduleList(rows, write_cursor({"at": at, "after": found.entry.name}))
            at, after = following, ""
            if at == "0":
                return ScheduleList(rows)
        return ScheduleList(rows, write_cursor({"at": at, "after": ""}))

    async def matching(self, pattern: str) -> AsyncGenerator[list[str]]:
        """The stored names that fit a glob and that the caller may see, page by page."""
        async for names in self.registry.names(self.stored(pattern)):
            known = map(_found, await self._entries.get_many([one for one in names if family(one) == one]))
            seen = [one.entry.name for one in known if self.here.caller.sees(one.schedule.tenant)]
            if seen:
                yield seen

    def _fits(self, found: Found, wanted: Mapping[str, str]) -> bool:
        schedule = found.schedule
        has = {
            "state": found.entry.state.value,
            "agent": schedule.agent,
            "source": schedule.source,
            "tenant": schedule.tenant,
        }
        fits = all(not wanted[field] or wanted[field] == value for field, value in has.items())
        return fits and self.here.caller.sees(schedule.tenant)  # guard: schedule-list-own-tenant

    def _view(self, found: Found, shape: type[S]) -> S:
        schedule = found.schedule if found.readable else None
        return schedule_view(shape, found.entry, schedule, self.shown(found.entry.name))

    # -- what is asked for

    def asked(self, wanted: ScheduleRequest) -> Schedule:
        """The schedule that a request describes, checked."""
        tenant = self.here.caller.tenant_for(wanted.tenant or "")
        options: dict[str, Any] = {
            name: getattr(wanted, name)
            for name in Schedule.__struct_fields__
            if hasattr(wanted, name) and name not in {"name", "agent", "tenant"}
        }
        options |= {"timeout": wanted.timeout, "error_interval": wanted.error_interval}
        for field in _MOMENTS:
            options[field] = _moment(field, getattr(wanted, field))
        schedule = declared(
            scoped(tenant, wanted.name),
            wanted.agent,
            every=wanted.every,
            cron=wanted.cron,
            at=_moment("at", wanted.at),
            tz=wanted.tz,
            since=wanted.since,
            tenant=tenant,
            **options,
        )
        self._require_reachable(schedule)
        return schedule

    def changed(self, schedule: Schedule, change: ScheduleChange) -> Schedule:
        """The schedule as a change would have it; what is wrong with it is found when it is written."""
        given = {
            name: value for name in change.__struct_fields__ if (value := getattr(change, name)) is not UNSET
        }
        fields = {name: given[name] for name in given if name in Schedule.__struct_fields__}
        for field in _MOMENTS:
            if field in given:
                fields[field] = _moment(field, given[field]) or 0.0
        for name, field in _SPANS.items():
            if name in given:
                fields[field] = _seconds(name, given[name])
        changed = msgspec.structs.replace(schedule, **fields, trigger=_trigger(schedule, given))
        self._require_reachable(changed)
        return changed

    def _require_reachable(self, schedule: Schedule) -> None:
        if self.here.system.app is not None:
            self.here.system.app.get(schedule.agent)
        if schedule.target:
            self.here.system.queue(schedule.target)

    # -- backfill

    def backfill(self) -> Backfill:
        """Fills windows; runs of schedules with a target go to their queue."""
        submit = submitter(lambda target: self.here.system.queue(target).sender)
        return Backfill(self._redis, self._keys, submit)


def moment(field: str, value: float | str) -> float:
    """A time as people write it, in epoch seconds."""
    if not isinstance(value, str):
        return float(value)
    try:
        read = datetime.fromisoformat(value)
        if read.tzinfo is None:
            raise InputError(f"{field}: {value!r} has no time zone: write one, like {value}Z")
        return read.timestamp()
    except (ValueError, OverflowError):
        raise InputError(
            f"{field}: {value!r} is not a time: write epoch seconds, or ISO 8601 like 2030-01-31T07:00:00Z"
        ) from None


def _moment(field: str, value: float | str | None) -> float | None:
    return None if value is None else moment(field, value)


def _seconds(field: str, value: str | float | None) -> float | None:
    if value is None:
        return None
    try:
        return duration_seconds(value)
    except ConfigError as exc:
        raise InputError(f"{field}: {exc}") from None


def _trigger(schedule: Schedule, given: Mapping[str, Any]) -> Any:
    old = schedule.trigger
    zone = given.get("tz", old.zone if isinstance(old, Cron) else "UTC")
    since = given.get("since", old.since if isinstance(old, Every) else "start")
    if {"every", "cron", "at"} & given.keys():
        at = _moment("at", given.get("at"))
        return trigger_of(every=given.get("every"), cron=given.get("cron"), at=at, tz=zone, since=since)
    if "tz" in given and not isinstance(old, Cron):
        raise InputError("tz: only a cron expression has a time zone")
    if "since" in given and not isinstance(old, Every):
        raise InputError("since: only an interval counts from the start or the completion")
    if isinstance(old, Cron):
        return msgspec.structs.replace(old, zone=zone)
    return msgspec.structs.replace(old, since=since) if isinstance(old, Every) else old


def _found(entry: Entry) -> Found:
    try:
        return Found(entry, decoded(entry.spec))
    except InputError:  # whose it is nobody can tell: it is there for those who see every tenant
        return Found(entry, msgspec.structs.replace(_UNREADABLE, name=entry.name), readable=False)


def _place(cursor: str) -> tuple[str, str]:
    places = read_cursor(cursor, ("at", "after")) if cursor else {"at": "0", "after": ""}
    at = places.get("at", "")
    if not (at.isascii() and at.isdigit() and int(at) < _CURSOR):
        raise InputError(f"cursor {cursor[:80]!r} was not given out by a previous page of this list")
    return at, places.get("after", "")
