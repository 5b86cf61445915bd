"""Submitting: a run is accepted once, however often the same submission is sent.

That makes the sender's retries safe: after a lost reply, the run id finds the run of the first try.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.agents.spec import LONGEST_TIMEOUT_SECONDS
from holdfast.errors import Conflict, InputError, PayloadTooLarge, QueueFull, QueuePaused, RedisUnavailable
from holdfast.redis.batcher import Batcher, fitting
from holdfast.redis.keys import LANES
from holdfast.redis.scripts import load
from holdfast.runs.message import encode_message
from holdfast.runs.receivers import check_receivers, require_public
from holdfast.runs.routing import stamped
from holdfast.runs.run import Status, Submission, Ticket, checked_id
from holdfast.runs.scope import scoped
from holdfast.telemetry.logs import current_run_id
from holdfast.telemetry.traces import inject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import QueueSettings
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys
    from holdfast.runs.sending import Sending
    from holdfast.telemetry.metrics import Metrics

_SUBMIT = load(__package__, "submit")
_BATCH = 200
_LONGEST_DELAY_SECONDS = 10 * 365 * 86400
_FULL_RETRY_SECONDS = 5.0
_PAUSED_RETRY_SECONDS = 30.0
_LONGEST_REASON = 1000

_REASONS: dict[type[Exception], str] = {
    QueueFull: "full",
    QueuePaused: "paused",
    PayloadTooLarge: "too_large",
    Conflict: "busy",
}
_AGENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_LANE_NUMBERS = {name: number for number, name in enumerate(LANES, 1)}


_Item: TypeAlias = tuple[Submission, dict[str, str], str]
"""A submission with the trace and the parent run of its caller."""


_Row: TypeAlias = tuple[str, int, int, str, str, str, bytes, str, str, str, str, str]
"""The script's arguments for one run."""
_MESSAGE = 6
"""The index of the message in a row."""


class _Written(NamedTuple):
    """A batch as arguments of the script, and the errors of the submissions that have none."""

    batch: list[Submission]
    rows: list[_Row]
    refused: dict[int, Exception]


class Submitter:
    """Sends submissions to one partition of a queue."""

    def __init__(
        self,
        settings: QueueSettings,
        keys: QueueKeys,
        redis: Redis,
        *,
        sending: Sending,
        metrics: Metrics | None,
        outside: bool,
        private_receivers: bool = True,
    ) -> None:
        self._settings = settings
        self._redis = redis
        self._sending = sending
        self._metrics = metrics
        self._keys = [
            *keys.lanes,
            keys.delayed,
            keys.gate,
            keys.runs,
            keys.run_prefix,
            keys.idempotency_prefix,
            keys.limits,
            keys.ended,
            keys.outbox,
            keys.unarchived,
        ]
        self._head: list[Any] = [
            settings.group,
            int(settings.delete_after_ack),
            settings.max_depth,
            int(settings.idempotency_ttl_seconds * 1000),  # guard: idempotency-key-ttl
            int(settings.retention_seconds * 1000),
            keys.control,
        ]
        self._outside = outside
        self._private_receivers = private_receivers
        self._new_id = partial(_stamped_id, settings.partition) if settings.partitions > 1 else uuid7
        self._batches: Batcher[_Item, Ticket] = Batcher(self._send_batch, limit=_BATCH)

    async def submit(self, submission: Submission) -> Ticket:
        """Queue one run; concurrent calls are sent in one batch."""
        # The trace is read here: the batch is sent by a task in the context of its first caller.
        # guard: submission-own-trace
        return await self._batches.add(
            (submission, inject() or submission.trace, current_run_id() or submission.parent)
        )

    async def submit_many(self, submissions: Sequence[Submission]) -> list[Ticket | Exception]:
        """Queue many runs in as few calls as possible; the list has an error for each refused run.

        Raises RedisUnavailable only if Redis answered nothing: else the caller must get the accepted runs.
        """
        trace, parent = inject(), current_run_id()
        batches = [submissions[start : start + _BATCH] for start in range(0, len(submissions), _BATCH)]
        tickets: list[Ticket | Exception] = []
        sending: asyncio.Task[list[Ticket | Exception]] | None = None
        for batch in batches:
            # While Redis works on one batch the next is written; they are sent one after the other, in order.
            written = self._write([(each, trace or each.trace, parent or each.parent) for each in batch])
            if sending is not None:
                tickets += await _answered(sending, tickets, len(submissions))
                if len(tickets) == len(submissions):
                    return tickets
            sending = asyncio.create_task(self._send(written))
            await asyncio.sleep(0)
        if sending is not None:
            tickets += await _answered(sending, tickets, len(submissions))
        return tickets

    async def aclose(self) -> None:
        """Wait until what was submitted has been sent."""
        await self._batches.aclose()

    async def _send_batch(self, batch: Sequence[_Item]) -> list[Ticket | Exception]:
        return await self._send(self._write(batch))

    def _write(self, batch: Sequence[_Item]) -> _Written:
        """Turn submissions into the script's arguments; an invalid one is refused here."""
        rows, refused = list[_Row](), dict[int, Exception]()
        for at, (submission, trace, parent) in enumerate(batch):
            try:
                rows.append(self._row(submission, trace, parent))
            except InputError as exc:
                refused[at] = exc
        return _Written([submission for submission, *_ in batch], rows, refused)

    async def _send(self, written: _Written) -> list[Ticket | Exception]:
        batch, rows, refused = written
        sent = [submission for at, submission in enumerate(batch) if at not in refused]
        replies, tries, lost = await self._call_all(rows)
        pairs = zip(sent, replies, strict=False)
        tickets = iter([self._ticket(submission, reply, resent=tries > 1) for submission, reply in pairs])
        results = [refused.get(at) or next(tickets, lost) for at in range(len(batch))]
        if self._metrics is not None:
            self._count(self._metrics, batch, results)
        return results

    def _count(
        self, metrics: Metrics, batch: Sequence[Submission], results: Sequence[Ticket | Exception]
    ) -> None:
        queue = self._settings.name
        fresh = sum(isinstance(result, Ticket) and result.fresh for result in results)
        if fresh:
            metrics.events_appended.labels(queue).inc(fresh)
        for submission, result in zip(batch, results, strict=True):
            if isinstance(result, RedisUnavailable):
                continue  # the queue counts these, together with those that were never sent
            if isinstance(result, Exception):
                metrics.runs_refused.labels(queue, _REASONS.get(type(result), "invalid")).inc()
            elif result.fresh:
                metrics.runs(queue, submission.agent).submitted()
            else:
                metrics.run_duplicates.labels(queue).inc()

    def _row(self, submission: Submission, trace: dict[str, str], parent: str) -> _Row:
        check_words(submission)
        if not self._private_receivers:
            require_public(submission.webhook, submission.push)
        tenant = submission.tenant
        return (
            submission.run_id or self._new_id(),
            _LANE_NUMBERS[submission.priority.value],
            int(submission.delay_seconds * 1000),
            submission.agent,
            scoped(tenant, submission.thread_id),
            scoped(tenant, submission.idempotency_key),
            encode_message(submission, trace, max_bytes=self._settings.max_payload_bytes),
            submission.multitask.value,
            tenant,
            scoped(tenant, submission.concurrency_key),
            "1" if self._outside or submission.webhook or submission.push else "",
            parent,
        )

    async def _call_all(self, rows: list[_Row]) -> tuple[list[list[bytes]], int, Exception]:
        """Call the script, several times if the messages are large.

        Return the replies, the largest number of tries, and the error if there are fewer replies than rows.
        """
        replies, most = list[list[bytes]](), 0
        while rows:
            size = fitting(rows, lambda row: len(row[_MESSAGE]), most=len(rows))
            page, rows = rows[:size], rows[size:]
            try:
                args = [*self._head, *(part for row in page for part in row)]
                answered, tries = await self._sending(partial(_SUBMIT, self._redis, self._keys, args))
            except RedisUnavailable as exc:
                if not replies:
                    raise
                return replies, most, exc
            replies, most = replies + answered, max(most, tries)
        return replies, most, AssertionError("every row has its reply")

    def _ticket(self, submission: Submission, reply: list[bytes], *, resent: bool) -> Ticket | Exception:
        word, run_id, entry, *status = (part.decode(errors="replace") for part in reply)
        name = self._settings.name
        if word == "exists":
            # After a lost reply, the existing run is that of our own first try.
            fresh = resent and not submission.run_id and not submission.idempotency_key
            return Ticket(run_id, Status(status[0] or "queued"), entry, fresh=fresh)
        if word == "busy":
            message = f"thread {submission.thread_id!r} is busy with run {entry}"
            return Conflict(f"{message}; wait for it, or submit with another multitask than reject")
        if word == "full":
            most = f"its max_depth (STREAM_MAXLEN) is {self._settings.max_depth}"
            message = f"queue {name!r} holds {entry} runs, {most}"
            return QueueFull(f"{message}; add workers, or try again later", retry_after=_FULL_RETRY_SECONDS)
        if word not in {"queued", "delayed"}:  # paused, draining, or an overwritten mode of the gate
            why = f" ({entry[:_LONGEST_REASON]})" if entry else ""
            message = f"queue {name!r} is {word}{why}; `holdfast queues resume {name}` opens it"
            return QueuePaused(message, retry_after=_PAUSED_RETRY_SECONDS)
        return Ticket(run_id, Status(word), entry)


def check_words(submission: Submission) -> None:
    """Raise InputError for an invalid field; the input and metadata are checked when they are encoded."""
    if not _AGENT.fullmatch(submission.agent):
        name = f"{submission.agent[:80]!r}"
        raise InputError(f"agent must be a name of 1 to 200 letters, digits and _ . : / -, got {name}")
    delay, timeout = submission.delay_seconds, submission.timeout_seconds
    if not 0 <= delay <= _LONGEST_DELAY_SECONDS:
        raise InputError(f"delay_seconds must be between 0 and ten years, got {delay}")
    if timeout is not None and not 0 < timeout <= LONGEST_TIMEOUT_SECONDS:
        raise InputError(f"timeout_seconds must be more than 0 and at most a year, got {timeout}")
    for name in ("run_id", "idempotency_key", "tenant", "concurrency_key"):
        if value := getattr(submission, name):
            checked_id(value, name)
    check_receivers(submission.webhook, submission.push)


async def _answered(
    sending: asyncio.Task[list[Ticket | Exception]], before: list[Ticket | Exception], wanted: int
) -> list[Ticket | Exception]:
    """Return the results of a batch; if Redis became unavailable, all remaining ones have its error."""
    try:
        results = await sending
    except RedisUnavailable as exc:
        if not before:
            raise
        results = list[Ticket | Exception]([exc])
    if results and isinstance(lost := results[-1], RedisUnavailable):
        results += [lost] * (wanted - len(before) - len(results))
    return results


def _stamped_id(partition: int) -> str:
    return stamped(uuid7(), partition)


def uuid7() -> str:
    """Return a time-ordered uuid (RFC 9562), so that ids sort in the order of submission."""
    random = int.from_bytes(os.urandom(10), "big")
    stamp = (time.time_ns() // 1_000_000 & 0xFFFFFFFFFFFF) << 80
    version = 0x7 << 76 | (random >> 64 & 0xFFF) << 64
    variant = 0b10 << 62 | random & (1 << 62) - 1
    text = f"{stamp | version | variant:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
