"""The outbox of a queue: which runs have events for the outside, and how far each sink has been told.

Invariant: a line (the events of one run on their way to one sink) has one holder at a time, and its cursor
only moves forward, past one event after the other, under the fence of that holder. The feed is the truth.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.events.event import Event
from holdfast.events.origin import Origin
from holdfast.redis.batcher import Batcher
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.command import command
from holdfast.redis.scripts import Script, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys

_SPREAD = load(__package__, "outbox_spread")
_CLAIM = load(__package__, "outbox_claim")
_ROUTE = load(__package__, "outbox_route")
_MOVE = load(__package__, "outbox_move")
_REDELIVERED = load(__package__, "outbox_redelivered")
_RETURN = load(__package__, "outbox_return")
_RENEW = load(__package__, "outbox_renew")
_WAITING = load(__package__, "outbox_waiting")

UNDELIVERED_MOST: Final = 100_000
"""Undelivered events that are kept: the oldest leave first, so that a dead receiver can't fill Redis."""

_CLAIM_MOST = 100
_COUNT_MOST = 100
_RETRY_SECONDS = 0.2
_LONGEST_REASON = 1000
_LINE_FIELDS = 8
_REJECTED = 1000
"""Added to a line's count of refusals while it counts rejections, as in outbox_return.lua."""
_AGAIN_FIELDS = 7

_read_origin = msgspec.json.Decoder(Origin).decode


class Redelivery(msgspec.Struct, frozen=True):
    """An event that was given up before, with what its request needs: its run may have left."""

    entry: str
    """Its id among the undelivered."""
    event: Event
    sequence: int
    address: str
    origin: Origin | None


class Line(msgspec.Struct, kw_only=True):
    """The events of one run on their way to one sink, held by us under a fence."""

    run_id: str
    sink: str
    fence: int
    sequence: int
    """Position in the feed of the last event that was dealt with."""
    tries: int
    refusals: int
    """Times that its next event was refused; 0 if it was rejected last."""
    rejections: int
    """Times that its receiver rejected events; 0 if its next event was refused last."""
    failing_seconds: float
    """How long nothing has been delivered, by Redis TIME when it was claimed."""
    now: float
    """Redis TIME when it was claimed."""
    address: str
    submitted_at: str
    events: list[Event]
    again: list[Redelivery] = msgspec.field(default_factory=list[Redelivery])
    """Events to deliver again, which come before those of the feed: a line has either these or ``events``."""

    @property
    def name(self) -> str:
        """What the line is called, as a lease."""
        return f"{self.run_id} {self.sink}"


class Unrouted(msgspec.Struct, frozen=True):
    """A run of which nobody has said yet where its events go."""

    run_id: str
    agent: str
    thread_id: str
    tenant: str
    submitted_at: str
    message: bytes


class Spread(msgspec.Struct):
    """What one look at the runs with news found."""

    looked: int = 0
    due_seconds: float = math.inf
    """When the next one is due that waits for its time."""
    unrouted: list[Unrouted] = msgspec.field(default_factory=list[Unrouted])
    gone: list[str] = msgspec.field(default_factory=list[str])
    unserved: list[str] = msgspec.field(default_factory=list[str])


class Claimed(msgspec.Struct):
    """What one look at the lines of a sink found."""

    looked: int = 0
    due_seconds: float = math.inf
    """When the next line is due: its pause is over, or its holder's lease."""
    lines: list[Line] = msgspec.field(default_factory=list[Line])
    gone: list[str] = msgspec.field(default_factory=list[str])


class Waiting(msgspec.Struct, frozen=True):
    """What waits for one sink; with many runs the events are estimated from some of them."""

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
        """Where the scripts that append events publish notifications."""
        self._undelivered = keys.undelivered
        self._run_prefix = keys.run_prefix
        self._moves: Batcher[tuple[Any, ...], Any] = Batcher(self._send_moves)
        self._redelivered: Batcher[tuple[Any, ...], bool] = Batcher(self._send_redelivered)
        self._returns: Batcher[tuple[Any, ...], bool] = Batcher(self._send_returns)

    async def spread(self) -> Spread:
        """Spread runs with news over their lines."""
        keys = [self._outbox, self._run_prefix, self._undelivered]
        looked, due_ms, *rows = await _SPREAD(
            self._redis, keys, [self._ttl_ms, _CLAIM_MOST, self._event_api, UNDELIVERED_MOST]
        )
        spread = Spread(looked, _due_seconds(due_ms))
        for kind, *row in rows:
            match kind:
                case b"unrouted":
                    *texts, message = row
                    spread.unrouted.append(Unrouted(*(_text(part) for part in texts), message=message))
                case b"gone":
                    spread.gone.append(_text(row[0]))
                case _:
                    spread.unserved.append(_text(row[0]))
        return spread

    async def claim(self, sink: str, count: int) -> Claimed:
        """Take at most ``count`` lines of a sink that are due."""
        keys = [self._outbox, self._run_prefix, self._undelivered]
        args = [self._owner, self._ttl_ms, min(count, _CLAIM_MOST), sink, UNDELIVERED_MOST]
        now_ms, looked, due_ms, *rows = await _CLAIM(self._redis, keys, args)
        claimed = Claimed(looked, _due_seconds(due_ms))
        for kind, *row in rows:
            match kind:
                case b"line":
                    claimed.lines.append(_line(sink, row, now_ms, events=_events(row[_LINE_FIELDS:])))
                case b"again":
                    claimed.lines.append(_line(sink, row, now_ms, again=_again(row[_LINE_FIELDS:])))
                case _:
                    claimed.gone.append(_text(row[0]))
        return claimed

    async def route(self, routes: Iterable[tuple[str, str, str]]) -> None:
        """Note where runs' events go: run id, webhook, push."""
        args = [part for route in routes for part in route]
        if args:
            await _ROUTE(self._redis, [self._outbox, self._run_prefix], args)

    async def record(self, run_id: str) -> Unrouted | None:
        """Read what a run's record says of it."""
        fields = ("agent", "thread", "tenant", "submitted_at", "message")
        row: list[bytes | None] = await command(self._redis, "HMGET", self._run_prefix + run_id, *fields)
        if row[4] is None:
            return None
        return Unrouted(run_id, *(_text(part or b"") for part in row[:4]), message=row[4])

    async def move(
        self,
        line: Line,
        event: Event,
        sequence: int,
        *,
        last: bool,
        reason: str = "",
        rejections: int = 0,
        origin: Origin | None = None,
    ) -> bool:
        """Move past an event; False if the line is ours no more: all is delivered, or another has it.

        After the ``last`` event that we know, the line's events are those that follow, if there are any. The
        next event begins with so many ``rejections``. An event that is given up is kept with its ``origin``.
        """
        given_up = reason[:_LONGEST_REASON]
        kept = msgspec.json.encode(origin) if reason and origin else b""
        refusals = _packed(rejections)
        row = (line.run_id, line.sink, line.fence, event.id, sequence, given_up, int(last), refusals, kept)
        answer = await self._moves.add(row)
        if answer in (b"stale", b"done"):
            return False
        line.sequence, line.refusals, line.rejections = sequence, 0, rejections
        if not reason:
            line.tries, line.failing_seconds = 0, 0.0
        if last:
            line.events = _events(answer[1:])
        return True

    async def redelivered(
        self, line: Line, again: Redelivery, *, last: bool, reason: str = "", rejections: int = 0
    ) -> bool:
        """Move past an event that was delivered again or, with a ``reason``, given up again.

        False if the line is ours no more, as after the ``last`` one: who claims it next finds what is left.
        """
        given_up = reason[:_LONGEST_REASON]
        row = (line.run_id, line.sink, line.fence, again.entry, given_up, int(last), _packed(rejections))
        ours = await self._redelivered.add(row)
        line.refusals, line.rejections = 0, rejections
        if not reason:
            line.tries, line.failing_seconds = 0, 0.0
        return ours

    async def put_back(self, line: Line, pause_seconds: float, *, why: str = "released") -> bool:
        """Let a line go until it is due again: it failed, was refused or rejected, or is just released."""
        row = (line.run_id, line.sink, line.fence, int(pause_seconds * 1000), why)
        return await self._returns.add(row)

    async def renew(self, redis: Redis, lines: Sequence[tuple[str, str, int]]) -> list[bool]:
        """Keep lines, by run, sink and fence; False for those that another may have taken.

        One that its courier has put back meanwhile is not lost: the courier only waits for the reply.
        """
        args: list[Any] = [self._owner, self._ttl_ms]
        for line in lines:
            args += line
        words = await _RENEW(redis, [self._outbox, self._run_prefix], args)
        return [word != b"lost" for word in words]

    async def waiting(self, sink: str) -> Waiting:
        """How many runs have events for a sink, and how many events that are."""
        keys = [self._outbox, self._run_prefix]
        return Waiting(*await _WAITING(self._redis, keys, [sink, _COUNT_MOST]))

    async def undelivered(self) -> int:
        """How many undelivered events are kept."""
        return await command(self._redis, "XLEN", self._undelivered)

    async def aclose(self) -> None:
        """Wait until what was said has been sent."""
        await self._moves.aclose()
        await self._redelivered.aclose()
        await self._returns.aclose()

    async def _send_moves(self, rows: list[tuple[Any, ...]]) -> list[Any]:
        keys = [self._outbox, self._run_prefix, self._undelivered]
        return await self._until_answered(_MOVE, keys, [self._owner, UNDELIVERED_MOST], rows)

    async def _send_redelivered(self, rows: list[tuple[Any, ...]]) -> list[bool]:
        keys = [self._outbox, self._run_prefix, self._undelivered]
        words = await self._until_answered(_REDELIVERED, keys, [self._owner, UNDELIVERED_MOST], rows)
        return [word == b"moved" for word in words]

    async def _send_returns(self, rows: list[tuple[Any, ...]]) -> list[bool]:
        words = await self._until_answered(_RETURN, [self._outbox, self._run_prefix], [self._owner], rows)
        return [word == b"returned" for word in words]

    async def _until_answered(
        self, script: Script, keys: list[str], head: list[Any], rows: list[tuple[Any, ...]]
    ) -> list[Any]:
        # Fence and cursor make a second try harmless; the hold on the line ends the waiting of its holder.
        args = [*head, *(part for row in rows for part in row)]
        while True:
            try:
                return await script(self._redis, keys, args)
            except DISCONNECTS:
                await asyncio.sleep(_RETRY_SECONDS)


def _line(
    sink: str,
    row: list[Any],
    now_ms: int,
    *,
    events: list[Event] | None = None,
    again: list[Redelivery] | None = None,
) -> Line:
    run_id, fence, sequence, tries, refusals, since, address, submitted_at = row[:_LINE_FIELDS]
    failing_ms = now_ms - int(since) if int(since) else 0
    return Line(
        run_id=_text(run_id),
        sink=sink,
        fence=fence,
        sequence=sequence,
        tries=tries,
        refusals=refusals if refusals < _REJECTED else 0,
        rejections=max(refusals - _REJECTED, 0),
        failing_seconds=failing_ms / 1000,
        now=now_ms / 1000,
        address=_text(address),
        submitted_at=_text(submitted_at),
        events=events or [],
        again=again or [],
    )


def _packed(rejections: int) -> int:
    return _REJECTED + rejections if rejections else 0


def _events(flat: Sequence[bytes]) -> list[Event]:
    rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return [Event.of(entry, {b"type": kind, b"data": data}) for entry, kind, data in rows]


def _again(flat: Sequence[bytes]) -> list[Redelivery]:
    rows = zip(*(flat[part::_AGAIN_FIELDS] for part in range(_AGAIN_FIELDS)), strict=True)
    return [
        Redelivery(
            entry=_text(entry),
            event=Event.of(event_id, {b"type": kind, b"data": data}),
            sequence=int(sequence),
            address=_text(address),
            origin=_read_origin(origin) if origin else None,
        )
        for entry, event_id, kind, data, sequence, address, origin in rows
    ]


def _due_seconds(ms: int) -> float:
    return math.inf if ms < 0 else ms / 1000


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
