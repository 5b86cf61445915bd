"""The events that running agents emit: appended under the fence of their attempt, each once."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from holdfast.errors import InputError, LeaseLost
from holdfast.redis.batcher import Batcher
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.scripts import load
from holdfast.runs.message import encode_value
from holdfast.runs.run import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.runs.execution.claim import Claimed
    from holdfast.runs.partition import Partition
    from holdfast.telemetry.metrics import Metrics

_EMIT = load("holdfast.runs", "emit")
_RETRY_SECONDS = 0.2
_PER_ATTEMPT = 1_000_000_000
_LONGEST_TYPE = 200
_SURROGATE = re.compile("[\ud800-\udfff]")
RESERVED = frozenset(
    {
        *(status.value for status in Status),
        "submitted",
        "adopted",
        "started",
        "retrying",
        "handed_back",
        "reclaimed",
    }
    | {"replayed", "restored", "resumed", "parked", "unparked"}
)
"""Event types of the system: from an agent they would mislead the clients that follow its run."""

_Row = tuple[str, int, int, str, bytes]


class Emitter:
    """Appends the events of one partition's running agents; concurrent events are sent in one batch."""

    def __init__(self, queue: Partition, owner: str, metrics: Metrics) -> None:
        self._queue = queue
        self._owner = owner
        self._appended = metrics.events_appended.labels(queue.name)
        self._rows: Batcher[_Row, None] = Batcher(self._send)

    def for_run(self, run: Claimed) -> Callable[[str, Any], Awaitable[None]]:
        """Return the ``emit`` of one attempt, which numbers its events."""
        # Numbers grow with the fence: else the first events of a new attempt would be dropped as duplicates.
        number = run.fence * _PER_ATTEMPT

        async def emit(kind: str, data: Any) -> None:
            nonlocal number
            row = self._encode(run, kind, data)
            number += 1
            await self._rows.add((run.run_id, run.fence, number, kind, row))

        return emit

    def _encode(self, run: Claimed, kind: str, data: Any) -> bytes:
        if not _is_type(kind):
            raise InputError(f"the type of an event must be text of 1 to 200 characters, got {kind!r:.60}")
        if kind in RESERVED:
            raise InputError(
                f"an agent can't emit {kind!r}: this event type is reserved for the system; choose another"
            )
        row = encode_value(data, f"event {kind!r} of agent {run.agent!r}")
        if len(row) > self._queue.settings.max_payload_bytes:
            raise InputError(
                f"event {kind!r} of agent {run.agent!r} has {len(row)} bytes, more than "
                f"max_payload_bytes = {self._queue.settings.max_payload_bytes}"
            )
        return row

    async def _send(self, rows: list[_Row]) -> list[Exception | None]:
        args: list[Any] = [self._owner]
        for row in rows:
            args += row
        replies = await self._until_answered(args)
        self._appended.inc(sum(reply != b"stale" for reply in replies))
        return [
            LeaseLost(f"run {row[0]} has a newer fence than {row[1]}: its events are refused")
            if reply == b"stale"
            else None
            for row, reply in zip(rows, replies, strict=True)
        ]

    async def _until_answered(self, args: list[Any]) -> list[bytes]:
        # A second call is safe: the script drops numbers that it has. In an outage, the lost lease ends this.
        while True:
            try:
                return await _EMIT(self._queue.redis, [self._queue.keys.run_prefix], args)
            except DISCONNECTS:
                await asyncio.sleep(_RETRY_SECONDS)

    async def aclose(self) -> None:
        """Wait until every event has been sent."""
        await self._rows.aclose()


def _is_type(kind: object) -> bool:
    """Whether an event type is text that can be encoded; half of a surrogate pair can't be."""
    return isinstance(kind, str) and 0 < len(kind) <= _LONGEST_TYPE and not _SURROGATE.search(kind)
