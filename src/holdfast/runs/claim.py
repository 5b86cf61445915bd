"""The worker's end of a queue: wait for work, then make it ours in one script call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.redis.command import command
from holdfast.redis.groups import ensure_consumer, group_is_missing
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from holdfast.redis.client import Redis
    from holdfast.runs.queue import RunQueue

_CLAIM = load(__package__, "claim")
_HEAD, _FIELDS = 3, 6
_FAIR_TURN = 10
"""Every so many claims the low lane goes first, so that a stream of urgent runs can't starve it."""

Woken = list[tuple[int, bytes]]
"""Entries that a blocking read delivered: lane number and entry id."""


class Claimed(msgspec.Struct, frozen=True):
    """A run that is ours now, under ``fence``."""

    run_id: str
    fence: int
    attempt: int
    entry_ms: int
    agent: str
    message: bytes


class Claims(msgspec.Struct, frozen=True):
    """What one claim brought; the leases are trusted from ``asked_at``, the loop's time before the call."""

    runs: list[Claimed]
    asked_at: float
    dropped: int = 0
    adopted: int = 0
    paused: bool = False


class Claimer:
    """Claims runs of one queue for one owner; ``reader`` is a connection for blocking reads only."""

    def __init__(self, queue: RunQueue, owner: str, reader: Redis) -> None:
        keys, settings = queue.keys, queue.settings
        self._queue = queue
        self._owner = owner
        self._reader = reader
        self._group = settings.group
        self._keys: list[Any] = [*keys.lanes, keys.gate, keys.runs, keys.run_prefix]
        self._tail = [int(settings.retention_seconds * 1000), settings.default_agent]
        self._lane_numbers = {lane.encode(): number for number, lane in enumerate(keys.lanes, 1)}
        self._streams = (*keys.lanes, *(">" for _ in keys.lanes))
        self._turn = 0

    async def join(self) -> None:
        """Create lanes, group and our consumer."""
        await self._queue.ensure()
        for lane in self._queue.keys.lanes:
            await ensure_consumer(self._queue.redis, lane, self._group, self._owner)

    async def wait(self, block_ms: int) -> Woken:
        """Block until an entry is delivered to us, or the time is over; one wakes one worker."""
        try:
            read = ("XREADGROUP", "GROUP", self._group, self._owner, "COUNT", 1, "BLOCK", block_ms, "STREAMS")
            reply = await command(self._reader, *read, *self._streams)
        except Exception as exc:
            if not group_is_missing(exc):
                raise
            await self.join()
            return []
        return [(self._lane_numbers[lane], entry) for lane, entries in reply or () for entry, _ in entries]

    async def claim(self, count: int, woken: Woken) -> Claims:
        """Make up to ``count`` runs ours: the woken ones, then whatever waits."""
        asked_at = asyncio.get_running_loop().time()
        self._turn += 1
        args: list[Any] = [self._group, self._owner, count, lane_order(self._turn), *self._tail]
        for number, entry in woken:
            args += (number, entry)
        try:
            reply = await _CLAIM(self._queue.redis, self._keys, args)
        except Exception as exc:
            if not group_is_missing(exc):
                raise
            await self.join()
            return Claims([], asked_at)
        mode, dropped, adopted = reply[:_HEAD]
        return Claims(_claimed(reply), asked_at, dropped, adopted, paused=mode == b"paused")


def lane_order(turn: int) -> str:
    """The order in which a claim reads the lanes: by priority, but every tenth time the low lane earlier."""
    return "1432" if turn % _FAIR_TURN == 0 else "1234"


def _claimed(reply: list[Any]) -> list[Claimed]:
    return [
        Claimed(
            reply[at].decode(),
            reply[at + 1],
            reply[at + 2],
            int(reply[at + 3].partition(b"-")[0]),
            reply[at + 4].decode(errors="replace"),
            reply[at + 5],
        )
        for at in range(_HEAD, len(reply), _FIELDS)
    ]
