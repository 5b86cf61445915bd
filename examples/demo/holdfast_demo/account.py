"""What the feeds of the runs tell, added up as it comes. Pure: it knows no Redis and no terminal."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

WAITING, RUNNING, DELAYED, ASKING = "waiting", "running", "delayed", "asking"
SUCCEEDED, FAILED, TIMED_OUT, CANCELLED = "succeeded", "failed", "timed_out", "cancelled"
ENDED = frozenset({SUCCEEDED, FAILED, TIMED_OUT, CANCELLED})
SETTLED = ENDED | {"retrying", "interrupted"}
"""The events that end an attempt for good, each under the fence of the attempt's start."""

_STATES = {
    "submitted": WAITING,
    "started": RUNNING,
    "retrying": DELAYED,
    "queued": WAITING,
    "handed_back": WAITING,
    "interrupted": ASKING,
    "resumed": WAITING,
    "reclaimed": WAITING,
    **{word: word for word in ENDED},
}
_NOISE = frozenset({"chunk", "working"})
_KEPT = 50


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a run's feed; ``at`` is Redis time in seconds."""

    run_id: str
    at: float
    type: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""


@dataclass(slots=True)
class Told:
    """One run, as far as its feed goes."""

    run_id: str
    agent: str
    state: str = WAITING
    owner: str = ""
    fence: int = 0
    starts: int = 0
    events: list[Event] = field(default_factory=list[Event])

    def last(self, kind: str) -> Event | None:
        """The latest event of a type."""
        return next((event for event in reversed(self.events) if event.type == kind), None)


class Account:
    """All runs that were submitted, and the latest of what happened to them."""

    def __init__(self) -> None:
        self.runs: dict[str, Told] = {}
        self.recent: deque[Event] = deque(maxlen=_KEPT)

    def expect(self, run_id: str, agent: str) -> Told:
        """Add a run that was just submitted."""
        return self.runs.setdefault(run_id, Told(run_id, agent))

    def apply(self, event: Event) -> None:
        """Add what happened."""
        run = self.runs[event.run_id]
        run.events.append(event)
        run.state = _STATES.get(event.type, run.state)
        if event.type == "started":
            run.starts += 1
            run.owner, run.fence = str(event.data["owner"]), int(event.data["fence"])
        if event.type not in _NOISE:  # they would push everything else off the screen
            self.recent.append(event)

    def states(self, agent: str = "") -> Counter[str]:
        """How many runs are in which state, of one agent or of all."""
        return Counter(run.state for run in self.runs.values() if not agent or run.agent == agent)

    def held_by(self, owner: str) -> Counter[str]:
        """What a worker runs now, by agent."""
        held = (run.agent for run in self.runs.values() if run.state == RUNNING and run.owner == owner)
        return Counter(held)

    @property
    def all_ended(self) -> bool:
        """Whether nothing more will happen."""
        return all(run.state in ENDED for run in self.runs.values())


def settled_twice(events: list[Event]) -> list[int]:
    """Return the fences under which a run was started or settled more than once: there must be none."""
    starts: Counter[int] = Counter()
    settles: Counter[int] = Counter()
    fence = 0
    for event in events:
        if event.type == "started":
            fence = int(event.data["fence"])
            starts[fence] += 1
        elif event.type in SETTLED:
            settles[fence] += 1
    return sorted(fence for fence in starts | settles if max(starts[fence], settles[fence]) > 1)
