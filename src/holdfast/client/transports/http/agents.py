"""Registered agents over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from holdfast.client.transports.http.problems import read
from holdfast.views.agents import AgentList, AgentView

if TYPE_CHECKING:
    from holdfast.client.transports.http.calls import Calls

_info = msgspec.json.Decoder(AgentView)
_listing = msgspec.json.Decoder(AgentList)


class HttpAgents:
    """The registered agents that the API shows to this key."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self) -> list[AgentView]:
        """Read all of them, by name."""
        return read(self._calls.url, (await self._calls.call("GET", "/agents")).body, _listing).agents

    async def get(self, name: str) -> AgentView:
        """Read one."""
        answer = await self._calls.call("GET", f"/agents/{quote(name, safe='')}")
        return read(self._calls.url, answer.body, _info)
