"""Schedules over Redis: what an operator can ask, with the errors of redis-py as those of Holdfast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.redis.translate import translate_errors
from holdfast.views.schedules import ScheduleRow

if TYPE_CHECKING:
    from holdfast.operations.schedules import ScheduleOperations
    from holdfast.views.schedules import ScheduleTurn, ScheduleView


class RedisSchedules:
    """The schedules of one set of keys."""

    def __init__(self, operations: ScheduleOperations, url: str) -> None:
        self._operations = operations
        self._url = url

    async def list(self, pattern: str, state: str, limit: int) -> list[ScheduleRow]:
        """Read up to ``limit`` schedules."""
        with translate_errors(self._url):
            return await self._operations.find_all(ScheduleRow, pattern=pattern, state=state, limit=limit)

    async def create(self, name: str, agent: str, options: dict[str, Any]) -> ScheduleView:
        """Make one."""
        state = {word: options.pop(word) for word in ("tenant", "paused", "reason") if word in options}
        with translate_errors(self._url):
            return (await self._operations.create(name, agent, options, **state))[0]

    async def remove(self, name: str, *, force: bool) -> None:
        """Remove one for good."""
        with translate_errors(self._url):
            await self._operations.remove(name, force=force)

    async def get(self, name: str) -> ScheduleView:
        """Read one."""
        with translate_errors(self._url):
            return await self._operations.get(name)

    async def trigger(self, name: str) -> str:
        """Run one now."""
        with translate_errors(self._url):
            return (await self._operations.trigger(name)).status

    async def pause(self, name: str, reason: str) -> ScheduleView:
        """Take one out of its turn."""
        with translate_errors(self._url):
            return await self._operations.pause(name, reason)

    async def resume(self, name: str) -> ScheduleView:
        """Let one take its turns again."""
        with translate_errors(self._url):
            return await self._operations.resume(name)

    async def next(self, name: str, count: int) -> list[float]:
        """Tell its next turns."""
        with translate_errors(self._url):
            return (await self._operations.next(name, count)).times

    async def turns(self, name: str, limit: int) -> list[ScheduleTurn]:
        """Read its past turns."""
        with translate_errors(self._url):
            return (await self._operations.turns(name, limit)).turns
