"""The archive: ended runs are copied to the store in batches, and read there after Redis has removed them.

A run leaves the list of unarchived runs only after the store has it; storing a run twice changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.redis.client import DISCONNECTS, REFUSALS, TROUBLE
from holdfast.redis.command import command
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.runs.record import Record
from holdfast.runs.run import ENDED
from holdfast.store.archive import ArchivedRun
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.runs.partition import Partition
    from holdfast.store.lazy import LazyStore
    from holdfast.telemetry.metrics import Metrics

_FILED = load(__package__, "filed")
_BATCH = 200
_AT_ONCE = 20
_BATCHES = 50

_log = get_logger(__name__)


class Filed(msgspec.Struct, frozen=True):
    """The number of runs that one pass archived; ``whole`` is False if the pass stopped at its limit."""

    archived: int
    whole: bool = True


class Archive:
    """Archives the ended runs of one queue."""

    def __init__(self, queue: Partition, store: LazyStore, metrics: Metrics) -> None:
        self._queue = queue
        self._store = store
        self._archived = metrics.runs_archived.labels(queue.name)

    async def run_once(self, *, dry_run: bool = False) -> Filed:
        """Archive the runs that have ended since the last pass."""
        redis, waiting = self._queue.redis, self._queue.keys.unarchived
        if dry_run:
            return Filed(await self._count())
        archived, notes = 0, list[bytes]()
        for _ in range(_BATCHES):
            notes = notes or await self._notes(0)
            if not notes:
                return Filed(archived)
            batch, ids = _first_of(notes)
            rows = await self._read(ids)
            await (await self._store.get()).archive(rows)
            filed = await _FILED(redis, [waiting], batch)
            # If another process has archived this batch meanwhile, the list has changed and is read again.
            notes = notes[len(batch) :] if filed else []
            self._archived.inc(len(rows))
            archived += len(rows)
        return Filed(archived, whole=False)

    async def needed(self) -> bool:
        """Whether runs have ended since the last pass."""
        return bool(await command(self._queue.redis, "LLEN", self._queue.keys.unarchived))

    async def _notes(self, start: int) -> list[bytes]:
        """Read a page of the list; a note is ``finished_at id id …`` for runs settled in one call."""
        waiting = self._queue.keys.unarchived
        return await command(self._queue.redis, "LRANGE", waiting, start, start + _BATCH - 1)

    async def _count(self) -> int:
        count = start = 0
        while notes := await self._notes(start):
            count += sum(note.count(b" ") for note in notes)
            start += len(notes)
        return count

    async def _read(self, ids: list[str]) -> list[ArchivedRun]:
        """Read the runs; one that was replayed meanwhile is left out, and is listed again when it ends."""
        rows: list[ArchivedRun] = []
        for at in range(0, len(ids), _AT_ONCE):
            page = ids[at : at + _AT_ONCE]
            read = await asyncio.gather(*(self._read_one(run_id) for run_id in page))
            rows += [row for row in read if row is not None]
        return rows

    async def _read_one(self, run_id: str) -> ArchivedRun | None:
        """Read a run; None if it has not ended, or its record is damaged: it must not block the others."""
        try:
            fields = await command(self._queue.redis, "HGETALL", self._queue.keys.run(run_id))
            ended = Record(fields).status in ENDED
            return archived_run(run_id, self._queue.name, fields) if ended else None
        except REFUSALS as exc:
            _log.error("run not archived, its record may be damaged", run_id=run_id, error=str(exc))
            return None


class Filing:
    """Archives the ended runs of a queue at an interval, where no janitor does it."""

    def __init__(self, archive: Archive, *, every_seconds: float) -> None:
        self._archive = archive
        self._outages = redis_outages("archiving of ended runs")
        self._every = every_seconds

    async def run(self) -> None:
        """Archive until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            try:
                with self._outages:
                    await self._archive.run_once()
            except StoreUnavailable:
                pass  # the store reports it
            except TROUBLE as exc:
                if not isinstance(exc, DISCONNECTS):
                    _log.error("ended runs not archived, a key of the queue may be damaged", error=str(exc))


def _first_of(notes: list[bytes]) -> tuple[list[bytes], list[str]]:
    """Return the first notes of the list, up to one batch of runs, and the ids of those runs."""
    batch: list[bytes] = []
    ids: list[str] = []
    for note in notes:
        batch.append(note)
        ids += note.decode().split()[1:]
        if len(ids) >= _BATCH:
            break
    return batch, ids


def archived_run(run_id: str, queue: str, fields: Mapping[bytes, bytes]) -> ArchivedRun:
    """Return the row that the store keeps for a run, made from the run's hash."""
    record = Record(fields)
    envelope = record.envelope
    return ArchivedRun(
        id=run_id,
        queue=queue,
        agent=record.text(b"agent"),
        thread_id=record.thread_id,
        tenant=record.tenant,
        status=record.text(b"status"),
        attempt=record.attempt,
        fence=record.number(b"fence"),
        submitted_at=record.seconds(b"submitted_at"),
        started_at=record.seconds(b"started_at"),
        finished_at=record.seconds(b"finished_at"),
        input=msgspec.json.encode(envelope.input),
        result=record.raw(b"result"),
        error=record.raw(b"error"),
        metadata=msgspec.json.encode(envelope.metadata) if envelope.metadata else b"",
    )
