"""The undelivered events of a partition: events that were given up, with the reason.

Invariant: an event stays until its receiver has accepted it. Redelivery is requested here and done by the
relays, under the fence of the run's outbox entry, so it may be requested any number of times.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import InputError
from holdfast.events.event import Event
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys
    from holdfast.redis.members import Members

SINKS: Final = ("eventapi", "webhook", "push")

_REDELIVER = load(__package__, "outbox_redeliver")
_Entry = tuple[bytes, dict[bytes, bytes]]
_PAGE = 200
_PAGES_MOST = 25
"""Pages that one list reads at most: with a filter, a page may be short and yet not be the last."""
_ENTRY_ID = re.compile(r"\d{1,20}-\d{1,20}\Z")

_QUEUED = frozenset({b"queued", b"waiting"})
_UNADDRESSED = b"unaddressed"


class UndeliveredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One undelivered event; ``at`` is when it was given up, in seconds since the epoch."""

    id: str
    run_id: str
    event_id: str
    sequence: int
    type: str
    sink: str
    error: str
    data: Any
    at: float
    tenant: str
    redelivering: bool = False
    """Whether its redelivery is queued."""


class GivenUpPage(msgspec.Struct, frozen=True):
    """One page of undelivered events, newest first, and the next cursor; empty after the last page."""

    events: list[UndeliveredEvent]
    cursor: str = ""


class RedeliveryResult(msgspec.Struct, frozen=True):
    """How many events relays will deliver again, and the errors of the others."""

    queued: int
    refused: dict[str, str]


async def served_sinks(members: Members, redis: Redis, queue: str) -> frozenset[str]:
    """Return the sinks of a queue that live relays serve; a relay of an older version serves all."""
    relays = [each.fields for each in await members.all(redis, "relay")]
    sinks = [
        each.get("sinks", ",".join(SINKS)) for each in relays if queue in each.get("queues", "").split(",")
    ]
    return frozenset(name for names in sinks for name in names.split(","))


class Undelivered:
    """Lists the undelivered events of one partition, and queues their redelivery."""

    def __init__(self, keys: QueueKeys, redis: Redis) -> None:
        self._keys = keys
        self._redis: Any = redis
        self._stream = keys.undelivered

    async def list(
        self, *, limit: int = 50, cursor: str = "", run_id: str = "", sink: str = "", tenant: str = ""
    ) -> GivenUpPage:
        """Read events, newest first; ``cursor`` is the one of the page before."""
        found: list[UndeliveredEvent] = []
        top = _read_cursor(cursor)
        for _ in range(_PAGES_MOST):
            page = await self._redis.xrevrange(self._stream, top, "-", count=_PAGE)
            for event in await self._read(page, run_id, sink, tenant):
                if len(found) == limit:
                    return GivenUpPage(found, found[-1].id)
                found.append(event)
            if len(page) < _PAGE:
                return GivenUpPage(found)
            top = f"({page[-1][0].decode()}"
        return GivenUpPage(found, top[1:])

    async def redeliver(
        self, *, run_id: str = "", sink: str = "", tenant: str = "", served: Collection[str] = SINKS
    ) -> RedeliveryResult:
        """Queue the redelivery of every event that exists now, or of those of a run, sink or tenant.

        Events for a sink that is not ``served`` are refused: they would wait for ever, and keep their runs.
        """
        queued, refused = 0, dict[str, str]()
        async for page in self._oldest_first():
            wanted = [event for event in await self._read(page, run_id, sink, tenant) if event.event_id]
            refused |= {each.id: _unserved(each) for each in wanted if each.sink not in served}
            possible = [event for event in wanted if event.sink in served]
            words = await self._request([event.id for event in possible])
            queued += sum(word in _QUEUED for word in words)
            for event, word in zip(possible, words, strict=True):
                if word == _UNADDRESSED:
                    refused[event.id] = (
                        f"event {event.sequence} of run {event.run_id} can't be delivered again: "
                        "the run was removed, and its receivers were not stored"
                    )
        return RedeliveryResult(queued, refused)

    async def _request(self, ids: Sequence[str]) -> Sequence[bytes]:
        keys = [self._keys.outbox, self._keys.run_prefix, self._stream]
        return await _REDELIVER(self._redis, keys, ids) if ids else []

    async def _oldest_first(self) -> AsyncIterator[Sequence[_Entry]]:
        """Yield pages, oldest first, up to the newest event of this moment: later ones are left out."""
        newest = await self._redis.xrevrange(self._stream, count=1)
        start, page = "-", newest
        while page:
            page = await self._redis.xrange(self._stream, start, newest[0][0], count=_PAGE)
            yield page
            start = f"({page[-1][0].decode()}" if page else start

    async def _read(
        self, page: Sequence[_Entry], run_id: str, sink: str, tenant: str
    ) -> Sequence[UndeliveredEvent]:
        """Read the entries of this run, sink and tenant.

        The queued redelivery and the tenant of the run are read from their own keys.
        """
        entries = [each for each in page if _is_of(each[1], run_id, sink)]
        if not entries:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for entry, fields in entries:
                run, to = _text(fields, b"run_id"), _text(fields, b"sink")
                pipe.zscore(self._keys.redeliveries(to, run), entry)
                pipe.hget(self._keys.run(run), "tenant")
            replies = await pipe.execute(raise_on_error=False)
        events = [
            _given_up(entry, fields, score=replies[2 * at], tenant=replies[2 * at + 1])
            for at, (entry, fields) in enumerate(entries)
        ]
        # guard: undelivered-of-tenant
        return [event for event in events if not tenant or event.tenant == tenant]


class _ClaimOwner(msgspec.Struct, frozen=True):
    tenant: str = ""


def _given_up(entry: bytes, fields: dict[bytes, bytes], *, score: object, tenant: object) -> UndeliveredEvent:
    sequence = _text(fields, b"sequence")
    origin = fields.get(b"origin", b"")
    # Stored with the event, so that it is right also after the run was removed, or another run has its id.
    owner = msgspec.json.decode(origin, type=_ClaimOwner).tenant if origin else _decoded(tenant)
    return UndeliveredEvent(
        id=entry.decode(),
        run_id=_text(fields, b"run_id"),
        event_id=_text(fields, b"event_id"),
        sequence=int(sequence) if sequence.isdecimal() else 0,
        type=_text(fields, b"type"),
        sink=_text(fields, b"sink"),
        error=_text(fields, b"error"),
        data=Event.of(entry, {b"data": fields.get(b"data") or b"null"}).data,
        at=int(entry.partition(b"-")[0]) / 1000,
        tenant=owner,
        redelivering=isinstance(score, (int, float)),
    )


def _is_of(fields: dict[bytes, bytes], run_id: str, sink: str) -> bool:
    return (not run_id or _text(fields, b"run_id") == run_id) and (not sink or _text(fields, b"sink") == sink)


def _unserved(event: UndeliveredEvent) -> str:
    setting = " with event_api.url (EVENT_API_URL)" if event.sink == "eventapi" else ""
    return f"no relay serves sink {event.sink}: start one{setting}, then deliver its events again"


def _read_cursor(cursor: str) -> str:
    if not cursor:
        return "+"
    if not _ENTRY_ID.match(cursor):
        raise InputError(f"cursor {cursor[:80]!r} was not given out by a previous page")
    return f"({cursor}"


def _text(fields: dict[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode(errors="replace")


def _decoded(raw: object) -> str:
    return raw.decode(errors="replace") if isinstance(raw, bytes) else ""
