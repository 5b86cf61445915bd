"""Backfill: the turns of a past window are run, each once, however often that is requested.

With a target the turns are submitted as runs, under the idempotency keys of the schedule's own turns. Without
one they are queued; a few of them at a time are schedules of their own, ``name@time``.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import InputError
from holdfast.redis.batcher import fitting
from holdfast.redis.scripts import load
from holdfast.schedules.entries import Entries
from holdfast.schedules.fire_times import window
from holdfast.schedules.redis_errors import log_discarded
from holdfast.schedules.registry import ScheduleRegistry, registration_of
from holdfast.schedules.replies import CHUNK, PlaceReply, score, words
from holdfast.schedules.schedule import decoded, single_turn, turn_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.submission import Submit

_BACKFILL = load(__package__, "backfill")
MOST_TURNS: Final = 10_000
"""More in one backfill would crowd the schedules out of their own lists."""


class Filled(msgspec.Struct, frozen=True):
    """One turn of a backfill: its name, its time, and the reply to it."""

    turn: str
    at: float
    word: str = "planned"
    """``placed``, or ``already`` if it was before; ``planned`` if nothing was done."""


def turns_between(schedule: Schedule, start: float, end: float, *, now: float, limit: int) -> list[Filled]:
    """Return the turns in [start, end) that are over; more than ``limit`` is an error."""
    if not start < end:
        raise InputError(f"the window must end after it begins, got {start:g} to {end:g}")
    most = max(0, min(limit, MOST_TURNS))
    # One more shows that there are too many: a window of years may hold millions.
    over = min(end, math.nextafter(now, math.inf))
    past = window(schedule, start, over, most + 1) if start < over else []  # guard: backfill-limit
    if len(past) > most:
        raise InputError(
            f"the window holds more turns of {schedule.name!r} than the limit of {most}: "
            f"make it shorter, or raise the limit (up to {MOST_TURNS})"
        )
    return [Filled(turn_name(schedule.name, at), at) for at in past]


class Backfill:
    """Fills windows of the schedules of one set of keys."""

    def __init__(self, redis: Redis, keys: ScheduleKeys, submit: Submit | None = None) -> None:
        self._redis = redis
        self._entries = Entries(redis, keys)
        self._registry = ScheduleRegistry(redis, keys)
        self._where: list[Any] = [keys.waiting, keys.definitions, keys.priorities, keys.record_prefix]
        self._where += [keys.nudge]
        self._submit = submit

    async def plan(self, name: str, start: float, end: float, *, limit: int = 100) -> list[Filled]:
        """Return the turns that a backfill would run; nothing is changed."""
        return (await self._planned(name, start, end, limit))[1]

    async def run(
        self, name: str, start: float, end: float, *, limit: int = 100, at_once: int = 1
    ) -> list[Filled]:
        """Submit or queue the turns, oldest first; never more than ``at_once`` at once."""
        if at_once < 1:
            raise InputError(f"at least one turn at once, got {at_once}")
        schedule, turns = await self._planned(name, start, end, limit)
        if not schedule.target:
            return await self._place(schedule, turns, at_once)
        if self._submit is None:
            raise InputError(f"{name!r} submits runs to {schedule.target!r}, and there is no way to it here")
        return await self._send(self._submit, schedule, turns, at_once)

    async def _planned(
        self, name: str, start: float, end: float, limit: int
    ) -> tuple[Schedule, list[Filled]]:
        schedule = decoded((await self._entries.get(name)).spec)
        if schedule.source == "turn":
            raise InputError(f"{name!r} is one turn of a schedule: backfill that schedule instead")
        now = (await self._registry.count()).now
        # Turns of a cron expression take long to compute: in a thread, so that the event loop goes on.
        # guard: backfill-off-loop
        return schedule, await asyncio.to_thread(turns_between, schedule, start, end, now=now, limit=limit)

    async def _send(
        self, submit: Submit, schedule: Schedule, turns: Sequence[Filled], at_once: int
    ) -> list[Filled]:
        room = asyncio.Semaphore(at_once)

        async def send(turn: Filled) -> Filled:
            async with room:
                fresh = (await submit(schedule, turn.turn)).fresh
            return msgspec.structs.replace(turn, word=PlaceReply.PLACED if fresh else PlaceReply.ALREADY)

        try:
            async with asyncio.TaskGroup() as group:
                sent = [group.create_task(send(turn)) for turn in turns]
        except ExceptionGroup as failed:
            # The error of a queue that is full or away names the queue, and when to try again.
            raise failed.exceptions[0] from None  # guard: backfill-first-error
        return [task.result() for task in sent]

    async def _place(self, schedule: Schedule, turns: Sequence[Filled], at_once: int) -> list[Filled]:
        parts = [registration_of(single_turn(schedule, turn.turn, turn.at), turn.at) for turn in turns]
        done: list[Filled] = []
        while len(done) < len(turns):
            rest = parts[len(done) : len(done) + CHUNK]
            rest = rest[: fitting(rest, lambda one: len(one.spec), most=CHUNK)]
            args: list[Any] = [schedule.name, at_once, rest[0].timeout_ms, rest[0].priority]
            for one, turn in zip(rest, turns[len(done) :], strict=False):
                args += (one.name, score(turn.at), one.spec, one.trigger)
            discarded, *reply = await _BACKFILL(self._redis, self._where, args)
            log_discarded(discarded)
            replies = words(PlaceReply, reply)
            done += [
                msgspec.structs.replace(turn, word=word.value)
                for turn, word in zip(turns[len(done) :], replies, strict=False)
            ]
        return done
