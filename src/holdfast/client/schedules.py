"""The schedules as a client sees them: created, read, triggered, paused, removed; over Redis or over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import InputError
from holdfast.schedules.entries import ScheduleState

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from holdfast.views.schedule_options import CreateKeywords
    from holdfast.views.schedules import ScheduleRow, ScheduleTurn, ScheduleView

MOST_TIMES = 1000
_STATES = tuple(one.value for one in ScheduleState)


class ScheduleTransport(Protocol):
    """What a transport can do with schedules."""

    async def create(self, name: str, agent: str, options: dict[str, Any]) -> ScheduleView:
        """Make one."""
        ...

    async def remove(self, name: str, *, force: bool) -> None:
        """Remove one for good."""
        ...

    async def list(self, pattern: str, state: str, limit: int) -> list[ScheduleRow]:
        """Read up to ``limit`` schedules."""
        ...

    async def get(self, name: str) -> ScheduleView:
        """Read one."""
        ...

    async def trigger(self, name: str) -> str:
        """Run one now."""
        ...

    async def pause(self, name: str, reason: str) -> ScheduleView:
        """Take one out of its turn."""
        ...

    async def resume(self, name: str) -> ScheduleView:
        """Let one take its turns again."""
        ...

    async def next(self, name: str, count: int) -> list[float]:
        """Tell its next turns."""
        ...

    async def turns(self, name: str, limit: int) -> list[ScheduleTurn]:
        """Read its past turns."""
        ...


class Schedules:
    """``client.schedules``: the schedules of the system."""

    def __init__(self, transport: Callable[[], ScheduleTransport]) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        agent: str,
        **options: Unpack[CreateKeywords],
    ) -> ScheduleView:
        """Make a schedule with the options of ``app.schedule``; exactly one of every, cron and at says when.

        The same again changes nothing; another one of that name is a :class:`~holdfast.Conflict`.
        """
        given = {option: value for option, value in options.items() if value is not None}
        return await self._transport().create(_named(name), agent, given)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a schedule for good. One that the code declares comes back with it: only by ``force``."""
        await self._transport().remove(_named(name), force=force)

    async def get(self, name: str) -> ScheduleView:
        """Read a schedule and what it last did."""
        return await self._transport().get(_named(name))

    async def trigger(self, name: str) -> str:
        """Run a schedule now; its turns stay. ``triggered``, or ``buffered``: once more after this run."""
        return await self._transport().trigger(_named(name))

    async def pause(self, name: str, reason: str = "") -> ScheduleView:
        """Let a schedule take no turns until it is resumed; a run that goes on ends first."""
        return await self._transport().pause(_named(name), reason)

    async def resume(self, name: str) -> ScheduleView:
        """Let a paused schedule take its turns again."""
        return await self._transport().resume(_named(name))

    async def next(self, name: str, count: int = 5) -> list[float]:
        """Tell the next turns of a schedule, as if every run took no time."""
        if not 1 <= count <= MOST_TIMES:
            raise InputError(f"count must be between 1 and {MOST_TIMES}, got {count}")
        return await self._transport().next(_named(name), count)

    async def turns(self, name: str, limit: int = 20) -> list[ScheduleTurn]:
        """Read how the last turns of a schedule ended, the newest first.

        Each schedule keeps as many as the schedulers' setting ``redis.scheduler.kept-turns`` says.
        """
        if not 1 <= limit <= MOST_TIMES:
            raise InputError(f"limit must be between 1 and {MOST_TIMES}, got {limit}")
        return await self._transport().turns(_named(name), limit)

    async def list(self, pattern: str = "*", *, state: str = "", limit: int = 100) -> list[ScheduleRow]:
        """Read up to ``limit`` schedules whose name fits a glob, of one state if one is given.

        If there are more, it is any ``limit`` of them, as a scan finds them; what is read is sorted by name.
        """
        if state and state not in _STATES:
            raise InputError(
                f"state must be one of {', '.join(_STATES)}, or empty for any, got {state[:200]!r}"
            )
        if limit < 1:
            raise InputError(f"limit must be at least 1, got {limit}")
        return sorted(await self._transport().list(pattern, state, limit), key=lambda one: one.name)


def _named(name: str) -> str:
    if not name:
        raise InputError("the name of a schedule must not be empty")
    return name
