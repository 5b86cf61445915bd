"""The way from a schedule to a run, for whoever has both: their rooms know nothing of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.runs.run import Submission
from holdfast.schedules.submission import run_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runs.queue import RunQueue
    from holdfast.runs.run import Ticket
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.submission import Submit


def submitter(queue_named: Callable[[str], RunQueue]) -> Submit:
    """Return what submits a schedule's turn to its target, in the queue that ``queue_named`` finds."""

    async def submit(schedule: Schedule, turn: str) -> Ticket:
        queue = queue_named(schedule.target)
        return await queue.submit(msgspec.convert(run_request(schedule, turn), Submission))

    return submit
