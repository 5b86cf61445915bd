"""Ends of turns on their way to Redis, in batches; what could not be told is tried again, once per cycle.

After three further tries in vain it is given up: its lease ends, and any scheduler brings the schedule back.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from holdfast.errors import RedisUnavailable
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.reliability.breaker import State
from holdfast.schedules.troubles import script_failed
from holdfast.schedules.words import CHUNK, Ended
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.leases.lease import Lease
    from holdfast.reliability.breaker import Breaker
    from holdfast.schedules.completion import Completer, Done
    from holdfast.telemetry.metrics import Metrics

ATTEMPTS: Final = 3
"""Further tries, after the first."""

_log = get_logger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class Ending:
    """The end of one turn: completed, or given back if there is no ``done``."""

    lease: Lease
    done: Done | None
    told: Callable[[Ended | None], None]
    """Called once, with Redis's word; None if it could not be told."""
    after_seconds: float | None = None
    """When a turn that is given back is due again, from now; None is at its original turn."""
    history: bytes = b""
    """A turn that is given back as its schedule's history keeps it; empty if it had not begun."""
    recovering: bool = False
    """Whether it could not be told at once and is tried again."""
    tries: int = 0
    """How many of those further tries have failed."""
    failed_at: float = 0.0
    """When it could not be told, by the event loop's clock."""


class Endings:
    """Tells Redis how turns ended; ``add`` never waits, ``run`` sends."""

    def __init__(
        self, completer: Completer, breaker: Breaker, metrics: Metrics, *, cycle_seconds: float
    ) -> None:
        self._completer = completer
        self._breaker = breaker
        self._metrics = metrics
        self._cycle_seconds = cycle_seconds
        self._cycle = 0.0
        self._outages = redis_outages("ends of turns", "they are sent again each cycle")
        self._new: list[Ending] = []
        self._again: list[Ending] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def depth(self) -> int:
        """How many ends wait for another try."""
        return len(self._again)

    def add(self, ending: Ending) -> None:
        """Tell with the next batch."""
        self._new.append(ending)
        self._idle.clear()
        self._wake.set()

    async def flushed(self) -> None:
        """Wait until everything added so far was told or given up."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send batches until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            pause = max(self._cycle - loop.time(), 0) if self._again else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()
            while self._new:
                batch, self._new = self._new[:CHUNK], self._new[CHUNK:]
                await self._send(batch)
            if self._again and loop.time() >= self._cycle:
                await self.try_again()
                self._cycle = loop.time() + self._cycle_seconds  # guard: retry-cycle
            if not self._new and not self._again:
                self._idle.set()

    async def try_again(self) -> None:
        """One more try for each that failed; none is used up while the breaker knows that Redis is away."""
        if self._breaker.state is State.OPEN:
            return
        # What has failed within this cycle waits for the next: at once would use up a try for nothing.
        latest = asyncio.get_running_loop().time() - self._cycle_seconds
        kept, waiting, self._again = self._again, list[Ending](), []
        for ending in kept:
            # guard: cycle-before-retry
            (waiting if ending.failed_at <= latest else self._again).append(ending)
        for start in range(0, len(waiting), CHUNK):
            await self._send(waiting[start : start + CHUNK])

    async def _send(self, batch: list[Ending]) -> None:
        ends = [ending for ending in batch if ending.done is not None]
        returned = [ending for ending in batch if ending.done is None]
        for part, call in ((ends, self._complete), (returned, self._give_back)):
            if not part:
                continue
            try:
                with self._outages, self._breaker.guard():  # guard: breaker-counts-endings
                    words = await call(part)
            except RedisUnavailable:
                self._keep(part)  # the breaker did not let it try
            except TROUBLE as exc:
                self._failed(part, exc)
            else:
                self._told(part, words)

    async def _complete(self, batch: list[Ending]) -> list[Ended]:
        return await self._completer.complete([ending.done for ending in batch if ending.done is not None])

    async def _give_back(self, batch: list[Ending]) -> list[Ended]:
        words: list[Ended] = []
        for where in (True, False):
            part = [ending for ending in batch if (ending.after_seconds is None) is where]
            delays = None if where else [ending.after_seconds or 0.0 for ending in part]
            if part:
                leases, history = [each.lease for each in part], [each.history for each in part]
                words += await self._completer.give_back(leases, delays, history)
        batch.sort(key=lambda ending: ending.after_seconds is not None)  # guard: endings-stable-order
        return words

    def _keep(self, batch: list[Ending]) -> None:
        """Try these again with the next cycle."""
        now = asyncio.get_running_loop().time()
        for ending in batch:
            ending.recovering, ending.failed_at = True, now
        self._again += batch

    def _told(self, batch: list[Ending], words: list[Ended]) -> None:
        _log.debug("turn ends reported", turns=len(batch), words=[word.value for word in words])
        for ending, word in zip(batch, words, strict=True):
            if ending.recovering:
                self._metrics.schedule_recovery.labels("told").inc()
            ending.told(word)

    def _failed(self, batch: list[Ending], exc: Exception) -> None:
        script_failed(self._metrics, exc)
        if not isinstance(exc, DISCONNECTS):
            _log.error("Redis refuses ends of turns", turns=len(batch), error=str(exc))
        for ending in batch:
            if ending.recovering:
                self._metrics.schedule_recovery.labels("failed").inc()  # guard: failed-recovery-counted
                ending.tries += 1
            if ending.tries < ATTEMPTS:
                self._keep([ending])
                continue
            self._metrics.schedule_recovery.labels("given_up").inc()
            _log.error(
                "the end of a turn could not be told: its lease ends by itself", schedule=ending.lease.key
            )
            ending.told(None)  # guard: unreported-end-lets-go
