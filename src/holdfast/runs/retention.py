"""Retention: ended runs and acknowledged entries are removed, and runs without an entry are queued again.

Unfinished runs are never removed. A pass is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.redis.command import command
from holdfast.redis.scripts import load
from holdfast.runs.expiry import Expiry
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.runs.partition import Partition
    from holdfast.telemetry.metrics import Metrics

_FORGET = load(__package__, "forget")
_RESTORE = load(__package__, "restore")
_TRIM = load(__package__, "trim")
_FREE = load(__package__, "free")
_LETTERS = load(__package__, "letters")
_PAGE = 200
"""Runs that one script call checks: about 2 ms of Redis if all of them are unfinished."""
_TRIM_PAGE = 1000

_log = get_logger(__name__)


class RetentionPass(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pass, or of a dry run; ``whole`` is False if the pass stopped at its limit."""

    left: int = 0
    """Ended runs that were removed after their retention, with their feeds."""
    forgotten: int = 0
    """Runs that were removed from the index because their record does not exist any more."""
    trimmed: int = 0
    """Acknowledged entries that were removed from the lanes."""
    restored: list[str]
    """Runs that had no entry in any lane, and are queued again."""
    expiring: int = 0
    """Ended runs that had no expiry, and have one now."""
    freed: int = 0
    """Permits of limits whose run does not exist any more: they were given to the next waiting runs."""
    young: int = 0
    """Runs that seem to have no entry, but changed too recently to be certain."""
    whole: bool = True
    dry_run: bool = False


class Retention:
    """Sweeps one queue; an instance continues where its last pass stopped."""

    def __init__(self, queue: Partition, metrics: Metrics, *, ttl_seconds: float, pages: int = 250) -> None:
        keys, settings = queue.keys, queue.settings
        self._queue = queue
        self._metrics = metrics
        self._pages = pages
        self._skip = 0
        self._expiry = Expiry(queue, metrics)
        self._retention_ms = int(settings.retention_seconds * 1000)
        self._restore_keys = [*keys.lanes, keys.delayed, keys.run_prefix, keys.ended, keys.limits]
        self._restore_head: list[Any] = [settings.group, int(ttl_seconds * 1000), self._retention_ms]

    async def run_once(self, *, dry_run: bool = False) -> RetentionPass:
        """Sweep once; ``dry_run`` changes nothing and returns what would be done."""
        walk = _Walk()
        left = await self._expiry.run_once(dry_run=dry_run)
        walked = await self._walk(walk, dry_run=dry_run)
        freed = 0 if dry_run else await self._free()
        if not dry_run:
            await self._forget_letters()
        trimmed, trimmed_all = await self._trim(dry_run=dry_run)
        swept = RetentionPass(
            left=left,
            forgotten=walk.forgotten,
            trimmed=trimmed,
            restored=walk.restored,
            expiring=walk.expiring,
            freed=freed,
            young=walk.young,
            whole=walked and trimmed_all,
            dry_run=dry_run,
        )
        self._report(swept)
        return swept

    async def _walk(self, walk: _Walk, *, dry_run: bool) -> bool:
        """Walk the index of runs, oldest first; return whether its end was reached."""
        redis, keys = self._queue.redis, self._queue.keys
        for _ in range(self._pages):
            seen, forgotten, lasting = await _FORGET(
                redis,
                [keys.runs, keys.run_prefix, keys.ended],
                [self._skip, _PAGE, int(dry_run), self._retention_ms],
            )
            walk.forgotten += forgotten
            await self._restore([run_id.decode() for run_id in lasting], walk, dry_run=dry_run)
            self._skip += seen if dry_run else seen - forgotten
            if seen < _PAGE:
                self._skip = 0
                return True
        return False

    async def _restore(self, run_ids: Sequence[str], walk: _Walk, *, dry_run: bool) -> None:
        if not run_ids:
            return
        args = [*self._restore_head, int(dry_run), *run_ids]
        words = await _RESTORE(self._queue.redis, self._restore_keys, args)
        for run_id, word in zip(run_ids, words, strict=True):
            walk.note(run_id, word.decode())

    async def _free(self) -> int:
        """Free the permits of runs that do not exist any more."""
        redis, keys = self._queue.redis, self._queue.keys
        freed, cursor = 0, b"0"
        while True:
            cursor, names = await command(redis, "SSCAN", keys.limits, cursor, "COUNT", _PAGE)
            if names:
                freed += await _FREE(redis, [keys.limits, keys.returned, keys.run_prefix], names)
            if int(cursor) == 0:
                return freed

    async def _forget_letters(self) -> None:
        """Delete the replay data of letters that do not exist any more."""
        redis, keys = self._queue.redis, self._queue.keys
        cursor = b"0"
        while True:
            cursor, kept = await command(redis, "HSCAN", keys.letters, cursor, "COUNT", _PAGE)
            if kept:
                await _LETTERS(redis, [keys.letters, keys.deadletter], list(kept))
            if int(cursor) == 0:
                return

    async def _trim(self, *, dry_run: bool) -> tuple[int, bool]:
        """Trim every lane, also with delete_after_ack: the setting may have been off before."""
        trimmed = 0
        for lane in self._queue.keys.lanes:
            for _ in range(self._pages):
                args = [self._retention_ms, _TRIM_PAGE, int(dry_run)]
                count: int = await _TRIM(self._queue.redis, [lane], args)
                trimmed += count
                if dry_run or count == 0:
                    break
            else:
                return trimmed, False
        return trimmed, True

    def _report(self, swept: RetentionPass) -> None:
        name = self._queue.name
        if not swept.dry_run:
            self._metrics.retention_removed.labels(name, "index").inc(swept.forgotten)
            self._metrics.retention_removed.labels(name, "entry").inc(swept.trimmed)
            self._metrics.runs_restored.labels(name).inc(len(swept.restored))
            self._metrics.events_appended.labels(name).inc(len(swept.restored))
        for run_id in swept.restored:
            message = "run without entry found" if swept.dry_run else "run without entry queued again"
            _log.warning(message, queue=name, run_id=run_id)
        _log.info(
            "stream cleanup complete" if swept.whole else "stream cleanup stopped at its limit",
            queue=name,
            dry_run=swept.dry_run,
            left=swept.left,
            forgotten=swept.forgotten,
            trimmed=swept.trimmed,
            restored=len(swept.restored),
            expiring=swept.expiring,
            freed=swept.freed,
            young=swept.young,
        )


class _Walk:
    """The counts of a pass so far."""

    def __init__(self) -> None:
        self.forgotten = 0
        self.expiring = 0
        self.young = 0
        self.restored: list[str] = []

    def note(self, run_id: str, word: str) -> None:
        if word == "restored":
            self.restored.append(run_id)
        elif word == "expiring":
            self.expiring += 1
        elif word == "young":
            self.young += 1
