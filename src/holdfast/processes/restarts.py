"""Whether and when an agent that exited unexpectedly is restarted: pure, so that a table can test it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.reliability.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most ``max_restarts`` within ``window_seconds``, each after twice the wait of the one before."""

    max_restarts: int = 3
    window_seconds: float = 300.0
    base_seconds: float = 0.5
    cap_seconds: float = 30.0

    def recent(self, restarted_at: Sequence[float], now: float) -> tuple[float, ...]:
        """Return the restarts that still count."""
        return tuple(at for at in restarted_at if now - at < self.window_seconds)

    def delay(self, restarted_at: Sequence[float], now: float) -> float | None:
        """Return how long to wait before the next restart; None after ``max_restarts``."""
        count = len(self.recent(restarted_at, now))
        return None if count >= self.max_restarts else self.backoff(count)

    def backoff(self, count: int) -> float:
        """Return the delay after ``count`` earlier restarts."""
        return backoff_seconds(count + 1, self.base_seconds, self.cap_seconds)
