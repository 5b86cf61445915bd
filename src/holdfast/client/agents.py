"""Registered agents as a client sees them: what they are, what they take, and who serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.agents.spec import require_name
from holdfast.errors import AppError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.views.agents import AgentView

_OF_RESIDENTS: Final = frozenset({"start", "stop", "move", "send", "ask", "hosts"})


def moved(name: str) -> AttributeError:
    """Return the error for a method that is missing here; it names that of residents, if there is one."""
    if name in _OF_RESIDENTS:
        return AttributeError(f"long-lived agents are residents now: use client.residents.{name}")
    return AttributeError(f"client.agents has no {name!r}: it has list and get")


class AgentTransport(Protocol):
    """What a transport can do with registered agents."""

    async def list(self) -> list[AgentView]:
        """Read all of them, by name."""
        ...

    async def get(self, name: str) -> AgentView:
        """Read one."""
        ...


class Agents:
    """``client.agents``: the agents that live processes have registered (residents: ``client.residents``)."""

    def __init__(self, transport: Callable[[], AgentTransport]) -> None:
        self._transport = transport

    async def list(self) -> list[AgentView]:
        """Read every registered agent, by name; none while no process that has one is alive."""
        return await self._transport().list()

    async def get(self, name: str) -> AgentView:
        """Read one agent; UnknownAgent if no live process has it."""
        try:
            require_name(name, "agent name")
        except AppError as exc:
            raise InputError(f"no agent can be called so: {exc}") from None
        return await self._transport().get(name)

    if not TYPE_CHECKING:  # a type checker reports what is not there by itself

        def __getattr__(self, name: str) -> Any:
            raise moved(name)
