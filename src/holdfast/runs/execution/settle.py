"""The settler writes the settlements of attempts, each once and under its fence, in batches.

A settlement is kept and sent again until Redis has confirmed it: while Redis is unavailable, no finished run
is lost and performed again.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.redis.batcher import fitting
from holdfast.redis.client import DISCONNECTS, REFUSALS, TROUBLE, takes_no_writes
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.reliability.backoff import backoff_seconds
from holdfast.runs.execution.claim import RunLease
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.run import Status
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.leases.streams import StreamLeases
    from holdfast.runs.partition import Partition
    from holdfast.telemetry.metrics import Metrics

_SETTLE = load("holdfast.runs", "settle")
_BATCH = 200
_RETRY_FIRST_SECONDS = 0.05
_RETRY_MOST_SECONDS = 1.0

_NOT_SETTLED = "run not settled, its record may be damaged"

_log = get_logger(__name__)


class SettleReply(enum.StrEnum):
    """The reply to a settlement; a retry of a run that was cancelled meanwhile ends as cancelled."""

    SETTLED = "settled"
    CANCELLED = "cancelled"
    ALREADY = "already"
    STALE = "stale"


OnSettled: TypeAlias = Callable[[Settlement, SettleReply], None]
_Waiting: TypeAlias = tuple[Settlement, OnSettled | None]


class Settler:
    """Sends the settlements of one partition; ``add`` never waits, ``run`` sends."""

    def __init__(self, queue: Partition, leases: StreamLeases, owner: str, metrics: Metrics) -> None:
        keys, settings = queue.keys, queue.settings
        self._queue = queue
        self._leases = leases
        self._keys: list[Any] = [
            *keys.lanes,
            keys.delayed,
            keys.deadletter,
            keys.run_prefix,
            keys.ended,
            keys.limits,
            keys.unarchived,
        ]
        self._head: list[Any] = [
            settings.group,
            owner,
            int(settings.delete_after_ack),
            int(settings.retention_seconds * 1000),
        ]
        self._metrics = metrics
        self._outages = redis_outages(
            "results of runs", "they are kept and sent again until Redis has answered"
        )
        self._batch_size = metrics.settle_batch_size.labels(queue.name)
        self._events_appended = metrics.events_appended.labels(queue.name)
        self.silent_since = math.inf
        """When the batch was sent that Redis has not answered yet."""
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, settlement: Settlement, on_settled: OnSettled | None = None) -> None:
        """Send a settlement with the next batch, and call ``on_settled`` when Redis has answered."""
        self._waiting.append((settlement, on_settled))
        self._idle.clear()
        self._wake.set()

    async def flushed(self) -> None:
        """Wait until Redis has answered every settlement."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                size = fitting(self._waiting, _bytes_of, most=_BATCH)
                batch, self._waiting = self._waiting[:size], self._waiting[size:]
                await self._send([each for each in batch if each[0].status is not None], self._settle)
                await self._send([each for each in batch if each[0].status is None], self._hand_back)
            self._idle.set()

    async def _send(self, batch: list[_Waiting], call: Callable[[list[Settlement]], Any]) -> None:
        if not batch:
            return
        self.silent_since = time.monotonic()
        verdicts = await self._until_answered([settlement for settlement, _ in batch], call)
        self.silent_since = math.inf
        self._events_appended.inc(sum(verdict is not SettleReply.STALE for verdict in verdicts))
        for (settlement, on_settled), verdict in zip(batch, verdicts, strict=True):
            if verdict is SettleReply.STALE:
                self._metrics.stale_settles_refused.labels(self._queue.name).inc()
            if on_settled is not None:
                on_settled(settlement, verdict)

    async def _until_answered(
        self, batch: list[Settlement], call: Callable[[list[Settlement]], Any]
    ) -> Sequence[SettleReply]:
        for failures in itertools.count(1):
            try:
                with self._outages:
                    return await call(batch)
            except TROUBLE as exc:  # guard: settle-outage-retried
                if (
                    isinstance(exc, REFUSALS)
                    and not isinstance(exc, DISCONNECTS)
                    and not takes_no_writes(exc)
                ):
                    return await self._one_by_one(batch, call, exc)
            await asyncio.sleep(backoff_seconds(failures, _RETRY_FIRST_SECONDS, _RETRY_MOST_SECONDS))
        raise AssertionError("a call returns or is made again")

    async def _one_by_one(
        self, batch: list[Settlement], call: Callable[[list[Settlement]], Any], exc: Exception
    ) -> list[SettleReply]:
        """Send each settlement of a refused batch alone: a damaged record must not block the others."""
        if len(batch) == 1:
            _log.error(_NOT_SETTLED, run_id=batch[0].lease.key, error=str(exc))
            return [SettleReply.STALE]
        _log.error(
            "settlements refused, a key of the queue may be damaged; each run is settled alone",
            queue=self._queue.name,
            runs=len(batch),
            error=str(exc),
        )
        return [(await self._until_answered([settlement], call))[0] for settlement in batch]

    async def _settle(self, batch: list[Settlement]) -> Sequence[SettleReply]:
        args = self._head.copy()
        for common, group in itertools.groupby(batch, _common_part):
            runs = list(group)
            args += (len(runs), *common)
            for s in runs:
                entry = s.lease.entry if isinstance(s.lease, RunLease) else b""
                args += (s.lease.key, entry, s.value, s.data) if s.data else (s.lease.key, entry, s.value)
        self._batch_size.observe(len(batch))
        exceptions: list[Any] = await _SETTLE(self._queue.redis, self._keys, args)
        verdicts = [SettleReply.SETTLED] * len(batch)
        for at in range(0, len(exceptions), 2):
            number: int = exceptions[at]
            verdicts[number - 1] = self._verdict(batch[number - 1], exceptions[at + 1])
        return verdicts

    def _verdict(self, settlement: Settlement, word: bytes) -> SettleReply:
        if word == b"damaged":
            _log.error(_NOT_SETTLED, run_id=settlement.lease.key)
            return SettleReply.STALE
        return _VERDICTS[word]

    async def _hand_back(self, batch: list[Settlement]) -> Sequence[SettleReply]:
        released = await self._leases.release(self._queue.redis, [s.lease for s in batch])
        self._metrics.runs_handed_back.labels(self._queue.name).inc(sum(released))
        return [SettleReply.SETTLED if ok else SettleReply.STALE for ok in released]


def _bytes_of(waiting: _Waiting) -> int:
    """Return how many bytes Redis writes for a settlement; its event repeats a value without data."""
    s, _ = waiting
    return len(s.value) + len(s.data or s.value)


def _common_part(s: Settlement) -> tuple[Any, ...]:
    """Return the values that are sent once for consecutive settlements with the same ones."""
    extra = s.delay_ms if s.status is Status.DELAYED else s.reason
    lane = s.lease.lane if isinstance(s.lease, RunLease) else 0
    return s.status, s.field, extra, lane, s.lease.fence, int(bool(s.data))


_VERDICTS = {verdict.value.encode(): verdict for verdict in SettleReply}
