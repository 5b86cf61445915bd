"""A process of the demo, seen from outside: its log, its signals and its exit code."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path


@dataclass(slots=True)
class Watched:
    """One worker or api replica."""

    name: str
    kind: str
    process: subprocess.Popen[bytes]
    log: Path
    fate: str = ""
    _ready_line: dict[str, Any] = field(default_factory=dict[str, Any])
    """Its line in the log that it is ready."""

    @property
    def lives(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether its log has the line that it is ready."""
        if not self._ready_line:
            mark = f'"{self.kind} ready"'.encode()
            lines = self.log.read_bytes().splitlines(keepends=True)
            found = [line for line in lines if mark in line and line.endswith(b"\n")]
            self._ready_line = json.loads(found[0]) if found else {}
        return bool(self._ready_line)

    @property
    def url(self) -> str:
        """Where a replica is called, once it is ready."""
        return f"http://127.0.0.1:{self._ready_line['port']}" if self.ready else ""

    def kill(self) -> None:
        """Kill it as a crash would: it can't say or save anything."""
        self.fate = "kill -9"
        self.process.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to leave, as Kubernetes does."""
        self.fate = "SIGTERM"
        self.process.send_signal(signal.SIGTERM)
