"""The health of agents by their own reports; an agent that stops reporting is unhealthy too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class AgentHealth:
    """The health reports of each agent since it began."""

    def __init__(self, every_seconds: float, unhealthy_after: int) -> None:
        self._max_silence = every_seconds * unhealthy_after
        self._most = unhealthy_after
        self._last_report: dict[str, float] = {}
        self._bad: dict[str, tuple[int, str]] = {}

    def began(self, agent_id: str) -> None:
        """Drop earlier reports; only an agent that has reported once is expected to report again."""
        self._last_report.pop(agent_id, None)
        self._bad.pop(agent_id, None)

    def heard(self, agent_id: str, fields: Mapping[str, Any], now: float | None = None) -> None:
        """Record a health report of an agent."""
        self._last_report[agent_id] = time.monotonic() if now is None else now
        if fields.get("well"):
            self._bad.pop(agent_id, None)
        else:
            count, _ = self._bad.get(agent_id, (0, ""))
            self._bad[agent_id] = (count + 1, str(fields.get("error", "")))

    def unwell(self, now: float) -> list[tuple[str, str]]:
        """Return each unhealthy agent once, with the reason: failed reports in a row, or none for long."""
        found = [
            (agent_id, f"{count} failed health checks: {error or 'health() was false'}")
            for agent_id, (count, error) in self._bad.items()
            if count >= self._most
        ]
        found += [
            (agent_id, f"no health report for {now - at:.0f} s")
            for agent_id, at in self._last_report.items()
            if now - at > self._max_silence and agent_id not in dict(found)
        ]
        for agent_id, _ in found:
            self.began(agent_id)
        return found
