"""The registry: which schedules there are, and what an operator does to them.

Invariant: whatever is registered is in exactly one place (waiting, working, paused or done), and registering
it again moves nothing unless what its turns follow from has changed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.errors import InputError
from holdfast.redis.batcher import fitting
from holdfast.redis.command import command
from holdfast.redis.scripts import load
from holdfast.schedules.entries import scan_names
from holdfast.schedules.registration import registration_of
from holdfast.schedules.schedule import decoded
from holdfast.schedules.troubles import say_discarded
from holdfast.schedules.words import BATCH, CHUNK, PAGE, Changed, Registered, score, seconds, text, words
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.registration import Registration
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.troubles import Discarded

    _Call: TypeAlias = Callable[[Redis, list[str], list[Any]], Awaitable[Any]]

_REGISTER = load(__package__, "register")
_REMOVE = load(__package__, "remove")
_PAUSE = load(__package__, "pause")
_RESUME = load(__package__, "resume")
_TRIGGER = load(__package__, "trigger")
_STOP = load(__package__, "stop")
_MISSING = load(__package__, "missing")
_COUNTS = load(__package__, "counts")
_STANDING = load(__package__, "standing")
_DIFFERING = load(__package__, "differing")
_SAMPLE = 100

_log = get_logger(__name__)


class Missing(msgspec.Struct, frozen=True):
    """A definition whose schedule has lost its place or its record."""

    name: str
    spec: bytes


class Counts(msgspec.Struct, frozen=True):
    """How many schedules are where; ``earliest`` is the next turn of all."""

    now: float
    registered: int
    waiting: int
    working: int
    due: int
    earliest: float | None
    overlapping: int
    """Of a sample of those that run, how many also wait: none, unless somebody meddled."""


class Standing(msgspec.Struct, frozen=True):
    """What is another whenever a definition or a pause has changed, or Redis has lost some."""

    changes: str
    registered: int

    @property
    def era(self) -> str:
        """Another one after Redis has been emptied."""
        return self.changes.partition("-")[0]


class Registry:
    """The schedules of one set of keys."""

    def __init__(self, redis: Redis, keys: ScheduleKeys, *, discarded: Discarded = say_discarded) -> None:
        self._redis = redis
        self._keys = keys
        self._discarded = discarded

    async def register(
        self, schedules: Sequence[Schedule], *, jitter_seconds: float = 0.0
    ) -> list[Registered]:
        """Register schedules; the first turns of new ones are spread over ``jitter_seconds``."""
        now = (await self.count()).now
        return await self.put([registration_of(one, now, spread(jitter_seconds)) for one in schedules])

    async def put(self, registrations: Sequence[Registration]) -> list[Registered]:
        """Write definitions, as many as there are; those that are known keep their turn."""
        keys = self._keys
        where = [keys.waiting, keys.working, keys.leases, keys.definitions, keys.priorities]
        where += [keys.record_prefix, keys.nudge, keys.changes]
        done: list[Registered] = []
        while len(done) < len(registrations):
            rest = registrations[len(done) : len(done) + CHUNK]
            args: list[Any] = []
            for one in rest[: fitting(rest, lambda r: len(r.spec), most=CHUNK)]:
                args += (one.name, one.spec, one.trigger, one.timeout_ms, one.priority, score(one.first))
                args += (one.revision or "", score(one.paused_since or None), one.paused)
            done += words(Registered, await _REGISTER(self._redis, where, args))
        return done

    async def remove(
        self, names: Iterable[str], *, stop: str = "", revisions: Mapping[str, int] | None = None
    ) -> list[Changed]:
        """Remove schedules for good; running ones end by themselves, or stop at once for the reason given."""
        keys = self._keys
        where = [keys.waiting, keys.working, keys.leases, keys.definitions, keys.priorities]
        where += [keys.record_prefix, keys.changes]
        return await self._each(self._remove, where, [stop], _under(names, revisions), stride=2)

    async def pause(
        self,
        names: Iterable[str],
        reason: str = "",
        *,
        since: float | None = None,
        revisions: Mapping[str, int] | None = None,
        anew: bool = False,
    ) -> list[Changed]:
        """Take schedules out of their turn until resumed; running ones end their run first.

        ``anew``: those that are paused have this reason from now on, unless theirs is newer.
        """
        keys = self._keys
        where = [keys.waiting, keys.definitions, keys.record_prefix, keys.changes]
        head = [reason, score(since), int(anew)]
        return await self._each(_PAUSE, where, head, _under(names, revisions), stride=2)

    async def resume(
        self,
        names: Iterable[str],
        *,
        at: Mapping[str, float] | None = None,
        spread_seconds: float = 0.0,
        revisions: Mapping[str, int] | None = None,
    ) -> list[Changed]:
        """Let paused schedules take their turns again: those given in ``at``, else those they had."""
        keys = self._keys
        where = [keys.waiting, keys.leases, keys.definitions, keys.record_prefix, keys.nudge, keys.changes]
        turns = dict(at or {})
        if spread_seconds > 0:
            names = list(names)
            now = (await self.count()).now
            for name in names:
                turns.setdefault(name, now + spread(spread_seconds))
        under = revisions or {}
        parts = (part for name in names for part in (name, score(turns.get(name)), under.get(name) or ""))
        return await self._each(_RESUME, where, [], parts, stride=3)

    async def trigger(self, names: Iterable[str]) -> list[Changed]:
        """Run schedules now, beside their turns; one that runs is run once more."""
        keys = self._keys
        where = [keys.waiting, keys.leases, keys.definitions, keys.record_prefix, keys.nudge]
        return await self._each(_TRIGGER, where, [], names)

    async def stop(self, names: Iterable[str], reason: str) -> list[Changed]:
        """Ask whoever runs these schedules to stop; their turns go on."""
        keys = self._keys
        return await self._each(_STOP, [keys.leases, keys.definitions, keys.record_prefix], [reason], names)

    async def names(self, pattern: str = "*") -> AsyncIterator[list[str]]:
        """All names that fit the glob ``pattern``, page by page; changes meanwhile may be missed."""
        cursor = "0"
        while True:
            cursor, page = await scan_names(self._redis, self._keys, pattern, cursor, PAGE)
            if page:
                yield page
            if cursor == "0":
                return

    async def definitions(self, cursor: str = "0") -> tuple[str, dict[str, bytes]]:
        """One page of names with their definitions; ``"0"`` as the next cursor is the end."""
        scan = ("HSCAN", self._keys.definitions, cursor, "COUNT", PAGE)
        after, page = await command(self._redis, *scan)
        return text(after), {text(name): spec for name, spec in page.items()}

    async def waiting(self, start: int, size: int) -> list[tuple[str, float]]:
        """Some of those that wait, from the most overdue on, each with its turn."""
        last = start + size - 1
        page = await command(self._redis, "ZRANGE", self._keys.waiting, start, last, "WITHSCORES")
        return [(text(page[at]), float(page[at + 1])) for at in range(0, len(page), 2)]

    async def missing(self, cursor: str = "0") -> tuple[str, list[Missing]]:
        """One page of what has lost its place or its record; ``"0"`` as the next cursor is the end."""
        keys = self._keys
        where = [keys.waiting, keys.leases, keys.definitions, keys.record_prefix, keys.working]
        cursor, _, *rest = await _MISSING(self._redis, where, [cursor, PAGE])
        return text(cursor), [Missing(text(rest[i]), rest[i + 1]) for i in range(0, len(rest), 2)]

    async def repopulate(
        self, plan: Callable[[Missing], Registration | None] | None = None, *, jitter_seconds: float = 0.0
    ) -> list[str]:
        """Bring back what is missing, spread over ``jitter_seconds`` or by ``plan``; return the names."""
        now = (await self.count()).now

        def usual(lost: Missing) -> Registration | None:
            return _planned(lost, now, spread(jitter_seconds))

        restored: list[str] = []
        cursor = "0"
        while True:
            cursor, lost = await self.missing(cursor)
            planned = [one for one in map(plan or usual, lost) if one is not None]
            done = await self.put(planned)
            restored += [
                one.name for one, word in zip(planned, done, strict=True) if word is not Registered.UNCHANGED
            ]
            if cursor == "0":
                return restored

    async def differing(self, digests: Sequence[tuple[str, str]]) -> list[int]:
        """The places of those whose definition is missing here or has another SHA-1."""
        found: list[int] = []
        for start in range(0, len(digests), BATCH):
            args = [part for pair in digests[start : start + BATCH] for part in pair]
            found += [start + int(at) for at in await _DIFFERING(self._redis, [self._keys.definitions], args)]
        return found

    async def standing(self) -> Standing:
        """What to remember, to tell later whether anything has changed."""
        keys = self._keys
        changes, registered, discarded = await _STANDING(
            self._redis, [keys.changes, keys.definitions, keys.record_prefix], []
        )
        self._discarded(discarded)
        return Standing(text(changes), int(registered))

    async def count(self) -> Counts:
        """How many schedules are where, now."""
        keys = self._keys
        reply = await _COUNTS(self._redis, [keys.waiting, keys.working, keys.definitions], [_SAMPLE])
        now, registered, waiting, working, due, earliest, overlapping = reply
        return Counts(
            float(text(now)), registered, waiting, working, due, seconds(earliest), overlapping=overlapping
        )

    async def _remove(self, redis: Redis, keys: list[str], args: list[Any]) -> list[Any]:
        discarded, *told = await _REMOVE(redis, keys, args)
        self._discarded(discarded)
        return told

    async def _each(
        self, script: _Call, keys: list[str], head: list[Any], args: Iterable[Any], *, stride: int = 1
    ) -> list[Changed]:
        """Call ``script`` for all of ``args``, a batch at a time."""
        rest = list(args)
        size = CHUNK * stride
        done: list[Changed] = []
        for start in range(0, len(rest), size):
            reply = await script(self._redis, keys, [*head, *rest[start : start + size]])
            done += words(Changed, reply)
        return done


def _planned(lost: Missing, now: float, jitter: float) -> Registration | None:
    try:
        return registration_of(decoded(lost.spec), now, jitter)
    except InputError as exc:
        _log.error(
            "a schedule's definition can't be read: register it again", schedule=lost.name, error=str(exc)
        )
        return None


def _under(names: Iterable[str], revisions: Mapping[str, int] | None) -> Iterator[Any]:
    """Each name with the revision that it is changed under, '' for just now."""
    under = revisions or {}
    return (part for name in names for part in (name, under.get(name) or ""))


def spread(seconds: float) -> float:
    """Return a random part of so many seconds."""
    return random.uniform(0, seconds) if seconds > 0 else 0.0  # noqa: S311 - no secret
