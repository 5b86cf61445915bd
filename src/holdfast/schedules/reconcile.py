"""Reconcile: register in Redis the schedules of the code and of SQL, again every refresh period.

Only what is missing is added and only what has changed is sent; known schedules keep their turn.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.schedules.registry import registration_of, spread
from holdfast.schedules.replies import BATCH, Registered
from holdfast.schedules.schedule import encoded
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import SchedulerSettings
    from holdfast.schedules.registry import DefinitionsVersion, Registration, ScheduleRegistry
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.sql_sync import SqlSync

WHOLE_EVERY: Final = 20
"""Every so many passes everything is compared: keys may have been changed from outside."""

_log = get_logger(__name__)


class Reconcile:
    """Registers one scheduler's own definitions, those in SQL, and all that are in no set of Redis."""

    def __init__(
        self,
        registry: ScheduleRegistry,
        schedules: Sequence[Schedule],
        settings: SchedulerSettings,
        sql_sync: SqlSync | None = None,
    ) -> None:
        self._registry = registry
        self._schedules = schedules
        self._digests = [(one.name, hashlib.sha1(encoded(one)).hexdigest()) for one in schedules]  # noqa: S324
        self._sql_sync = sql_sync
        self._jitter = settings.jitter.initial_registration_seconds
        self._budget = settings.reconcile.run_budget_ms / 1000 or float("inf")
        self._seen: DefinitionsVersion | None = None
        self._found: DefinitionsVersion | None = None
        self._at = 0
        self._cursor = "0"
        """Where the repopulation goes on; "0" at its beginning."""
        self._is_synced = True
        """Whether the last comparison with SQL is whole."""
        self._passes = 0
        self.sent = 0
        """How many definitions of the code were sent."""

    async def run_once(self) -> bool:
        """Do one pass; False if its budget ended it: the next goes on from there."""
        ends = time.monotonic() + self._budget
        changed = repaired = 0
        if self._cursor == "0":  # else the budget of the last pass ended within the repopulation
            whole, changed = await self._register(ends)
            if not whole:
                return False
            if self._sql_sync is not None:
                self._is_synced, repaired = await self._sync_sql(self._sql_sync, ends)
        restored = await self._repopulate(ends)
        log = _log.info if changed or restored or repaired else _log.debug
        log("schedules registered", changed=changed, restored=restored, from_sql=repaired)
        return self._is_synced and self._cursor == "0"

    async def _register(self, ends: float) -> tuple[bool, int]:
        """Send the definitions that Redis lacks or has differently; return whether all were compared."""
        changed = 0
        if not self._at:
            self._found = await self._registry.standing()
            self._passes += 1
            # guard: reconcile-empty-redis
            if self._found.changes and self._found == self._seen and self._passes % WHOLE_EVERY:
                return True, 0
        while self._at < len(self._schedules):
            changed += await self._send(self._at, self._at + BATCH)  # guard: reconcile-one-batch
            self._at += BATCH
            # After a batch: a pass that does nothing would never come to an end.
            if self._at < len(self._schedules) and time.monotonic() >= ends:
                return False, changed
        # The state before the pass: a change that another scheduler made meanwhile is seen by the next one.
        self._at, self._seen = 0, self._found
        return True, changed

    async def _send(self, start: int, end: int) -> int:
        places = await self._registry.differing(self._digests[start:end])  # guard: reconcile-differing-only
        wanted = [self._schedules[start + at] for at in places]
        if not wanted:
            return 0
        now = (await self._registry.count()).now
        planned = [registration_of(one, now, spread(self._jitter)) for one in wanted]
        self.sent += len(planned)
        words = await self._registry.put(await self._with_pauses(planned))  # guard: reconcile-with-pauses
        return sum(word is not Registered.UNCHANGED for word in words)

    async def _with_pauses(self, planned: list[Registration]) -> list[Registration]:
        """Add the pauses that SQL has: schedules that Redis has lost come back paused."""
        if self._sql_sync is None:
            return planned
        try:
            kept = await self._sql_sync.paused([one.name for one in planned])
        except StoreUnavailable:  # the store reports it
            return planned
        except HoldfastError as exc:
            _log.warning("pauses of schedules can't be read from the database", error=str(exc))
            return planned
        return [
            msgspec.structs.replace(one, paused=row.paused, paused_since=row.paused_since)
            if (row := kept.get(one.name)) is not None
            else one
            for one in planned
        ]

    async def _repopulate(self, ends: float) -> int:
        """Bring back what is in no set, page by page until ``ends``; return how many."""
        restored = 0
        while True:
            self._cursor, names = await self._registry.repopulate_page(
                self._cursor, jitter_seconds=self._jitter
            )
            restored += len(names)
            # After a page: a pass that does nothing would never come to an end.
            if self._cursor == "0" or time.monotonic() >= ends:  # guard: repopulation-within-budget
                return restored

    async def _sync_sql(self, sql_sync: SqlSync, ends: float) -> tuple[bool, int]:
        try:
            return await sql_sync.run_once(ends)
        except StoreUnavailable:  # the store reports it: what the code has goes on
            return True, 0
        except HoldfastError as exc:  # the database is not ready: what the code has goes on
            _log.warning("schedules can't be compared with SQL now", error=str(exc))
            return True, 0
