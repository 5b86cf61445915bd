"""The CPU time of all processes that there were: what has ended stays in the sum, so it never falls."""

from __future__ import annotations

import threading


class Spending:
    """Told of processes on one thread, and what they were seen to have used on another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, float] = {}
        self._new = 0.0

    def began(self, pid: int) -> None:
        """Count a process from here on."""
        with self._lock:
            self._living[pid] = 0.0

    def saw(self, pid: int, seconds: float) -> None:
        """Note what a process has used since it began; of one that has ended it is too late."""
        with self._lock:
            before = self._living.get(pid)
            if before is not None and seconds > before:
                self._living[pid] = seconds
                self._new += seconds - before

    def ended(self, pid: int) -> None:
        """Let go of a process; what it was last seen to have used stays counted."""
        with self._lock:
            self._living.pop(pid, None)

    def take(self) -> float:
        """What was used since this was last asked."""
        with self._lock:
            new, self._new = self._new, 0.0
            return new
