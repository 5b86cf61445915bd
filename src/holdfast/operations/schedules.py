"""Schedules: what runs again and again, made, read, changed and explained for one caller.

The name of a tenant's schedule begins with the tenant; the tenant itself never sees that part.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.errors import InputError, NotFound
from holdfast.operations.caller import OPERATE, READ, SUBMIT
from holdfast.runs.paging import read_cursor, write_cursor
from holdfast.runs.run import Submission
from holdfast.runs.scope import scoped, unscoped
from holdfast.schedules.backfill import Backfill
from holdfast.schedules.declaration import changed, declared
from holdfast.schedules.definitions import Definitions, contended, missing, removal_refused
from holdfast.schedules.entries import Entries, scan_names, upcoming
from holdfast.schedules.explain import explain
from holdfast.schedules.history import History
from holdfast.schedules.registry import ScheduleRegistry, checked_keys
from holdfast.schedules.replies import ChangeReply
from holdfast.schedules.schedule import Schedule, decoded, family
from holdfast.schedules.selection import Patterns
from holdfast.schedules.submission import run_request, served_queues
from holdfast.schedules.trigger import Every, Once, moment
from holdfast.views.schedules import (
    Backfilled,
    BackfilledTurn,
    OnceView,
    ScheduleChanged,
    ScheduleExplained,
    ScheduleList,
    ScheduleRow,
    SchedulesChanged,
    ScheduleTimes,
    ScheduleTurn,
    ScheduleTurns,
    ScheduleView,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence

    from holdfast.errors import HoldfastError
    from holdfast.operations.caller import Caller
    from holdfast.operations.system import System
    from holdfast.runs.queue import RunQueue
    from holdfast.runs.run import Ticket
    from holdfast.schedules.entries import Entry
    from holdfast.schedules.submission import Submit

    Change = Callable[[list[str]], Awaitable[list[ChangeReply]]]

Row = TypeVar("Row", bound=ScheduleRow)

_SCANS: Final = 10
"""How many batches of names are read for one page."""
_BATCH: Final = 200
_NAMES_MOST: Final = 1000
"""How many names of changed schedules are answered."""
_CURSOR: Final = 1 << 64
_UNREADABLE: Final = Schedule(name="", agent="", trigger=Every(seconds=1))


@dataclass(frozen=True, slots=True)
class _Found:
    """A schedule in Redis; ``definition`` is None if it can't be read."""

    entry: Entry
    definition: Schedule | None

    @property
    def tenant(self) -> str:
        """Its tenant; an unreadable one belongs to none, so that only callers of every tenant see it."""
        return self.definition.tenant if self.definition is not None else ""


class ScheduleOperations:
    """What one caller can ask of schedules."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller
        self._keys = checked_keys(system.settings.redis)
        self._registry = ScheduleRegistry(system.redis, self._keys)
        self._entries = Entries(system.redis, self._keys)
        self._definitions = Definitions(self._registry, self._entries, system.archive, self._keys.definitions)

    # -- reading

    async def list(
        self,
        *,
        pattern: str = "",
        state: str = "",
        agent: str = "",
        source: str = "",
        tenant: str = "",
        limit: int = 50,
        cursor: str = "",
    ) -> ScheduleList:
        """Read a page of schedules; it may be short and yet not the last."""
        self._caller.require(READ)
        wanted = {"state": state, "agent": agent, "source": source, "tenant": tenant}
        found, after = await self._page(pattern, wanted, limit, cursor)
        return ScheduleList([self._view(each, ScheduleRow) for each in found], after)

    async def find_all(
        self,
        shape: type[Row],
        *,
        pattern: str = "",
        state: str = "",
        limit: int = 100,
        placed_turns: bool = False,
    ) -> list[Row]:
        """Read up to ``limit`` schedules, sorted by name; if there are more, any of them.

        ``placed_turns`` adds the turns of a backfill that are schedules of their own until they have run.
        """
        self._caller.require(READ)
        found: dict[str, _Found] = {}  # a scan may return one twice
        cursor, more = "", True
        while more and len(found) < limit:
            page, cursor = await self._page(
                pattern, {"state": state}, min(limit, _BATCH), cursor, placed_turns=placed_turns
            )
            found |= {each.entry.name: each for each in page}
            more = bool(cursor)
        some = list(found.values())[:limit]
        return sorted((self._view(each, shape) for each in some), key=lambda view: view.name)

    async def get(self, name: str) -> ScheduleView:
        """Read a schedule: its definition, its state and its last run."""
        self._caller.require(READ)
        return self._view(await self._find(name), ScheduleView)

    async def get_many(self, names: Iterable[str]) -> dict[str, ScheduleView]:
        """Read schedules by their names; one that does not exist is left out."""
        self._caller.require(READ)
        views = [self._view(each, ScheduleView) for each in await self._seen(map(self._stored, names))]
        return {view.name: view for view in views}

    async def names(self, wanted: Sequence[str]) -> list[str]:
        """Return the names, and for each glob among them those that fit it; NotFound if there are none."""
        self._caller.require(READ)
        names: set[str] = set()
        for name in wanted:
            if any(sign in name for sign in "*?["):
                async for page in self._matching(name, placed_turns=True):
                    names |= {self._shown(each) for each in page}
            else:
                names.add(name)
        if not names:
            raise NotFound(f"no schedule fits {', '.join(wanted)}")
        return sorted(names)

    async def next(self, name: str, count: int = 5) -> ScheduleTimes:
        """Read the next turns, as if every run took no time; none if the schedule is done."""
        self._caller.require(READ)
        found = await self._find(name)
        if found.definition is None:
            return ScheduleTimes(name, [])
        return ScheduleTimes(name, upcoming(found.entry, found.definition, await self._now(), count))

    async def turns(self, name: str, limit: int = 20) -> ScheduleTurns:
        """Read how the last turns of a schedule ended, the newest first."""
        self._caller.require(READ)
        stored = (await self._find(name)).entry.name
        turns = await History(self._system.redis, self._keys).turns(stored, limit)
        shown = (msgspec.structs.replace(each, turn=self._shown(each.turn)) for each in turns)
        return ScheduleTurns(name, [ScheduleTurn(**msgspec.structs.asdict(each)) for each in shown])

    async def explain(self, name: str) -> ScheduleExplained:
        """Explain why a schedule does not run now."""
        self._caller.require(READ)
        found = await self._find(name)
        because = "its definition can't be read: make it again"
        if found.definition is not None:
            because = await self._explained(found.entry, found.definition)
        return ScheduleExplained(name, found.entry.state.value, [because])

    async def _explained(self, entry: Entry, definition: Schedule) -> str:
        system, settings = self._system, self._system.settings.redis
        members = await system.members.all(system.redis)
        return explain(
            entry,
            definition,
            now=await self._now(),
            patterns=Patterns.of(settings.agent),
            schedulers={one.name: one.fields for one in members if one.kind == "scheduler"},
            sharded=settings.scheduler.sharding != "none",
            queues=served_queues(system.settings.queue_names(), members),
        )

    # -- making and changing one

    async def create(
        self,
        name: str,
        agent: str,
        options: Mapping[str, Any],
        *,
        tenant: str = "",
        paused: bool = False,
        reason: str = "",
    ) -> tuple[ScheduleView, bool]:
        """Make a schedule; False if the very same is there already, Conflict if it is another one."""
        self._caller.require(OPERATE)
        tenant = self._caller.tenant_for(tenant)
        schedule = declared(scoped(tenant, name), agent, options, tenant=tenant)
        self._require_reachable(schedule)
        fresh = await self._definitions.create(schedule, paused=paused, reason=reason)
        made = await self._find(self._shown(schedule.name))
        return self._view(made, ScheduleView), fresh

    async def change(self, name: str, given: Mapping[str, Any]) -> ScheduleView:
        """Change some options; the turn stays unless the trigger changes. The code's are changed there."""
        self._caller.require(OPERATE)

        def change(schedule: Schedule) -> Schedule:
            wanted = changed(schedule, given)
            self._require_reachable(wanted)
            return wanted

        await self._definitions.change((await self._find(name)).entry.name, change)
        return self._view(await self._find(name), ScheduleView)

    async def remove(self, name: str, *, stop: bool = False, force: bool = False) -> ScheduleView:
        """Remove a schedule for good and return it as it was; one of the code is removed by force only."""
        self._caller.require(OPERATE)
        found = await self._seen([self._stored(name)])
        _require_changed(name, await self.remove_many([name], stop=stop, force=force))
        if not found:
            raise missing(name)
        return self._view(found[0], ScheduleView)

    async def pause(self, name: str, reason: str = "") -> ScheduleView:
        """Pause a schedule, of the code or not, until it is resumed; if it runs, that run ends first."""
        _require_changed(name, await self.pause_many([name], reason))
        return self._view(await self._find(name), ScheduleView)

    async def resume(self, name: str) -> ScheduleView:
        """Resume a paused schedule."""
        _require_changed(name, await self.resume_many([name]))
        return self._view(await self._find(name), ScheduleView)

    async def trigger(self, name: str) -> ScheduleChanged:
        """Run a schedule now, also if it is paused; its turns stay where they are."""
        word = _require_changed(name, await self.trigger_many([name]))
        return ScheduleChanged(name, word.value)

    # -- changing many; one that can't be changed spares the others

    async def remove_many(
        self, names: Sequence[str], *, stop: bool = False, force: bool = False
    ) -> dict[str, ChangeReply]:
        """Remove schedules for good; those of the code by force only."""
        self._caller.require(OPERATE)
        reason = "its schedule was removed" if stop else ""
        return await self._each(
            names, lambda stored: self._definitions.remove(stored, stop=reason, force=force)
        )

    async def pause_many(self, names: Sequence[str], reason: str = "") -> dict[str, ChangeReply]:
        """Pause schedules until they are resumed."""
        self._caller.require(OPERATE)
        return await self._each(names, lambda stored: self._definitions.pause(stored, reason))

    async def resume_many(self, names: Sequence[str]) -> dict[str, ChangeReply]:
        """Resume paused schedules."""
        self._caller.require(OPERATE)
        return await self._each(names, self._definitions.resume)

    async def trigger_many(self, names: Sequence[str]) -> dict[str, ChangeReply]:
        """Run schedules now."""
        self._caller.require(SUBMIT)
        return await self._each(names, self._registry.trigger)

    async def pause_matching(self, pattern: str, reason: str = "") -> SchedulesChanged:
        """Pause all schedules that fit a glob."""
        self._caller.require(OPERATE)
        return await self._change_matching(
            pattern, lambda stored: self._definitions.pause(stored, reason), ChangeReply.PAUSED
        )

    async def resume_matching(self, pattern: str) -> SchedulesChanged:
        """Resume all schedules that fit a glob."""
        self._caller.require(OPERATE)
        return await self._change_matching(pattern, self._definitions.resume, ChangeReply.RESUMED)

    async def _each(self, names: Sequence[str], change: Change) -> dict[str, ChangeReply]:
        stored = list(dict.fromkeys(map(self._stored, names)))
        if self._caller.tenant:  # an operator also changes what SQL has and Redis has lost
            stored = [each.entry.name for each in await self._seen(stored)]
        words = dict(zip(stored, await change(stored) if stored else [], strict=True))
        return {name: words.get(self._stored(name), ChangeReply.UNKNOWN) for name in names}

    async def _change_matching(self, pattern: str, change: Change, word: ChangeReply) -> SchedulesChanged:
        matched, count, names = 0, 0, list[str]()
        async with contextlib.aclosing(self._matching(pattern)) as pages:
            async for page in pages:
                matched += len(page)
                done = [name for name, got in zip(page, await change(page), strict=True) if got is word]
                count += len(done)
                names += [self._shown(name) for name in done[: _NAMES_MOST - len(names)]]
        return SchedulesChanged(matched, count, names)

    # -- backfill

    async def backfill(
        self,
        name: str,
        start: float | str,
        end: float | str,
        *,
        limit: int = 100,
        at_once: int = 1,
        dry_run: bool = False,
    ) -> Backfilled:
        """Run the turns of a past window, each once however often it is asked for."""
        self._caller.require(OPERATE)
        stored = (await self._find(name)).entry.name
        window = moment("start", start), moment("end", end)
        submit = submitter(lambda target: self._system.queue(target).sender)
        backfill = Backfill(self._system.redis, self._keys, submit)
        if dry_run:
            turns = await backfill.plan(stored, *window, limit=limit)
        else:
            turns = await backfill.run(stored, *window, limit=limit, at_once=at_once)
        return Backfilled(name, [BackfilledTurn(self._shown(one.turn), one.at, one.word) for one in turns])

    # -- finding

    def _stored(self, name: str) -> str:
        """Return what a schedule is called in Redis."""
        return scoped(self._caller.tenant, name)

    def _shown(self, name: str) -> str:
        """Return what the caller calls it."""
        return unscoped(self._caller.tenant, name)

    async def _now(self) -> float:
        return (await self._registry.count()).now

    async def _find(self, name: str) -> _Found:
        # The same words whether it does not exist or belongs to another tenant.
        found = await self._seen([self._stored(name)])
        if not found:
            raise missing(name)
        return found[0]

    async def _seen(self, stored: Iterable[str]) -> list[_Found]:
        """Return those that exist for this caller."""
        found = map(_found, await self._entries.get_many(list(dict.fromkeys(stored))))
        return [each for each in found if self._caller.sees(each.tenant)]  # guard: schedule-change-own-tenant

    async def _matching(self, pattern: str, *, placed_turns: bool = False) -> AsyncGenerator[list[str]]:
        """Yield the stored names that fit a glob, page by page."""
        async for names in self._registry.names(self._stored(pattern)):
            page = await self._seen(name for name in names if placed_turns or family(name) == name)
            if page:
                yield [each.entry.name for each in page]

    async def _page(
        self,
        pattern: str,
        wanted: Mapping[str, str],
        limit: int,
        cursor: str,
        *,
        placed_turns: bool = False,
    ) -> tuple[list[_Found], str]:
        at, after = _position(cursor)
        page: list[_Found] = []
        for _ in range(_SCANS):
            following, names = await scan_names(
                self._system.redis, self._keys, self._stored(pattern or "*"), at, _BATCH
            )
            # A batch may be larger than the page: sorted, the next page knows where to go on in it.
            # guard: schedule-page-position
            names = sorted(
                {name for name in names if name > after and (placed_turns or family(name) == name)}
            )
            for start in range(0, len(names), limit):
                for found in map(_found, await self._entries.get_many(names[start : start + limit])):
                    if self._fits(found, wanted):
                        page.append(found)
                    if len(page) == limit:
                        return page, write_cursor({"at": at, "after": found.entry.name})
            at, after = following, ""
            if at == "0":
                return page, ""
        return page, write_cursor({"at": at, "after": ""})

    def _fits(self, found: _Found, wanted: Mapping[str, str]) -> bool:
        definition = found.definition or _UNREADABLE
        has = {
            "state": found.entry.state.value,
            "agent": definition.agent,
            "source": definition.source,
            "tenant": definition.tenant,
        }
        fits = all(not value or has[field] == value for field, value in wanted.items())
        return fits and self._caller.sees(found.tenant)  # guard: schedule-list-own-tenant

    def _require_reachable(self, schedule: Schedule) -> None:
        if self._system.app is not None:
            self._system.app.get(schedule.agent)
        if schedule.target:
            self._system.queue(schedule.target)

    def _view(self, found: _Found, shape: type[Row]) -> Row:
        entry, definition = found.entry, found.definition
        fields = {
            field: getattr(entry if hasattr(entry, field) else definition or _UNREADABLE, field)
            for field in shape.__struct_fields__
            if not field.endswith("_iso")  # these follow from the times
        }
        trigger = None if definition is None else definition.trigger
        fields |= {
            "name": self._shown(entry.name),
            "state": entry.state.value,
            "trigger": OnceView(at=trigger.at) if isinstance(trigger, Once) else trigger,
        }
        return shape(**fields)


def refusal(name: str, word: ChangeReply) -> HoldfastError | None:
    """Return why a schedule was not changed; None if it was, or needed no change."""
    if word is ChangeReply.UNKNOWN:
        return missing(name)
    if word is ChangeReply.STALE:
        return contended(name)
    return removal_refused(name) if word is ChangeReply.DECLARED else None


def submitter(queue_named: Callable[[str], RunQueue]) -> Submit:
    """Return what submits a schedule's turn to its target, in the queue that ``queue_named`` finds."""

    async def submit(schedule: Schedule, turn: str) -> Ticket:
        queue = queue_named(schedule.target)
        return await queue.submit(msgspec.convert(run_request(schedule, turn), Submission))

    return submit


def _require_changed(name: str, words: Mapping[str, ChangeReply]) -> ChangeReply:
    word = words[name]
    if error := refusal(name, word):
        raise error
    return word


def _found(entry: Entry) -> _Found:
    try:
        return _Found(entry, decoded(entry.spec))
    except InputError:
        return _Found(entry, None)


def _position(cursor: str) -> tuple[str, str]:
    """Return the position of the scan, and the name in its batch after which the next page begins."""
    places = read_cursor(cursor, ("at", "after")) if cursor else {"at": "0", "after": ""}
    at = places.get("at", "")
    if not (at.isascii() and at.isdigit() and int(at) < _CURSOR):
        raise InputError(f"cursor {cursor[:80]!r} was not given out by a previous page of this list")
    return at, places.get("after", "")
