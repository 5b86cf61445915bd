"""The registry: which schedules there are, and the scripts that change them.

Invariant: each schedule is in exactly one state (waiting, working, paused or done), and registering it again
moves nothing unless its trigger or its limits have changed.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.config.checks import key_slot
from holdfast.errors import ConfigError, InputError
from holdfast.leases.lease import Lease
from holdfast.redaction import redact_url
from holdfast.redis.batcher import fitting
from holdfast.redis.command import command
from holdfast.redis.keys import ScheduleKeys
from holdfast.redis.scripts import load
from holdfast.schedules.entries import Entries, ScheduleState, scan_names
from holdfast.schedules.fire_times import first_run
from holdfast.schedules.redis_errors import log_discarded
from holdfast.schedules.replies import (
    BATCH,
    CHUNK,
    NORMAL_PRIORITY,
    PAGE,
    ChangeReply,
    Registered,
    score,
    seconds,
    text,
    words,
)
from holdfast.schedules.schedule import decoded, encoded
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.config import RedisSettings
    from holdfast.redis.client import Redis
    from holdfast.schedules.redis_errors import Discarded
    from holdfast.schedules.schedule import Schedule

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


class Registration(msgspec.Struct, frozen=True):
    """A definition as the scripts read it: the spec is opaque to them, the rest they use."""

    name: str
    spec: bytes
    trigger: str
    """Fingerprint of all that decides its turns."""
    timeout_ms: int
    first: float | None
    """Its first turn, if it is new or its trigger has changed; None if it has no turn left."""
    priority: int = NORMAL_PRIORITY
    revision: int = 0
    """The higher one is the newer one; 0 is the code's, which is always written."""
    paused: str = ""
    paused_since: float = 0.0
    """Since when a new schedule is paused; 0 if it is not."""


def fingerprint(*parts: Any) -> str:
    """Return a digest of all that decides a schedule's turns: the same parts, the same turns."""
    return hashlib.blake2b(msgspec.json.encode(parts, order="sorted"), digest_size=12).hexdigest()


def registration_of(schedule: Schedule, now: float, jitter: float = 0.0) -> Registration:
    """Return the registration of a schedule; its first turn is planned from ``now`` (Redis TIME)."""
    return Registration(
        schedule.name,
        encoded(schedule),
        fingerprint(schedule.trigger, schedule.starts_at, schedule.ends_at, schedule.max_runs),
        timeout_ms=max(1, round(schedule.timeout_seconds * 1000)),
        first=first_run(schedule, now, jitter),
        priority=schedule.priority,
    )


class Missing(msgspec.Struct, frozen=True):
    """A definition whose schedule is in no set, or has no record."""

    name: str
    spec: bytes


class ScheduleCounts(msgspec.Struct, frozen=True):
    """How many schedules are in each state; ``earliest`` is the next turn of all."""

    now: float
    registered: int
    waiting: int
    working: int
    due: int
    earliest: float | None
    overlapping: int
    """Of a sample of those that run, how many also wait: none, unless keys were changed from outside."""


class DefinitionsVersion(msgspec.Struct, frozen=True):
    """A value that differs after a definition or a pause has changed, or Redis has lost some."""

    changes: str
    registered: int

    @property
    def era(self) -> str:
        """A part that differs after Redis has been emptied."""
        return self.changes.partition("-")[0]


class ScheduleRegistry:
    """The schedules of one set of keys."""

    def __init__(self, redis: Redis, keys: ScheduleKeys, *, discarded: Discarded = log_discarded) -> None:
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
        """Write any number of definitions; known schedules keep their turn."""
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
    ) -> list[ChangeReply]:
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
    ) -> list[ChangeReply]:
        """Pause schedules until they are resumed; running ones end their run first.

        ``anew``: replace the reason of those that are paused already, unless theirs is newer.
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
    ) -> list[ChangeReply]:
        """Resume paused schedules, at the turns given in ``at``, else at those they had."""
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

    async def trigger(self, names: Iterable[str]) -> list[ChangeReply]:
        """Run schedules now, beside their turns; one that runs is run once more."""
        keys = self._keys
        where = [keys.waiting, keys.leases, keys.definitions, keys.record_prefix, keys.nudge]
        return await self._each(_TRIGGER, where, [], names)

    async def stop(self, names: Iterable[str], reason: str) -> list[ChangeReply]:
        """Ask the schedulers that run these schedules to stop the runs; later turns come as planned."""
        keys = self._keys
        return await self._each(_STOP, [keys.leases, keys.definitions, keys.record_prefix], [reason], names)

    async def names(self, pattern: str = "*") -> AsyncIterator[list[str]]:
        """Yield all names that match the glob ``pattern``, page by page; changes meanwhile may be missed."""
        cursor = "0"
        while True:
            cursor, page = await scan_names(self._redis, self._keys, pattern, cursor, PAGE)
            if page:
                yield page
            if cursor == "0":
                return

    async def definitions(self, cursor: str = "0") -> tuple[str, dict[str, bytes]]:
        """Read one page of names with their definitions; ``"0"`` as the next cursor is the end."""
        scan = ("HSCAN", self._keys.definitions, cursor, "COUNT", PAGE)
        after, page = await command(self._redis, *scan)
        return text(after), {text(name): spec for name, spec in page.items()}

    async def waiting(self, start: int, size: int) -> list[tuple[str, float]]:
        """Read some of those that wait, from the most overdue on, each with its turn."""
        last = start + size - 1
        page = await command(self._redis, "ZRANGE", self._keys.waiting, start, last, "WITHSCORES")
        return [(text(page[at]), float(page[at + 1])) for at in range(0, len(page), 2)]

    async def active(self, names: Sequence[str]) -> set[str]:
        """Return those of the names that have turns to come: neither paused nor done."""
        entries = await Entries(self._redis, self._keys).get_many(names)
        return {
            one.name for one in entries if one.paused_since is None and one.state is not ScheduleState.DONE
        }

    async def leases_of(self, owner: str) -> list[Lease]:
        """Read the leases of one owner, also those whose grant was never received."""
        # All names at once: a renewal between two pages would move some out of both.
        names = [text(name) for name in await command(self._redis, "ZRANGE", self._keys.leases, 0, -1)]
        entries = await Entries(self._redis, self._keys).get_many(names)
        return [Lease(one.name, owner, one.fence) for one in entries if one.owner == owner]

    async def missing(self, cursor: str = "0") -> tuple[str, list[Missing]]:
        """Read one page of schedules in no set or without a record; ``"0"`` as the next cursor is the end."""
        keys = self._keys
        where = [keys.waiting, keys.leases, keys.definitions, keys.record_prefix, keys.working]
        cursor, _, *rest = await _MISSING(self._redis, where, [cursor, PAGE])
        return text(cursor), [Missing(text(rest[i]), rest[i + 1]) for i in range(0, len(rest), 2)]

    async def repopulate(
        self, plan: Callable[[Missing], Registration | None] | None = None, *, jitter_seconds: float = 0.0
    ) -> list[str]:
        """Bring back what is missing, spread over ``jitter_seconds`` or by ``plan``; return the names."""
        cursor, restored = await self.repopulate_page("0", plan, jitter_seconds=jitter_seconds)
        while cursor != "0":
            cursor, more = await self.repopulate_page(cursor, plan, jitter_seconds=jitter_seconds)
            restored += more
        return restored

    async def repopulate_page(
        self,
        cursor: str,
        plan: Callable[[Missing], Registration | None] | None = None,
        *,
        jitter_seconds: float = 0.0,
    ) -> tuple[str, list[str]]:
        """Bring back what one page lacks; ``"0"`` as the next cursor is the end."""
        cursor, lost = await self.missing(cursor)
        if not lost:
            return cursor, []
        now = (await self.count()).now

        def usual(lost: Missing) -> Registration | None:
            return _planned(lost, now, spread(jitter_seconds))

        planned = [one for one in map(plan or usual, lost) if one is not None]
        done = await self.put(planned)
        return cursor, [
            one.name for one, word in zip(planned, done, strict=True) if word is not Registered.UNCHANGED
        ]

    async def differing(self, digests: Sequence[tuple[str, str]]) -> list[int]:
        """Return the indexes of those whose definition is missing in Redis or has another SHA-1."""
        found: list[int] = []
        for start in range(0, len(digests), BATCH):
            args = [part for pair in digests[start : start + BATCH] for part in pair]
            found += [start + int(at) for at in await _DIFFERING(self._redis, [self._keys.definitions], args)]
        return found

    async def standing(self) -> DefinitionsVersion:
        """Read the value that differs once anything has changed."""
        keys = self._keys
        changes, registered, discarded = await _STANDING(
            self._redis, [keys.changes, keys.definitions, keys.record_prefix], []
        )
        self._discarded(discarded)
        return DefinitionsVersion(text(changes), int(registered))

    async def count(self) -> ScheduleCounts:
        """Count the schedules in each state, now."""
        keys = self._keys
        reply = await _COUNTS(self._redis, [keys.waiting, keys.working, keys.definitions], [_SAMPLE])
        now, registered, waiting, working, due, earliest, overlapping = reply
        return ScheduleCounts(
            float(text(now)), registered, waiting, working, due, seconds(earliest), overlapping=overlapping
        )

    async def _remove(self, redis: Redis, keys: list[str], args: list[Any]) -> list[Any]:
        discarded, *reply = await _REMOVE(redis, keys, args)
        self._discarded(discarded)
        return reply

    async def _each(
        self, script: _Call, keys: list[str], head: list[Any], args: Iterable[Any], *, stride: int = 1
    ) -> list[ChangeReply]:
        """Call ``script`` for all of ``args``, a batch at a time."""
        rest = list(args)
        size = CHUNK * stride
        done: list[ChangeReply] = []
        for start in range(0, len(rest), size):
            reply = await script(self._redis, keys, [*head, *rest[start : start + size]])
            done += words(ChangeReply, reply)
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
    """Yield each name and the revision that it is changed under, '' for none."""
    under = revisions or {}
    return (part for name in names for part in (name, under.get(name) or ""))


def spread(seconds: float) -> float:
    """Return a random part of so many seconds."""
    return random.uniform(0, seconds) if seconds > 0 else 0.0  # noqa: S311 - no secret


def checked_keys(settings: RedisSettings) -> ScheduleKeys:
    """Return the keys of the settings; ConfigError if a cluster would keep them in different slots."""
    keys = schedule_keys(settings)
    if not settings.url.startswith(("redis+cluster://", "rediss+cluster://")):
        return keys
    if len({key_slot(key) for key in msgspec.structs.astuple(keys)}) == 1:
        return keys
    raise ConfigError(
        f"redis.scheduler.keys.hash-tag is empty, and redis.url = {redact_url(settings.url)} is a cluster: a "
        "script moves a schedule between several keys, which must be in one slot. Set "
        "redis.scheduler.keys.hash-tag, to ps for example: the keys are then waiting{ps}, working{ps}, …"
    )


def schedule_keys(settings: RedisSettings) -> ScheduleKeys:
    """Return the keys of the configured set of schedules."""
    keys = settings.scheduler.keys
    return ScheduleKeys.of(
        prefix=settings.key_prefix + keys.prefix,
        waiting=keys.waiting_set,
        working=keys.working_set,
        leader=keys.cleanup_leader_key,
        hash_tag=keys.hash_tag,
    )
