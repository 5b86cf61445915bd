"""Registered agents over Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.redis.translate import translate_errors

if TYPE_CHECKING:
    from holdfast.operations.agents import AgentOperations
    from holdfast.views.agents import AgentView


class RedisAgents:
    """The registered agents of the processes on one Redis."""

    def __init__(self, agents: AgentOperations, url: str) -> None:
        self._agents = agents
        self._url = url

    async def list(self) -> list[AgentView]:
        """Read all of them, by name."""
        with translate_errors(self._url):
            return (await self._agents.list()).agents

    async def get(self, name: str) -> AgentView:
        """Read one."""
        with translate_errors(self._url):
            return await self._agents.get(name)
