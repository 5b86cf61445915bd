"""Reconciling: the schedules of the code, of SQL and of Redis are brought together, again and again.

Only what is missing is added and only what has changed is sent; what is known keeps its turn.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.schedules.registration import registration_of
from holdfast.schedules.registry import spread
from holdfast.schedules.schedule import encoded
from holdfast.schedules.words import BATCH, Registered
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.config import SchedulerSettings
    from holdfast.schedules.healing import Healing
    from holdfast.schedules.registration import Registration
    from holdfast.schedules.registry import Registry, Standing
    from holdfast.schedules.schedule import Schedule

WHOLE_EVERY: Final = 20
"""So many passes are one that compares everything, whatever seems unchanged: somebody may have meddled."""

_log = get_logger(__name__)


class Reconcile:
    """One scheduler's own definitions, those kept in SQL, and everybody's that have lost their place."""

    def __init__(
        self,
        registry: Registry,
        schedules: Sequence[Schedule],
        settings: SchedulerSettings,
        healing: Healing | None = None,
    ) -> None:
        self._registry = registry
        self._schedules = schedules
        self._digests = [(one.name, hashlib.sha1(encoded(one)).hexdigest()) for one in schedules]  # noqa: S324
        self._healing = healing
        self._jitter = settings.jitter.initial_registration_seconds
        self._budget = settings.reconcile.run_budget_ms / 1000 or float("inf")
        self._seen: Standing | None = None
        self._found: Standing | None = None
        self._at = 0
        self._passes = 0
        self.sent = 0
        """How many definitions of the code were sent so far."""

    async def run_once(self) -> bool:
        """Do one pass; False if its budget ended it, and the next goes on from there."""
        ends = time.monotonic() + self._budget
        whole, changed = await self._register(ends)
        if not whole:
            return False
        healed = 0
        if self._healing is not None:
            whole, healed = await self._heal(self._healing, ends)
        restored = await self._registry.repopulate(jitter_seconds=self._jitter)
        say = _log.info if changed or restored or healed else _log.debug
        say("schedules registered", changed=changed, restored=len(restored), from_sql=healed)
        return whole

    async def _register(self, ends: float) -> tuple[bool, int]:
        """Send what Redis lacks of the code, or has otherwise; tell whether that was all of it."""
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
        # As it was before: what we have sent is compared once more, what others did meanwhile is not missed.
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
        """Let what Redis has lost come back paused, if it was."""
        if self._healing is None:
            return planned
        try:
            kept = await self._healing.paused([one.name for one in planned])
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

    async def _heal(self, healing: Healing, ends: float) -> tuple[bool, int]:
        try:
            return await healing.run_once(ends)
        except StoreUnavailable:  # the store reports it: what the code has goes on
            return True, 0
        except HoldfastError as exc:  # the database is not ready: what the code has goes on
            _log.warning("schedules can't be compared with SQL now", error=str(exc))
            return True, 0
