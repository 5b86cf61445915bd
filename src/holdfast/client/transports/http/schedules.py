"""Schedules over HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from holdfast.client.transports.http.problems import read
from holdfast.errors import InputError
from holdfast.runs.message import encode_value
from holdfast.views.schedules import ScheduleChanged, ScheduleList, ScheduleTimes, ScheduleTurns, ScheduleView

if TYPE_CHECKING:
    from holdfast.client.transports.http.calls import Calls
    from holdfast.views.schedules import ScheduleRow, ScheduleTurn

_PAGE = 200


_view = msgspec.json.Decoder(ScheduleView)
_page = msgspec.json.Decoder(ScheduleList)
_changed = msgspec.json.Decoder(ScheduleChanged)
_times = msgspec.json.Decoder(ScheduleTimes)
_turns = msgspec.json.Decoder(ScheduleTurns)


class HttpSchedules:
    """The schedules that the API shows to this key."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self, pattern: str, state: str, limit: int) -> list[ScheduleRow]:
        """Read up to ``limit`` schedules."""
        found: dict[str, ScheduleRow] = {}  # a scan may bring one twice
        cursor, more = "", True
        while more and len(found) < limit:
            asked = {"pattern": pattern, "state": state, "cursor": cursor}
            said = urlencode(
                {"limit": min(limit - len(found), _PAGE)}
                | {name: value for name, value in asked.items() if value}
            )
            page = read(self._calls.url, (await self._calls.call("GET", f"/schedules?{said}")).body, _page)
            found |= {one.name: one for one in page.schedules}
            cursor, more = page.cursor, bool(page.cursor)
        return list(found.values())

    async def create(self, name: str, agent: str, options: dict[str, Any]) -> ScheduleView:
        """Make one."""
        given = {word: _written(word, value) for word, value in options.items()}
        body = {"name": name, "agent": agent, **given}
        answer = await self._calls.call("POST", "/schedules", encode_value(body, f"the schedule {name!r}"))
        return read(self._calls.url, answer.body, _view)

    async def remove(self, name: str, *, force: bool) -> None:
        """Remove one for good."""
        # Asked twice, it would not be there the second time.
        path = f"{_path(name)}{'?force=true' if force else ''}"
        await self._calls.call("DELETE", path, repeatable=False)

    async def get(self, name: str) -> ScheduleView:
        """Read one."""
        return read(self._calls.url, (await self._calls.call("GET", _path(name))).body, _view)

    async def trigger(self, name: str) -> str:
        """Run one now."""
        # Asked twice, it might run twice: whether it was heard is not known when an answer is lost.
        answer = await self._calls.call("POST", _path(name, "trigger"), b"{}", repeatable=False)
        return read(self._calls.url, answer.body, _changed).status

    async def pause(self, name: str, reason: str) -> ScheduleView:
        """Take one out of its turn."""
        body = msgspec.json.encode({"reason": reason})
        return read(self._calls.url, (await self._calls.call("POST", _path(name, "pause"), body)).body, _view)

    async def resume(self, name: str) -> ScheduleView:
        """Let one take its turns again."""
        return read(
            self._calls.url, (await self._calls.call("POST", _path(name, "resume"), b"{}")).body, _view
        )

    async def next(self, name: str, count: int) -> list[float]:
        """Tell its next turns."""
        answer = await self._calls.call("GET", f"{_path(name, 'next')}?count={count}")
        return read(self._calls.url, answer.body, _times).times

    async def turns(self, name: str, limit: int) -> list[ScheduleTurn]:
        """Read its past turns."""
        answer = await self._calls.call("GET", f"{_path(name, 'turns')}?limit={limit}")
        return read(self._calls.url, answer.body, _turns).turns


def _written(word: str, given: Any) -> Any:
    """A moment or a duration in seconds; anything else as it is."""
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InputError(f"{word}: {given.isoformat()} has no time zone: write one")
        return given.timestamp()
    return given.total_seconds() if isinstance(given, timedelta) else given


def _path(name: str, verb: str = "") -> str:
    return f"/schedules/{quote(name, safe='')}{f'/{verb}' if verb else ''}"
