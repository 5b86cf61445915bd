"""For tests of agents' processes: wait for what happens to them, and look at them from outside."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from holdfast.processes import procfs
from holdfast.processes.info import EventKind, ProcessEvent
from holdfast.processes.processes import Processes

PATIENCE = 30.0


def is_gone(pid: int) -> bool:
    return procfs.start_time(pid) is None


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


class Heard:
    """The events of some processes, in order."""

    def __init__(self, processes: Processes) -> None:
        self._events: queue.SimpleQueue[ProcessEvent] = queue.SimpleQueue()
        self.leave = processes.subscribe(self._events.put)

    def next(self, agent_id: str, kind: EventKind, **wanted: Any) -> ProcessEvent:
        """Wait for the next event of that kind, and skip what came before it."""
        while True:
            event = self._events.get(timeout=PATIENCE)
            told = all(getattr(event.process, name) == value for name, value in wanted.items())
            if event.process.agent_id == agent_id and event.kind is kind and told:
                return event

    def report(self, agent_id: str, report: str) -> ProcessEvent:
        while (event := self.next(agent_id, EventKind.REPORT)).report != report:
            pass
        return event
