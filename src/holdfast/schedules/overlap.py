"""The overlap policy ``allow``: a turn that is still on at its schedule's next one lets that run beside it.

The next turn becomes a schedule of its own, ``name#n``, with its own place, lease and fence, which ends with
its run: what keeps schedules from being lost or doubled keeps it, too. There are as many names as turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.schedules.cadence import fire_times, last_due
from holdfast.schedules.registration import registration_of
from holdfast.schedules.schedule import single_turn
from holdfast.schedules.troubles import counting_discarded, script_failed
from holdfast.schedules.words import Placed, score, text
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.clock import RedisClock
    from holdfast.schedules.running import Turn
    from holdfast.schedules.schedule import Schedule
    from holdfast.telemetry.metrics import Metrics

_OVERLAP = load(__package__, "overlap")
_NAME: Final = "#"
"""Stands for the name in a definition: which one is free is known to Redis only."""
_RETRY_SECONDS: Final = 0.5

_log = get_logger(__name__)


class Overlaps:
    """Places turns beside those that one owner runs."""

    def __init__(self, redis: Redis, keys: ScheduleKeys, metrics: Metrics, *, owner: str) -> None:
        self._redis = redis
        self._where: list[Any] = [keys.waiting, keys.definitions, keys.priorities, keys.record_prefix]
        self._where += [keys.nudge]
        self._metrics = metrics
        self._outages = redis_outages("turns beside others", "they are placed when Redis answers")
        self._discarded = counting_discarded(metrics)
        self._owner = owner

    async def place(self, run: Acquired, schedule: Schedule, at: float) -> Placed:
        """Place the turn of ``at`` beside ``run``; safe to send again when the answer was lost."""
        one = registration_of(single_turn(schedule, _NAME, at), at)
        before, after = one.spec.split(b'"#"', 1)
        args = [self._owner, run.name, run.fence, score(at), schedule.overlap_most]
        args += [before + b'"', b'"' + after, one.trigger, one.timeout_ms, one.priority]
        discarded, word = await _OVERLAP(self._redis, self._where, args)
        self._discarded(discarded)
        return Placed(text(word))

    @contextlib.asynccontextmanager
    async def beside(self, turn: Turn, clock: RedisClock) -> AsyncGenerator[None]:
        """Let its schedule's turns go on for as long as ``turn`` does."""
        over = asyncio.Event()
        placing = asyncio.create_task(self._place_each(turn, clock, over), name=f"{turn.run.name} beside")
        try:
            yield
        finally:
            over.set()
            try:
                # Not cancelled in the middle of a call: whether that turn was placed must be known.
                await placing
            finally:
                placing.cancel()

    async def _place_each(self, turn: Turn, clock: RedisClock, over: asyncio.Event) -> None:
        run, schedule = turn.run, turn.schedule
        last = max(run.acquired_at, turn.beside)
        while following := fire_times(schedule, last, 1):
            if 0 < schedule.max_runs <= run.runs + turn.placed + 1:
                return
            if await _is_set_within(over, clock.until(following[0])):
                return
            last, left_out = last_due(schedule, following[0], clock.now())
            turn.beside = turn.doubtful = last
            word = await self._placed(turn, last, over)
            if word is not None:
                turn.doubtful = None
            # Already: by a call whose answer was lost, for nobody else may.
            turn.placed += word in {Placed.PLACED, Placed.ALREADY}
            self._metrics.schedule_missed.inc(left_out + (word is Placed.FULL))
            if word in {Placed.STALE, Placed.UNKNOWN, None}:
                return

    async def _placed(self, turn: Turn, at: float, over: asyncio.Event) -> Placed | None:
        """Place a turn, as often as Redis is away; None if the run ended before that was known.

        Then its end asks: complete.lua knows whether the turn was placed.
        """
        while True:
            try:
                with self._outages:
                    return await self.place(turn.run, turn.schedule, at)
            except TROUBLE as exc:
                script_failed(self._metrics, exc)
                if not isinstance(exc, DISCONNECTS):
                    _log.error("Redis refuses a turn beside another", schedule=turn.run.name, error=repr(exc))
            if await _is_set_within(over, _RETRY_SECONDS):
                return None


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    return event.is_set()
