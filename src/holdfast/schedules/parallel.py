"""Firings beside another one of their schedule, for the overlap policy ``allow``.

Each turn that comes becomes a schedule of its own, ``name#n``, with its own lease and fence, which is removed
when its run ends: so it can't be lost or run twice either. The names ``#1`` to ``#n`` are the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.schedules.fire_times import fire_times, last_due
from holdfast.schedules.redis_errors import counting_discarded, script_failed
from holdfast.schedules.registry import registration_of
from holdfast.schedules.replies import PlaceReply, score, text
from holdfast.schedules.schedule import single_turn
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.clock import RedisClock
    from holdfast.schedules.firing import Firing
    from holdfast.schedules.schedule import Schedule
    from holdfast.telemetry.metrics import Metrics

_OVERLAP = load(__package__, "overlap")
_NAME: Final = "#"
"""Stands for the name in a definition: the script replaces it by one that is free."""
_RETRY_SECONDS: Final = 0.5

_log = get_logger(__name__)


class ParallelFirings:
    """Place turns beside the firings of one owner."""

    def __init__(self, redis: Redis, keys: ScheduleKeys, metrics: Metrics, *, owner: str) -> None:
        self._redis = redis
        self._where: list[Any] = [keys.waiting, keys.definitions, keys.priorities, keys.record_prefix]
        self._where += [keys.nudge]
        self._metrics = metrics
        self._outages = redis_outages("turns beside others", "they are placed when Redis answers")
        self._discarded = counting_discarded(metrics)
        self._owner = owner

    async def place(self, run: Acquired, schedule: Schedule, at: float) -> PlaceReply:
        """Place the turn of ``at`` beside ``run``; safe to send again when the reply was lost."""
        one = registration_of(single_turn(schedule, _NAME, at), at)
        before, after = one.spec.split(b'"#"', 1)
        args = [self._owner, run.name, run.fence, score(at), schedule.overlap_most]
        args += [before + b'"', b'"' + after, one.trigger, one.timeout_ms, one.priority]
        discarded, word = await _OVERLAP(self._redis, self._where, args)
        self._discarded(discarded)
        return PlaceReply(text(word))

    @contextlib.asynccontextmanager
    async def beside(self, firing: Firing, clock: RedisClock) -> AsyncGenerator[None]:
        """Place the turns of its schedule that come, for as long as ``firing`` goes on."""
        over = asyncio.Event()
        placing = asyncio.create_task(
            self._place_each(firing, clock, over), name=f"{firing.acquired.name} beside"
        )
        try:
            yield
        finally:
            over.set()
            try:
                # Not cancelled in the middle of a call: its reply decides what the next turn is.
                await placing
            finally:
                placing.cancel()

    async def _place_each(self, firing: Firing, clock: RedisClock, over: asyncio.Event) -> None:
        run, schedule = firing.acquired, firing.schedule
        last = max(run.acquired_at, firing.beside)
        while following := fire_times(schedule, last, 1):
            if 0 < schedule.max_runs <= run.runs + firing.placed + 1:
                return
            if await _is_set_within(over, clock.until(following[0])):
                return
            last, left_out = last_due(schedule, following[0], clock.now())
            firing.beside = firing.doubtful = last
            word = await self._placed(firing, last, over)
            if word is not None:
                firing.doubtful = None
            # ALREADY: by a call whose reply was lost, as no other owner places turns beside this firing.
            firing.placed += word in {PlaceReply.PLACED, PlaceReply.ALREADY}
            self._metrics.schedule_missed.inc(left_out + (word is PlaceReply.FULL))
            if word in {PlaceReply.STALE, PlaceReply.UNKNOWN, None}:
                return

    async def _placed(self, firing: Firing, at: float, over: asyncio.Event) -> PlaceReply | None:
        """Place a turn, again while Redis is away; None if the run ended before Redis replied.

        Its completion then names that turn, and complete.lua sees whether it was placed.
        """
        while True:
            try:
                with self._outages:
                    return await self.place(firing.acquired, firing.schedule, at)
            except TROUBLE as exc:
                script_failed(self._metrics, exc)
                if not isinstance(exc, DISCONNECTS):
                    _log.error(
                        "Redis refuses a turn beside another", schedule=firing.acquired.name, error=repr(exc)
                    )
            if await _is_set_within(over, _RETRY_SECONDS):
                return None


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    return event.is_set()
