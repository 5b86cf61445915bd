"""The processes and agents of the demo, and its acts in order."""

from __future__ import annotations

from typing import Final

WORKERS: Final = ("worker-a", "worker-b", "worker-c")
REPLICAS: Final = ("api-a", "api-b")
SCHEDULERS: Final = ("scheduler",)
HOSTS: Final = ("host-a", "host-b")
AGENTS: Final = {
    "greet": "quick",
    "research": "slow, tells its progress",
    "lookup": "fails twice, then works",
    "refund": "poisonous: always raises",
    "draft": "streams its answer",
    "invoice": "sync, in a thread",
    "approve": "asks a person",
    "survivor": "in steps, loses its worker",
}
ACTS: Final = (
    "start",
    "submit",
    "schedule",
    "reside",
    "cancel",
    "ask",
    "stream",
    "outage",
    "kill -9",
    "SIGTERM",
    "finish",
)
START, SUBMIT, SCHEDULE, RESIDE, CANCEL, ASK, STREAM, OUTAGE, KILL, HAND_BACK, FINISH = range(len(ACTS))


def short(run_id: str) -> str:
    """The end of a run's id, which is the random part."""
    return run_id[-6:]


def milliseconds(seconds: float) -> str:
    """A short time, as precise as the ids of events are."""
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "under 1 ms"
