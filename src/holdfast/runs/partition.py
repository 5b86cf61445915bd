"""One partition of a queue: all of its runs are in one cluster slot, so that one script can access them all.

Every change is one script call that is idempotent: it is safe to repeat after a lost reply.
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
_LIST_READS = 10
_LONGEST_CURSOR = 24
_ROW = (
    *(b"status", b"agent", b"thread", b"lane", b"entry", b"attempt", b"fence", b"owner", b"submitted_at"),
    *(b"started_at", b"finished_at", b"due_at", b"cancel", b"error", b"tenant"),
    *(b"parked", b"parent"),
)
"""The fields of rows.lua, in its order."""


class Gate(msgspec.Struct, frozen=True):
    """Whether a queue accepts and starts runs: open (both), draining (starts only) or paused (neither)."""

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
    """Consumers of the group, including ghosts."""
    paused: bool = False

    @property
    def depth(self) -> int:
        """The runs that workers should perform now."""
        return self.undelivered + self.pending + self.due


class Activity(msgspec.Struct, frozen=True):
    """The values of a queue's gauges beside its depth."""

    length: int
    """Entries in its lanes: more than its depth where finished ones are kept."""
    consumer_idle_seconds: float
    """Of the most idle consumer; it may be alive, as Redis need not count a read that returns nothing."""
    longest_running_seconds: float
    """Of the longest running attempt, since its start."""


class RunPage(msgspec.Struct, frozen=True):
    """One page of runs, newest first, and the cursor of the next page; empty after the last page."""

    runs: list[Run]
    cursor: str = ""


class Partition:
    """One partition of a queue on one Redis; a queue that is not partitioned has one."""

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
        # Events of mailboxes are not delivered outside: they are for the resident and its senders only.
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

    # -- reading

    async def get(self, run_id: str) -> Run:
        """Read one run."""
        fields: dict[bytes, bytes] = await command(self.redis, "HGETALL", self.keys.run(run_id))
        if (run := read_run(run_id, self.name, fields)) is not None:
            return run
        where = f"run {run_id!r} in queue {self.name!r}"
        if b"status" in fields:
            raise NotFound(f"{where} is damaged: the status in its record was overwritten")
        kept = f"ended runs are kept {self.settings.retention_seconds:g} s"
        raise NotFound(f"no {where} ({kept})")

    async def list(
        self, *, status: Status | None = None, agent: str = "", limit: int = 50, cursor: str = ""
    ) -> RunPage:
        """Read runs without input and result, newest first; ``cursor`` is the one of the page before.

        One call reads a bounded number of runs, so a page may be short, or empty, and yet not be the last.
        """
        top, skip = _read_cursor(cursor)
        runs: list[Run] = []
        for _ in range(_LIST_READS):
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
                    return RunPage(runs, f"{top}.{skip}")
            if len(ids) < _LIST_PAGE:
                return RunPage(runs)
        return RunPage(runs, f"{top}.{skip}")

    async def _rows(self, ids: Sequence[str]) -> Sequence[Run | None]:
        if not ids:
            return ()
        rows: list[list[bytes | None]] = await _ROWS(self.redis, [self.keys.run_prefix], ids)
        # A record that was overwritten by another type has no fields at all.
        fields = [
            {name: value for name, value in zip(_ROW, row, strict=False) if value is not None} for row in rows
        ]
        return [read_run(run_id, self.name, row) for run_id, row in zip(ids, fields, strict=True)]

    async def depth(self) -> Depth:
        """Read how much work there is, in one call."""
        return (await partition_depths(self.redis, (self,)))[0]

    async def has(self, run_id: str) -> bool:
        """Whether this partition has a run."""
        return bool(await command(self.redis, "EXISTS", self.keys.run(run_id)))

    async def blank(self) -> bool:
        """Whether the partition is empty: no run, no dead letter, no event to deliver."""
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
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker has to stop it."""
        keys = self.keys
        args = [run_id, reason, int(self.settings.retention_seconds * 1000), keys.control]
        used = [keys.returned, keys.delayed, keys.ended, keys.limits, keys.run_prefix, keys.unarchived]
        word = (await _CANCEL(self.redis, used, args)).decode()
        if word == "missing":
            raise NotFound(f"no run {run_id!r} in queue {self.name!r}")
        if word not in {"cancelled", "requested"}:
            raise Conflict(f"run {run_id} has already ended: {word}")
        return word

    async def replay(self, run_id: str, *, letter: str = "") -> None:
        """Queue a failed, timed out or cancelled run again, from its first attempt."""
        keys = self.keys
        used = [
            keys.stream,
            keys.deadletter,
            keys.run(run_id),
            keys.runs,
            keys.ended,
            keys.outbox,
            keys.letters,
        ]
        default_agent = self.settings.default_among(())  # the agents of an app are known to its workers only
        args = [run_id, letter, int(self.outside), default_agent]
        word = (await _REPLAY(self.redis, used, args)).decode()
        if word == "missing":
            raise NotFound(f"no run or dead letter {run_id!r} in queue {self.name!r}")
        if word != "replayed":
            raise Conflict(
                f"run {run_id} {status_phrase(word)}: only failed, timed out and cancelled runs can be "
                "queued again"
            )

    async def resume_run(self, run_id: str, answer: Any = None) -> None:
        """Store the answer of an interrupted run, and queue the run at once."""
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
        """Return the answer to a run's n-th question, as JSON; None without one."""
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
        """Accept no new runs and start none; running ones continue."""
        await self._set_gate("paused", reason)

    async def drain(self, reason: str = "") -> None:
        """Accept no new runs, but start those that wait."""
        await self._set_gate("draining", reason)

    async def resume(self) -> None:
        """Open the queue again."""
        await self._set_gate("open", "")

    async def _set_gate(self, mode: str, reason: str) -> None:
        await _GATE(self.redis, [self.keys.gate], [mode, reason, self.keys.control])


async def partition_depths(
    redis: Redis, partitions: Sequence[Partition], *, consumers: bool = True
) -> list[Depth]:
    """Read the depths of partitions in one round trip (in a cluster: one to each node).

    Without ``consumers`` these are not counted; counting them is most of the cost for an idle queue.
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
    """Read the activities of partitions in one round trip (in a cluster: one to each node)."""
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
