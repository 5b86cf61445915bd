"""Calls to hosts, whatever carries them: what a host is asked for, and what its refusal means."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from holdfast.hosts.agent import Agent


LOCAL: Final = "local:"
"""How the address of a host begins that is inside a program, where no call reaches it."""


class Trouble(enum.Enum):
    """What a failed call means for its caller."""

    NEXT = "ask another host"
    HELD = "it runs on another host"
    STALE = "it was placed anew, or is not wanted any more"
    HERE = "it is not here"
    INVALID = "no host will take this"
    FAILED = "it could not be started"


class CallFailed(Exception):
    """A host did not do what it was asked for."""

    def __init__(self, address: str, trouble: Trouble, detail: str, code: str = "") -> None:
        self.address = address
        self.trouble = trouble
        self.detail = detail
        super().__init__(f"host {address}: {detail}" + (f" ({code})" if code else ""))


class Calls(Protocol):
    """How an engine reaches hosts: over gRPC (``remote.py``), or directly in one process (``local.py``)."""

    async def create(self, address: str, agent: Agent, fence: int) -> None:
        """Have a host start an agent under the fence that was read of it; returns when it can receive."""
        ...

    async def stop(
        self, address: str, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Have a host stop an agent; one that moves is wanted elsewhere."""
        ...

    async def close(self) -> None:
        """Call nobody any more."""
        ...
