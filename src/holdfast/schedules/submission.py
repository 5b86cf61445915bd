"""Submitting a firing as a run to its schedule's target queue, and warnings of queues without a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.schedules.schedule import family
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.redis.members import Member
    from holdfast.schedules.schedule import Schedule

_URGENT: Final = 3
_PATIENT: Final = 7
"""Classes of priority up to here go to the high lane of a queue, from there to the low one."""
_NAMES_LOGGED: Final = 3

_log = get_logger(__name__)


class Submitted(Protocol):
    """The receipt for a run: its id, and whether it is new."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        ...

    @property
    def fresh(self) -> bool:
        """False if the run was known before."""
        ...


class Submit(Protocol):
    """Submits a run of a schedule's agent to its target queue."""

    async def __call__(self, schedule: Schedule, turn: str, /) -> Submitted:
        """Submit once: the same ``turn`` again is the same run."""
        ...


def run_request(schedule: Schedule, turn: str) -> dict[str, Any]:
    """Return the fields of the submission that asks for a run: the same turn has the same idempotency key."""
    return {
        "agent": schedule.agent,
        "input": schedule.input,
        "priority": _lane(schedule.priority),
        "tenant": schedule.tenant,
        "idempotency_key": f"schedule:{turn}",
        "metadata": {**schedule.metadata, "schedule": family(schedule.name), "turn": turn},
    }


def _lane(priority: int) -> str:
    if priority <= _URGENT:
        return "high"
    return "low" if priority >= _PATIENT else "normal"


class Targets:
    """Warns of schedules whose target is none of the known queues: of each once."""

    def __init__(self, known: Collection[str] | None = None) -> None:
        """Take the queues of the settings; None if they are unknown: then it warns of nothing."""
        self._known = known
        self._warned: set[tuple[str, str]] = set()

    def look(self, schedules: Iterable[Schedule]) -> None:
        """Log one line per unserved queue, with some of the schedules that were not logged before."""
        if self._known is None:
            return
        unserved: dict[str, list[str]] = {}
        for one in schedules:
            key = one.target, one.name
            if not one.target or one.target in self._known or key in self._warned:
                continue
            self._warned.add(key)
            unserved.setdefault(one.target, []).append(one.name)
        for queue, names in unserved.items():
            _log.warning(
                unserved_queue(queue, self._known),
                schedule=", ".join(names[:_NAMES_LOGGED]),
                schedules=len(names),
                queue=queue,
                known=sorted(self._known),
                advice="mend the schedule's target, or let a worker serve that queue",
            )


def unserved_queue(queue: str, known: Collection[str]) -> str:
    """Return the text that a queue is none of the known ones."""
    return f"nobody serves queue {queue!r} by these settings; known are {', '.join(sorted(known))}"


def served_queues(named: Iterable[str], members: Iterable[Member]) -> set[str]:
    """Return the queues that the settings name, and those that live workers serve."""
    served = {
        queue for one in members if one.kind == "worker" for queue in one.fields.get("queues", "").split(",")
    }
    return (set(named) | served) - {""}
