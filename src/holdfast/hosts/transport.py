"""Calls to hosts, over gRPC or in one process, and the meaning of a failed call."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from holdfast.hosts.agent import Agent


LOCAL: Final = "local:"
"""The prefix of the address of a host inside a program, which no call can reach."""


class Trouble(enum.Enum):
    """The meaning of a failed call for its caller."""

    NEXT = "try another host"
    HELD = "it runs on another host"
    STALE = "it was placed anew, or is not wanted any more"
    HERE = "it is not here"
    INVALID = "no host will take this"
    FAILED = "it could not be started"


class CallFailed(Exception):
    """A call to a host failed."""

    def __init__(self, address: str, trouble: Trouble, detail: str, code: str = "") -> None:
        self.address = address
        self.trouble = trouble
        self.detail = detail
        super().__init__(f"host {address}: {detail}" + (f" ({code})" if code else ""))


class HostCalls(Protocol):
    """The transport of an engine: gRPC (``remote.py``), or directly in one process (``local.py``)."""

    async def create(self, address: str, agent: Agent, fence: int) -> None:
        """Start an agent on a host under the fence of its record; return when it is ready."""
        ...

    async def stop(
        self, address: str, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Stop an agent on a host; with ``moving`` it stays wanted, for another host."""
        ...

    async def close(self) -> None:
        """Close the channels."""
        ...
