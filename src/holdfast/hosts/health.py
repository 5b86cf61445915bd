"""How agents are, by what they say of themselves: one that says nothing for long is not well either."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Health:
    """What was heard of each agent since it began."""

    def __init__(self, every_seconds: float, unhealthy_after: int) -> None:
        self._patience = every_seconds * unhealthy_after
        self._most = unhealthy_after
        self._heard: dict[str, float] = {}
        self._bad: dict[str, tuple[int, str]] = {}

    def began(self, agent_id: str) -> None:
        """Forget what was said before; only one that has ever spoken is missed when it falls silent."""
        self._heard.pop(agent_id, None)
        self._bad.pop(agent_id, None)

    def heard(self, agent_id: str, said: Mapping[str, Any], now: float | None = None) -> None:
        """Note what an agent said of itself."""
        self._heard[agent_id] = time.monotonic() if now is None else now
        if said.get("well"):
            self._bad.pop(agent_id, None)
        else:
            count, _ = self._bad.get(agent_id, (0, ""))
            self._bad[agent_id] = (count + 1, str(said.get("error", "")))

    def unwell(self, now: float) -> list[tuple[str, str]]:
        """Those that said so too often in a row, or fell silent, and why; each is told of once."""
        found = [
            (agent_id, f"it said so {count} times: {error or 'health() was false'}")
            for agent_id, (count, error) in self._bad.items()
            if count >= self._most
        ]
        found += [
            (agent_id, f"it has said nothing for {now - at:.0f} s")
            for agent_id, at in self._heard.items()
            if now - at > self._patience and agent_id not in dict(found)
        ]
        for agent_id, _ in found:
            self.began(agent_id)
        return found
