"""The outbox of a partition: the runs with events for receivers, and each sink's cursor into their feeds.

Invariant: an entry (the events of one run for one sink) has one holder at a time, and its cursor only moves
forward, event by event, under the fence of that holder. The events stay in the feed.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.relay.run_facts import RunFacts
from holdfast.redis.batcher import Batcher
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.command import command
from holdfast.redis.scripts import Script, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys

_FAN_OUT = load(__package__, "outbox_fan_out")
_CLAIM = load(__package__, "outbox_claim")
_ROUTE = load(__package__, "outbox_route")
_ADVANCE = load(__package__, "outbox_advance")
_ADVANCE_REDELIVERY = load(__package__, "outbox_advance_redelivery")
_RELEASE = load(__package__, "outbox_release")
_RENEW = load(__package__, "outbox_renew")
_WAITING = load(__package__, "outbox_waiting")

UNDELIVERED_MOST: Final = 100_000
"""The limit of undelivered events: the oldest are removed, so that a dead receiver can't fill Redis."""

_CLAIM_MOST = 100
_COUNT_MOST = 100
_RETRY_SECONDS = 0.2
_REASON_CHARACTERS = 1000
_ENTRY_FIELDS = 8
_REDELIVERY_FIELDS = 7
_REJECTED = 1000
"""Added to an entry's count of refusals while it counts rejections, as in outbox_release.lua."""

_read_run_facts = msgspec.json.Decoder(RunFacts).decode


class PendingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that an entry has to deliver, with the data for its request."""

    event: Event
    sequence: int
    """Its position in the run's feed, from 1."""
    address: str
    last: bool
    """Whether it is the last event of the page: the entry may have more."""
    undelivered_id: str = ""
    """Its id among the undelivered events; empty if it was not given up before."""
    run: RunFacts | None = None
    """The facts of its run, stored when the event was given up: the run may have been removed since."""

    @property
    def is_redelivery(self) -> bool:
        """Whether the event was given up before."""
        return bool(self.undelivered_id)


class OutboxEntry(msgspec.Struct, kw_only=True):
    """A run and a sink: the run's events that the sink has not delivered, held under a fence."""

    run_id: str
    sink: str
    fence: int
    sequence: int
    """Position in the feed of the last event that was delivered or given up."""
    tries: int
    refusals: int
    """How often its next event was refused; 0 if it was rejected last."""
    rejections: int
    """How often its receiver rejected events; 0 if its next event was refused last."""
    failing_since: float
    """When the deliveries began to fail, by Redis TIME; 0 if they don't."""
    claimed_at: float
    """Redis TIME of the claim."""
    address: str
    submitted_at: str
    events: list[Event]
    """The next page of the feed; empty if there are redeliveries."""
    redeliveries: list[PendingEvent] = msgspec.field(default_factory=list[PendingEvent])
    """Events that were given up and must be delivered again, before those of the feed."""
    _read_at: float = msgspec.field(default_factory=time.monotonic)

    @property
    def key(self) -> str:
        """The key of its lease."""
        return f"{self.run_id} {self.sink}"

    @property
    def now(self) -> float:
        """Redis TIME now, by this process's clock since the claim."""
        return self.claimed_at + time.monotonic() - self._read_at

    def pending(self) -> Iterator[PendingEvent]:
        """Yield the events to deliver; at the last one of a page, ``Outbox.advance`` reads the next page."""
        yield from self.redeliveries
        while events := self.events:
            for number, event in enumerate(events, 1):
                last = number == len(events)
                yield PendingEvent(event=event, sequence=self.sequence + 1, address=self.address, last=last)


class RunRecord(msgspec.Struct, frozen=True):
    """The part of a run's record with its identity and its receivers."""

    run_id: str
    agent: str
    thread_id: str
    tenant: str
    submitted_at: str
    message: bytes


class FanOutResult(msgspec.Struct):
    """The result of one round of the fan-out over the runs with new events."""

    looked: int = 0
    due_seconds: float = math.inf
    """Seconds until the next run is due."""
    unrouted: list[RunRecord] = msgspec.field(default_factory=list[RunRecord])
    """Runs whose receivers are not stored yet."""
    gone: list[str] = msgspec.field(default_factory=list[str])
    unserved: list[str] = msgspec.field(default_factory=list[str])


class ClaimResult(msgspec.Struct):
    """The result of one claim of entries of a sink."""

    looked: int = 0
    due_seconds: float = math.inf
    """Seconds until the next entry is due: its pause or its holder's lease ends."""
    entries: list[OutboxEntry] = msgspec.field(default_factory=list[OutboxEntry])
    gone: list[str] = msgspec.field(default_factory=list[str])


class WaitingEvents(msgspec.Struct, frozen=True):
    """The runs and events that wait for one sink; with many runs the events are estimated from a sample."""

    runs: int
    events: int


class Outbox:
    """One queue's outbox, for one owner."""

    def __init__(
        self, keys: QueueKeys, redis: Redis, *, owner: str, ttl_seconds: float, event_api: bool
    ) -> None:
        self._keys = keys
        self._redis = redis
        self._owner = owner
        self._ttl_ms = int(ttl_seconds * 1000)
        self._event_api = int(event_api)
        self._outbox = keys.outbox
        self.channel = keys.outbox_notify
        """The channel on which the scripts that append events publish notifications."""
        self._undelivered = keys.undelivered
        self._run_prefix = keys.run_prefix
        self._advances: Batcher[tuple[Any, ...], Any] = Batcher(self._send_advances)
        self._redelivery_advances: Batcher[tuple[Any, ...], bool] = Batcher(self._send_redelivery_advances)
        self._releases: Batcher[tuple[Any, ...], bool] = Batcher(self._send_releases)

    async def fan_out(self) -> FanOutResult:
        """Add an entry per sink for each run with new events."""
        keys = [self._outbox, self._run_prefix, self._undelivered]
        looked, due_ms, *rows = await _FAN_OUT(
            self._redis, keys, [self._ttl_ms, _CLAIM_MOST, self._event_api, UNDELIVERED_MOST]
        )
        found = FanOutResult(looked, _due_seconds(due_ms))
        for kind, *row in rows:
            match kind:
                case b"unrouted":
                    *texts, message = row
                    found.unrouted.append(RunRecord(*(_text(part) for part in texts), message=message))
                case b"gone":
                    found.gone.append(_text(row[0]))
                case _:
                    found.unserved.append(_text(row[0]))
        return found

    async def claim(self, sink: str, count: int) -> ClaimResult:
        """Claim at most ``count`` entries of a sink that are due."""
        keys = [self._outbox, self._run_prefix, self._undelivered]
        args = [self._owner, self._ttl_ms, min(count, _CLAIM_MOST), sink, UNDELIVERED_MOST]
        now_ms, looked, due_ms, *rows = await _CLAIM(self._redis, keys, args)
        claimed = ClaimResult(looked, _due_seconds(due_ms))
        for kind, *row in rows:
            match kind:
                case b"entry":
                    claimed.entries.append(_entry(sink, row, now_ms, events=_events(row[_ENTRY_FIELDS:])))
                case b"redelivery":
                    redeliveries = _redeliveries(row[_ENTRY_FIELDS:], address=_text(row[6]))
                    claimed.entries.append(_entry(sink, row, now_ms, redeliveries=redeliveries))
                case _:
                    claimed.gone.append(_text(row[0]))
        return claimed

    async def route(self, routes: Iterable[tuple[str, str, str]]) -> None:
        """Store the receivers of runs: run id, webhook, push."""
        args = [part for route in routes for part in route]
        if args:
            await _ROUTE(self._redis, [self._outbox, self._run_prefix], args)

    async def record(self, run_id: str) -> RunRecord | None:
        """Read a run's record; None if the run was removed."""
        fields = ("agent", "thread", "tenant", "submitted_at", "message")
        row: list[bytes | None] = await command(self._redis, "HMGET", self._run_prefix + run_id, *fields)
        if row[4] is None:
            return None
        return RunRecord(run_id, *(_text(part or b"") for part in row[:4]), message=row[4])

    async def advance(
        self,
        entry: OutboxEntry,
        event: PendingEvent,
        *,
        reason: str = "",
        rejections: int = 0,
        run: RunFacts | None = None,
    ) -> bool:
        """Move the entry's cursor past an event that was delivered or, with a ``reason``, given up.

        Return whether the entry is still held: if not, all events are delivered, or another relay has it. The
        next event begins with ``rejections``. An event that is given up is stored with its ``run``'s facts.
        """
        if event.is_redelivery:
            return await self._advance_redelivery(entry, event, reason, rejections)
        row = (
            *(entry.run_id, entry.sink, entry.fence, event.event.id, event.sequence),
            *(reason[:_REASON_CHARACTERS], int(event.last), _packed(rejections)),
            msgspec.json.encode(run) if reason and run else b"",
        )
        reply = await self._advances.add(row)
        if reply in (b"stale", b"done"):
            return False
        _begin_next(entry, rejections, delivered=not reason)
        entry.sequence = event.sequence
        if event.last:
            entry.events = _events(reply[1:])
        return True

    async def _advance_redelivery(
        self, entry: OutboxEntry, event: PendingEvent, reason: str, rejections: int
    ) -> bool:
        """Advance past an event that was given up before; after the last one the entry is released."""
        row = (
            *(entry.run_id, entry.sink, entry.fence, event.undelivered_id),
            *(reason[:_REASON_CHARACTERS], int(event.last), _packed(rejections)),
        )
        held = await self._redelivery_advances.add(row)
        _begin_next(entry, rejections, delivered=not reason)
        return held

    async def release(
        self, entry: OutboxEntry, pause_seconds: float = 0.0, *, counts_as: str = "released"
    ) -> bool:
        """Release an entry until it is due again; ``counts_as``: failed, refused, rejected or released."""
        row = (entry.run_id, entry.sink, entry.fence, int(pause_seconds * 1000), counts_as)
        return await self._releases.add(row)

    async def renew(self, redis: Redis, entries: Sequence[tuple[str, str, int]]) -> list[bool]:
        """Renew entries, by run, sink and fence; False for those that another relay may have.

        An entry that its delivery has released is not lost: the delivery only waits for the reply.
        """
        args: list[Any] = [self._owner, self._ttl_ms]
        for entry in entries:
            args += entry
        words = await _RENEW(redis, [self._outbox, self._run_prefix], args)
        return [word != b"lost" for word in words]

    async def waiting(self, sink: str) -> WaitingEvents:
        """Count the runs that have events for a sink, and those events."""
        keys = [self._outbox, self._run_prefix]
        return WaitingEvents(*await _WAITING(self._redis, keys, [sink, _COUNT_MOST]))

    async def undelivered(self) -> int:
        """Count the undelivered events."""
        return await command(self._redis, "XLEN", self._undelivered)

    async def aclose(self) -> None:
        """Wait until every advance and release has been sent."""
        await self._advances.aclose()
        await self._redelivery_advances.aclose()
        await self._releases.aclose()

    async def _send_advances(self, rows: list[tuple[Any, ...]]) -> list[Any]:
        keys = [self._outbox, self._run_prefix, self._undelivered]
        return await self._until_answered(_ADVANCE, keys, [self._owner, UNDELIVERED_MOST], rows)

    async def _send_redelivery_advances(self, rows: list[tuple[Any, ...]]) -> list[bool]:
        keys = [self._outbox, self._run_prefix, self._undelivered]
        head = [self._owner, UNDELIVERED_MOST]
        words = await self._until_answered(_ADVANCE_REDELIVERY, keys, head, rows)
        return [word == b"advanced" for word in words]

    async def _send_releases(self, rows: list[tuple[Any, ...]]) -> list[bool]:
        words = await self._until_answered(_RELEASE, [self._outbox, self._run_prefix], [self._owner], rows)
        return [word == b"released" for word in words]

    async def _until_answered(
        self, script: Script, keys: list[str], head: list[Any], rows: list[tuple[Any, ...]]
    ) -> list[Any]:
        # Fence and cursor make a second call safe; a lost lease cancels the delivery that waits here.
        args = [*head, *(part for row in rows for part in row)]
        while True:
            try:
                return await script(self._redis, keys, args)
            except DISCONNECTS:
                await asyncio.sleep(_RETRY_SECONDS)


def _entry(
    sink: str,
    row: list[Any],
    now_ms: int,
    *,
    events: list[Event] | None = None,
    redeliveries: list[PendingEvent] | None = None,
) -> OutboxEntry:
    run_id, fence, sequence, tries, refusals, since, address, submitted_at = row[:_ENTRY_FIELDS]
    return OutboxEntry(
        run_id=_text(run_id),
        sink=sink,
        fence=fence,
        sequence=sequence,
        tries=tries,
        refusals=refusals if refusals < _REJECTED else 0,
        rejections=max(refusals - _REJECTED, 0),
        failing_since=int(since) / 1000,
        claimed_at=now_ms / 1000,
        address=_text(address),
        submitted_at=_text(submitted_at),
        events=events or [],
        redeliveries=redeliveries or [],
    )


def _begin_next(entry: OutboxEntry, rejections: int, *, delivered: bool) -> None:
    """Set the entry's counters for its next event, as the scripts do."""
    entry.refusals, entry.rejections = 0, rejections
    if delivered:
        entry.tries, entry.failing_since = 0, 0.0


def _packed(rejections: int) -> int:
    return _REJECTED + rejections if rejections else 0


def _events(flat: Sequence[bytes]) -> list[Event]:
    rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return [Event.of(event_id, {b"type": kind, b"data": data}) for event_id, kind, data in rows]


def _redeliveries(flat: Sequence[bytes], *, address: str) -> list[PendingEvent]:
    """Read events to deliver again; those without a stored address go to the entry's address."""
    rows = list(zip(*(flat[part::_REDELIVERY_FIELDS] for part in range(_REDELIVERY_FIELDS)), strict=True))
    return [
        PendingEvent(
            event=Event.of(event_id, {b"type": kind, b"data": data}),
            sequence=int(sequence),
            address=_text(kept_address) or address,
            last=number == len(rows),
            undelivered_id=_text(undelivered_id),
            run=_read_run_facts(run) if run else None,
        )
        for number, (undelivered_id, event_id, kind, data, sequence, kept_address, run) in enumerate(rows, 1)
    ]


def _due_seconds(ms: int) -> float:
    return math.inf if ms < 0 else ms / 1000


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
