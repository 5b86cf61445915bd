"""One partition of a queue: all of its runs are in one cluster slot, and every script sees all of them.

Every change is one script call, and calling it again after a lost reply changes nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Conflict, InputError, NotFound, PayloadTooLarge
from holdfast.redis.command import command
from holdfast.redis.keys import QueueKeys
from holdfast.redis.scripts import load
from holdfast.runs.message import decode_message, encode_value
from holdfast.runs.record import read_run
from holdfast.runs.run import Run, status_phrase
from holdfast.runs.sending import Sending
from holdfast.runs.submit import Submitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import QueueSettings, SenderSettings
    from holdfast.redis.client import Redis
    from holdfast.reliability.breaker import Breaker
    from holdfast.runs.run import Status, Submission, Ticket
    from holdfast.telemetry.metrics import Metrics

_CANCEL = load(__package__, "cancel")
_JOIN = load(__package__, "join")
_REPLAY = load(__package__, "replay")
_ACTIVITY = load(__package__, "activity")
_DEPTH = load(__package__, "depths")
_GATE = load(__package__, "gate")
_RESUME = load(__package__, "resume")
_ROWS = load(__package__, "rows")

_LIST_PAGE = 200
_LIST_LOOKS = 10
_LONGEST_CURSOR = 24
_ROW = (
    *(b"status", b"agent", b"thread", b"lane", b"entry", b"attempt", b"fence", b"owner", b"submitted_at"),
    *(b"started_at", b"finished_at", b"due_at", b"cancel", b"error", b"tenant"),
    *(b"parked", b"parent"),
)
"""The fields of rows.lua, in its order."""


class Gate(msgspec.Struct, frozen=True):
    """Whether a queue takes runs and gives them out: open, draining (gives only) or paused (neither)."""

    mode: str = "open"
    reason: str = ""
    since: float = 0.0


class Depth(msgspec.Struct, frozen=True):
    """How much work a queue holds; ``depth`` = undelivered + pending + due."""

    undelivered: int
    pending: int
    delayed: int
    due: int
    dead: int
    oldest_seconds: float
    consumers: int
    """Of the group: the living, and ghosts."""
    paused: bool = False

    @property
    def depth(self) -> int:
        """Everything that a worker should be doing now."""
        return self.undelivered + self.pending + self.due


class Activity(msgspec.Struct, frozen=True):
    """What gauges show of a queue beside its depth."""

    length: int
    """Entries in its lanes: more than its depth where finished ones are kept."""
    consumer_idle_seconds: float
    """Since Redis saw the idlest consumer; no sign of death, as a read that finds nothing need not count."""
    longest_running_seconds: float
    """Since the longest running attempt began."""


class Page(msgspec.Struct, frozen=True):
    """Runs, newest first, and where to go on; an empty cursor means that was all."""

    runs: list[Run]
    cursor: str = ""


class Partition:
    """One partition of a queue on one Redis; a queue that is not partitioned is its only one."""

    def __init__(
        self,
        settings: QueueSettings,
        redis: Redis,
        *,
        prefix: str = "",
        sender: SenderSettings | None = None,
        breaker: Breaker | None = None,
        metrics: Metrics | None = None,
        outside: bool = False,
        private_receivers: bool = True,
    ) -> None:
        self.settings = settings
        # What happens in a mailbox is between a resident and those who write to it.
        self.outside = outside and not settings.private
        self.keys = QueueKeys.of(settings.stream, prefix=prefix, deadletter=settings.deadletter)
        self.redis = redis
        self.sending = Sending(settings.name, sender, breaker)
        self._submitter = Submitter(
            *(settings, self.keys, redis),
            sending=self.sending,
            metrics=metrics,
            outside=self.outside,
            private_receivers=private_receivers,
        )

    @property
    def name(self) -> str:
        """The queue's name, as it is configured."""
        return self.settings.name

    async def ensure(self, consumer: str = "") -> None:
        """Create the lanes and their group, and a consumer in it, where they are missing."""
        await _JOIN(self.redis, list(self.keys.lanes), [self.settings.group, consumer])

    async def submit(self, submission: Submission) -> Ticket:
        """Queue one run; concurrent calls travel together."""
        return await self._submitter.submit(submission)

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Ticket | Exception]:
        """Queue many runs in as few calls as possible; a refused one stands in the list as its error."""
        return await self._submitter.submit_many(submissions)

    async def aclose(self) -> None:
        """Wait until what was submitted has been sent."""
        await self._submitter.aclose()

    # -- looking

    async def get(self, run_id: str) -> Run:
        """Read one run."""
        fields: dict[bytes, bytes] = await command(self.redis, "HGETALL", self.keys.run(run_id))
        if (run := read_run(run_id, self.name, fields)) is not None:
            return run
        where = f"run {run_id!r} in queue {self.name!r}"
        if b"status" in fields:
            raise NotFound(f"{where} is damaged: somebody has overwritten the status in its record")
        kept = f"ended runs are kept {self.settings.retention_seconds:g} s"
        raise NotFound(f"no {where} ({kept})")

    async def list(
        self, *, status: Status | None = None, agent: str = "", limit: int = 50, cursor: str = ""
    ) -> Page:
        """Read runs without input and result, newest first; ``cursor`` is where the last page ended.

        One call looks at a bounded number of runs, so a page may be short, or empty, and yet not the last.
        """
        top, skip = _read_cursor(cursor)
        runs: list[Run] = []
        for _ in range(_LIST_LOOKS):
            newest_first = (
                "ZRANGE",
                self.keys.runs,
                top,
                "-inf",
                "BYSCORE",
                "REV",
                "LIMIT",
                skip,
                _LIST_PAGE,
            )
            found: list[bytes] = await command(self.redis, *newest_first, "WITHSCORES")
            ids = [raw.decode(errors="replace") for raw in found[::2]]
            for score, row in zip(found[1::2], await self._rows(ids), strict=True):
                at = f"{float(score):.0f}"
                top, skip = at, skip + 1 if at == top else 1
                if row is not None and status in {None, row.status} and agent in {"", row.agent}:
                    runs.append(row)
                if len(runs) == limit:
                    return Page(runs, f"{top}.{skip}")
            if len(ids) < _LIST_PAGE:
                return Page(runs)
        return Page(runs, f"{top}.{skip}")

    async def _rows(self, ids: Sequence[str]) -> Sequence[Run | None]:
        if not ids:
            return ()
        rows: list[list[bytes | None]] = await _ROWS(self.redis, [self.keys.run_prefix], ids)
        # One that somebody has overwritten by something else has no fields at all.
        fields = [
            {name: value for name, value in zip(_ROW, row, strict=False) if value is not None} for row in rows
        ]
        return [read_run(run_id, self.name, row) for run_id, row in zip(ids, fields, strict=True)]

    async def depth(self) -> Depth:
        """How much work there is, in one call."""
        return (await partition_depths(self.redis, (self,)))[0]

    async def has(self, run_id: str) -> bool:
        """Whether a run is here."""
        return bool(await command(self.redis, "EXISTS", self.keys.run(run_id)))

    async def blank(self) -> bool:
        """Whether nothing at all is here any more: no run, no dead letter, no news for anybody."""
        keys = self.keys
        counts = [
            await command(self.redis, *counting)
            for counting in (
                *(("XLEN", stream) for stream in (*keys.lanes, keys.deadletter, keys.undelivered)),
                *(("ZCARD", zset) for zset in (keys.delayed, keys.runs, keys.ended, keys.outbox)),
                ("LLEN", keys.unarchived),
            )
        ]
        return not any(counts)

    # -- changing

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> str:
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        keys = self.keys
        args = [run_id, reason, int(self.settings.retention_seconds * 1000), keys.control]
        places = [keys.returned, keys.delayed, keys.ended, keys.limits, keys.run_prefix, keys.unarchived]
        word = (await _CANCEL(self.redis, places, args)).decode()
        if word == "missing":
            raise NotFound(f"no run {run_id!r} in queue {self.name!r}")
        if word not in {"cancelled", "requested"}:
            raise Conflict(f"run {run_id} has already ended: {word}")
        return word

    async def replay(self, run_id: str, *, letter: str = "") -> None:
        """Queue a failed, timed out or cancelled run again, from its first attempt."""
        keys = self.keys
        places = [
            keys.stream,
            keys.deadletter,
            keys.run(run_id),
            keys.runs,
            keys.ended,
            keys.outbox,
            keys.letters,
        ]
        default_agent = self.settings.default_among(())  # which one an app has, its workers say
        args = [run_id, letter, int(self.outside), default_agent]
        word = (await _REPLAY(self.redis, places, args)).decode()
        if word == "missing":
            raise NotFound(f"no run or dead letter {run_id!r} in queue {self.name!r}")
        if word != "replayed":
            raise Conflict(
                f"run {run_id} {status_phrase(word)}: only failed, timed out and cancelled runs can be "
                "queued again"
            )

    async def resume_run(self, run_id: str, answer: Any = None) -> None:
        """Give an interrupted run its answer; it goes on at once."""
        keys = self.keys
        value = encode_value(answer, f"the answer to run {run_id}")
        if len(value) > self.settings.max_payload_bytes:
            raise PayloadTooLarge(
                f"the answer to run {run_id} has {len(value)} bytes, more than max_payload_bytes = "
                f"{self.settings.max_payload_bytes}"
            )
        word = (await _RESUME(self.redis, [keys.returned, keys.run(run_id)], [run_id, value])).decode()
        if word == "missing":
            raise NotFound(f"no run {run_id!r} in queue {self.name!r}")
        if word != "resumed":
            raise Conflict(f"run {run_id} {status_phrase(word)}: only an interrupted run takes an answer")

    async def answer(self, run_id: str, index: int) -> bytes | None:
        """Return the answer that a run was given to its n-th question, as JSON."""
        record, fields = self.keys.run(run_id), (f"resume:{index}", f"envelope:{index}")
        answer, envelope = await command(self.redis, "HMGET", record, *fields)
        return encode_value(decode_message(envelope).input, "an answer") if envelope else answer

    async def gate(self) -> Gate:
        """Whether the queue is open, draining or paused."""
        fields: dict[bytes, bytes] = await command(self.redis, "HGETALL", self.keys.gate)
        if not fields:
            return Gate()
        return Gate(
            fields.get(b"mode", b"paused").decode(),
            fields.get(b"reason", b"").decode(),
            float(fields.get(b"since", 0)) / 1000,
        )

    async def pause(self, reason: str = "") -> None:
        """Take no new runs and start none; what runs goes on."""
        await self._set_gate("paused", reason)

    async def drain(self, reason: str = "") -> None:
        """Take no new runs, but work off those that are there."""
        await self._set_gate("draining", reason)

    async def resume(self) -> None:
        """Open the queue again."""
        await self._set_gate("open", "")

    async def _set_gate(self, mode: str, reason: str) -> None:
        await _GATE(self.redis, [self.keys.gate], [mode, reason, self.keys.control])


async def partition_depths(
    redis: Redis, partitions: Sequence[Partition], *, consumers: bool = True
) -> list[Depth]:
    """Read how much work each of these holds, in one round trip (in a cluster: one to each node).

    Without ``consumers`` those are not counted, which for an idle queue would be most of the cost.
    """
    calls = [
        (
            (*each.keys.lanes, each.keys.delayed, each.keys.deadletter, each.keys.gate),
            (each.settings.group, int(each.settings.delete_after_ack), int(consumers)),
        )
        for each in partitions
    ]
    return [_depth(reply) for reply in await _DEPTH.many(redis, calls)]


async def partition_activities(redis: Redis, partitions: Sequence[Partition]) -> list[Activity]:
    """Read what goes on in each of these, in one round trip (in a cluster: one to each node)."""
    calls = [((*each.keys.lanes, each.keys.run_prefix), (each.settings.group,)) for each in partitions]
    replies: list[list[int]] = await _ACTIVITY.many(redis, calls)
    return [Activity(length, idle / 1000, max(longest, 0) / 1000) for length, idle, longest in replies]


def _depth(reply: Sequence[int]) -> Depth:
    undelivered, pending, delayed, due, dead, oldest_ms, consumers, paused = reply
    return Depth(undelivered, pending, delayed, due, dead, oldest_ms / 1000, consumers, bool(paused))


def _read_cursor(cursor: str) -> tuple[str, int]:
    if not cursor:
        return "+inf", 0
    top, _, skip = cursor.partition(".")
    if len(cursor) > _LONGEST_CURSOR or not (cursor.isascii() and top.isdigit() and skip.isdigit()):
        raise InputError(f"cursor {cursor!r} was not given out by a previous page")
    return top, int(skip)
