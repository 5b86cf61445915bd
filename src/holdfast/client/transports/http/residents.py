"""Residents over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from holdfast.client.residents import SentMessage
from holdfast.client.transports.http.problems import read
from holdfast.runs.message import encode_value
from holdfast.views.hosts import HostList
from holdfast.views.residents import ResidentList, ResidentView

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.client.transports.http.calls import Calls
    from holdfast.views.hosts import HostView
    from holdfast.views.residents import Needs, ResidentRow

_PAGE: Final = 200
_START_SECONDS: Final = 90.0
"""A resident may take its time to begin or to end, and the API says when it took too much."""


_view = msgspec.json.Decoder(ResidentView)
_page = msgspec.json.Decoder(ResidentList)
_hosts = msgspec.json.Decoder(HostList)
_sent = msgspec.json.Decoder(SentMessage)


class HttpResidents:
    """The residents that the API shows to this key."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self, filters: Mapping[str, str], limit: int) -> list[ResidentRow]:
        """Read up to ``limit`` residents, oldest first."""
        found: list[ResidentRow] = []
        cursor, more = "", True
        while more and len(found) < limit:
            given = {name: value for name, value in {**filters, "cursor": cursor}.items() if value}
            query = urlencode({"limit": min(limit - len(found), _PAGE), **given})
            page = read(self._calls.url, (await self._calls.call("GET", f"/residents?{query}")).body, _page)
            found += page.residents
            cursor, more = page.cursor, bool(page.cursor)
        return found

    async def get(self, resident_id: str) -> ResidentView:
        """Read one."""
        return read(self._calls.url, (await self._calls.call("GET", _path(resident_id))).body, _view)

    async def start(self, resident_id: str, resident: str, made_with: Any, needs: Needs) -> ResidentView:
        """Start a resident."""
        asked = {"id": resident_id, "resident": resident, "input": made_with, "needs": needs}
        body = encode_value(asked, "the input of a resident")
        answer = await self._calls.call("POST", "/residents", body, wait_seconds=_START_SECONDS)
        return read(self._calls.url, answer.body, _view)

    async def stop(self, resident_id: str) -> ResidentView:
        """Stop a resident."""
        answer = await self._calls.call("DELETE", _path(resident_id), wait_seconds=_START_SECONDS)
        return read(self._calls.url, answer.body, _view)

    async def move(self, resident_id: str, to: str) -> ResidentView:
        """Move a resident to another host."""
        # Asked twice, it might move twice: whether it was heard is not known when an answer is lost.
        body, path = msgspec.json.encode({"host": to}), _path(resident_id, "move")
        answer = await self._calls.call("POST", path, body, wait_seconds=_START_SECONDS, repeatable=False)
        return read(self._calls.url, answer.body, _view)

    async def send(self, resident_id: str, message: Any, key: str) -> SentMessage:
        """Put a message into a mailbox."""
        body = encode_value({"message": message}, f"the message to {resident_id}")
        answer = await self._calls.call("POST", _path(resident_id, "messages"), body, key=key)
        return read(self._calls.url, answer.body, _sent)

    async def hosts(self) -> list[HostView]:
        """Read every live host."""
        return read(self._calls.url, (await self._calls.call("GET", "/hosts")).body, _hosts).hosts


def _path(resident_id: str, verb: str = "") -> str:
    return f"/residents/{quote(resident_id, safe='')}{f'/{verb}' if verb else ''}"
