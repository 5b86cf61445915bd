"""Registered agents: what they are, what they take, and who serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.agents.catalogue import find_agent, list_agents
from holdfast.operations.caller import READ
from holdfast.views.agents import AgentList

if TYPE_CHECKING:
    from holdfast.operations.caller import Caller
    from holdfast.operations.system import System
    from holdfast.views.agents import AgentView


class AgentOperations:
    """What one caller can ask of registered agents."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller

    async def list(self) -> AgentList:
        """Read every agent that a live process has registered, by name."""
        self._caller.require(READ)
        found = await list_agents(self._system.redis, self._system.members)
        if not self._caller.tenant:
            return found
        # Which processes there are is no tenant's business, as in the list of members.
        return AgentList(
            [msgspec.structs.replace(each, served_by=[]) for each in found.agents],  # guard: served-by-hidden
            found.note,
        )

    async def get(self, name: str) -> AgentView:
        """Read one agent; UnknownAgent if no live process has it."""
        return find_agent(await self.list(), name)
