"""Schedules over Redis: what an operator can ask, with the errors of redis-py as those of Holdfast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.client.schedules import ScheduleInfo
from holdfast.redis.translate import translate_errors
from holdfast.views.schedules import PastTurn

if TYPE_CHECKING:
    from holdfast.operations.schedules import ScheduleOperations

Shape = TypeVar("Shape", bound=msgspec.Struct)


class RedisSchedules:
    """The schedules of one set of keys."""

    def __init__(self, operations: ScheduleOperations, url: str) -> None:
        self._operations = operations
        self._url = url

    async def list(self, pattern: str, state: str, limit: int) -> list[ScheduleInfo]:
        """Read up to ``limit`` schedules."""
        with translate_errors(self._url):
            found = await self._operations.find_all(pattern=pattern, state=state, limit=limit)
        return [_as(ScheduleInfo, view) for view in found]

    async def create(self, name: str, agent: str, options: dict[str, Any]) -> ScheduleInfo:
        """Make one."""
        state = {word: options.pop(word) for word in ("tenant", "paused", "reason") if word in options}
        with translate_errors(self._url):
            made, _ = await self._operations.create(name, agent, options, **state)
        return _as(ScheduleInfo, made)

    async def remove(self, name: str, *, force: bool) -> None:
        """Remove one for good."""
        with translate_errors(self._url):
            await self._operations.remove(name, force=force)

    async def get(self, name: str) -> ScheduleInfo:
        """Read one."""
        with translate_errors(self._url):
            return _as(ScheduleInfo, await self._operations.get(name))

    async def trigger(self, name: str) -> str:
        """Run one now."""
        with translate_errors(self._url):
            return (await self._operations.trigger(name)).status

    async def pause(self, name: str, reason: str) -> ScheduleInfo:
        """Take one out of its turn."""
        with translate_errors(self._url):
            return _as(ScheduleInfo, await self._operations.pause(name, reason))

    async def resume(self, name: str) -> ScheduleInfo:
        """Let one take its turns again."""
        with translate_errors(self._url):
            return _as(ScheduleInfo, await self._operations.resume(name))

    async def next(self, name: str, count: int) -> list[float]:
        """Tell its next turns."""
        with translate_errors(self._url):
            return (await self._operations.next(name, count)).times

    async def turns(self, name: str, limit: int) -> list[PastTurn]:
        """Read its past turns."""
        with translate_errors(self._url):
            found = await self._operations.turns(name, limit)
        return [_as(PastTurn, turn) for turn in found.turns]


def _as(shape: type[Shape], view: msgspec.Struct) -> Shape:
    """Read a view as clients over HTTP do."""
    return msgspec.convert(msgspec.to_builtins(view), shape)
