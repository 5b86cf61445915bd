"""The CPU time of all processes so far: ended processes stay in the sum, so that it never falls."""

from __future__ import annotations

import threading


class Spending:
    """Processes are added and removed on one thread, their measured CPU time on another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._living: dict[int, float] = {}
        self._new = 0.0

    def began(self, pid: int) -> None:
        """Count a process from here on."""
        with self._lock:
            self._living[pid] = 0.0

    def saw(self, pid: int, seconds: float) -> None:
        """Note the CPU time of a process since it began; ignored if the process has ended."""
        with self._lock:
            before = self._living.get(pid)
            if before is not None and seconds > before:
                self._living[pid] = seconds
                self._new += seconds - before

    def ended(self, pid: int) -> None:
        """Remove a process; its last measured CPU time stays counted."""
        with self._lock:
            self._living.pop(pid, None)

    def take(self) -> float:
        """Return the CPU time since the last call."""
        with self._lock:
            new, self._new = self._new, 0.0
            return new
