"""What the outside sees of registered agents."""

from __future__ import annotations

from typing import Any

import msgspec


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One registered agent, as a process announces it; limits that are null are the queue's."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None
    """JSON schema of its input; null if its annotation is no model."""
    result_schema: dict[str, Any] | None = None
    isolation: str = ""
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    concurrency: int | None = None


class AgentView(AgentEntry, frozen=True, kw_only=True):
    """One registered agent, and who serves it; ``served_by`` names at most 100 of its ``workers``."""

    queues: list[str] = []
    served_by: list[str] = []
    workers: int = 0


class AgentList(msgspec.Struct, frozen=True):
    """Every registered agent, by name; the note says why there is none, or that nobody serves them."""

    agents: list[AgentView]
    note: str = ""
