"""Reads what Redis holds, by the keys of the documented data model, and writes nothing.

The demo submits and cancels through the Client like everybody else; this is the auditor's own look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.redis.keys import LANES, ScheduleKeys
from holdfast_demo.account import ENDED, Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys


@dataclass(frozen=True, slots=True)
class Record:
    """One run, as its hash and its whole feed have it."""

    run_id: str
    status: str
    fence: int
    events: list[Event]
    result: Any = None


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One run that a schedule has submitted; ``turn`` is the name of its turn."""

    run_id: str
    schedule: str
    turn: str
    status: str
    asked_at: float
    events: list[Event]

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class Audit:
    """Everything that is in Redis at the end."""

    records: list[Record]
    known: frozenset[str]
    dead: list[str]
    entries: dict[str, int]
    pending: dict[str, int]
    delayed: int
    undelivered: int = 0
    scheduled: list[ScheduledRun] = field(default_factory=list[ScheduledRun])
    """Runs that schedules have submitted; the other counts are of runs that the demo has submitted."""
    turns: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """What the records of the schedules say."""


class Books:
    """The runs of one queue in Redis, read-only."""

    def __init__(self, redis: Redis, keys: QueueKeys, group: str) -> None:
        self._redis: Any = redis  # redis-py types its replies for every protocol at once; ours are bytes
        self._keys = keys
        self._group = group
        self._schedules = ScheduleKeys.of()
        self._read_to: dict[str, bytes] = {}

    async def news(self, run_ids: Iterable[str]) -> list[Event]:
        """What was added to the feeds since the last look, in the order of Redis time."""
        feeds = {self._keys.feed(run_id): run_id for run_id in run_ids}
        if not feeds:
            return []
        streams = {feed: self._read_to.get(feed, b"0") for feed in feeds}
        events: list[tuple[bytes, Event]] = []
        for feed, entries in await self._redis.xread(streams):
            name = feed.decode()
            self._read_to[name] = entries[-1][0]
            events += [(entry, _event(feeds[name], entry, fields)) for entry, fields in entries]
        return [event for _, event in sorted(events, key=lambda pair: _order(pair[0]))]

    async def audit(self, run_ids: Iterable[str]) -> Audit:
        """Read everything back."""
        redis, keys = self._redis, self._keys
        lanes = dict(zip(LANES, keys.lanes, strict=True))
        submitted, scheduled = list(run_ids), await self.scheduled()
        known = {run_id.decode() for run_id in await redis.zrange(keys.runs, 0, -1)}
        return Audit(
            records=[await self._record(run_id) for run_id in submitted],
            known=frozenset(known - {run.run_id for run in scheduled}),
            dead=[fields[b"run_id"].decode() for _, fields in await redis.xrange(keys.deadletter)],
            entries={lane: await redis.xlen(key) for lane, key in lanes.items()},
            pending={
                lane: (await redis.xpending(key, self._group))["pending"] for lane, key in lanes.items()
            },
            delayed=await redis.zcard(keys.delayed),
            undelivered=await redis.xlen(keys.undelivered),
            scheduled=scheduled,
            turns={
                name.decode(): await self._turns(name.decode())
                for name in await redis.hkeys(self._schedules.definitions)
            },
        )

    async def scheduled(self, name: str = "") -> list[ScheduledRun]:
        """Return the runs that schedules have submitted, or one of them."""
        found: list[ScheduledRun] = []
        for run_id in await self._redis.zrange(self._keys.runs, 0, -1):
            fields = await self._redis.hgetall(self._keys.run(run_id.decode()))
            message = msgspec.json.decode(fields.get(b"message") or b"{}", type=dict[str, Any])
            metadata: dict[str, str] = message.get("metadata") or {}
            if "schedule" in metadata and name in {"", metadata["schedule"]}:
                record = await self._record(run_id.decode())
                asked_at = record.events[0].at if record.events else 0.0
                found.append(
                    ScheduledRun(
                        record.run_id,
                        metadata["schedule"],
                        metadata["turn"],
                        record.status,
                        asked_at,
                        record.events,
                    )
                )
        return found

    async def is_running(self, schedule: str) -> bool:
        """Whether a schedule's turn goes on."""
        return await self._redis.zscore(self._schedules.leases, schedule) is not None

    async def _turns(self, schedule: str) -> dict[str, str]:
        fields = await self._redis.hgetall(self._schedules.record(schedule))
        return {name.decode(): value.decode() for name, value in fields.items()}

    async def _record(self, run_id: str) -> Record:
        fields = await self._redis.hgetall(self._keys.run(run_id))
        feed = await self._redis.xrange(self._keys.feed(run_id))
        return Record(
            run_id,
            status=fields.get(b"status", b"missing").decode(),
            fence=int(fields.get(b"fence", 0)),
            events=[_event(run_id, entry, values) for entry, values in feed],
            result=msgspec.json.decode(fields.get(b"result") or b"null"),
        )


def _event(run_id: str, entry: bytes, fields: dict[bytes, bytes]) -> Event:
    value: Any = msgspec.json.decode(fields[b"data"])
    data = cast("dict[str, Any]", value) if isinstance(value, dict) else {"value": value}
    return Event(run_id, _order(entry)[0] / 1000, fields[b"type"].decode(), data, entry.decode())


def _order(entry: bytes) -> tuple[int, int]:
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number)
