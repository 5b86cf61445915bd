"""What was measured and seen on the way, for the proof and the summary; times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that was interrupted with a question, and the answer."""

    run_id: str
    question: str
    answer: str
    waited: float
    """Seconds until the answer, during which no worker was held."""
    took: float
    """From the answer to the end of the run."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """What a follower of a run got from one replica, and from the other after that one was killed."""

    run_id: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Every event as it came."""
        return self.before + self.after


@dataclass(frozen=True, slots=True)
class Outage:
    """A time without the Event API."""

    lasted: float
    refused: int
    """Deliveries that were answered 500; while it was down, none got that far."""
    runs: int
    """Runs that ended meanwhile."""
    waiting: int
    """Events that had happened by its end and were not delivered."""
    caught_up: float
    """From its end until they were."""


@dataclass(frozen=True, slots=True)
class Turns:
    """Two schedules: one that submitted runs and was paused for a while, one that was triggered by hand."""

    submitting: str
    triggered: str
    paused_at: float
    resumed_at: float


@dataclass(frozen=True, slots=True)
class Kept:
    """Residents that lost their host, and what each of them has in its ledger at the end."""

    victim: str
    orphans: tuple[str, ...]
    took: float
    """From kill -9 until all of them lived elsewhere."""
    tickets: int
    """How many tickets each was handed, numbered from 1."""
    ledgers: dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Figures:
    """All of it."""

    recovery: float | None = None
    hand_back: float | None = None
    took: float = 0.0
    shaken: dict[str, int] = field(default_factory=dict[str, int])
    """The runs that lost their worker, and the fence they had then."""
    asked: Asked | None = None
    streamed: Streamed | None = None
    outage: Outage | None = None
    turns: Turns | None = None
    kept: Kept | None = None
