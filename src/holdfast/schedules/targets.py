"""Targets: a queue that nobody serves takes runs all the same, and their schedules seem to go well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from holdfast.redis.members import Member
    from holdfast.schedules.schedule import Schedule

_NAMES_TOLD: Final = 3

_log = get_logger(__name__)


class Targets:
    """Warns of schedules whose target is none of the known queues: of each once."""

    def __init__(self, known: Collection[str] | None = None) -> None:
        """Take the queues of the settings; None is not to know them, and to warn of nothing."""
        self._known = known
        self._told: set[tuple[str, str]] = set()

    def look(self, schedules: Iterable[Schedule]) -> None:
        """Log one line per unserved queue that names some of the schedules which were not told before."""
        if self._known is None:
            return
        unserved: dict[str, list[str]] = {}
        for one in schedules:
            key = one.target, one.name
            if not one.target or one.target in self._known or key in self._told:
                continue
            self._told.add(key)
            unserved.setdefault(one.target, []).append(one.name)
        for queue, names in unserved.items():
            _log.warning(
                unserved_queue(queue, self._known),
                schedule=", ".join(names[:_NAMES_TOLD]),
                schedules=len(names),
                queue=queue,
                known=sorted(self._known),
                advice="mend the schedule's target, or let a worker serve that queue",
            )


def unserved_queue(queue: str, known: Collection[str]) -> str:
    """Say that a queue is none of the known ones."""
    return f"nobody serves queue {queue!r} by these settings; known are {', '.join(sorted(known))}"


def served_queues(named: Iterable[str], members: Iterable[Member]) -> set[str]:
    """The queues that the settings name, and those that live workers serve by theirs."""
    served = {
        queue for one in members if one.kind == "worker" for queue in one.fields.get("queues", "").split(",")
    }
    return (set(named) | served) - {""}
