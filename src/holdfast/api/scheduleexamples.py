"""How ``/schedules`` is described: the name in the path, and examples of what goes in and out."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path

from holdfast.api.openapi import answers, takes
from holdfast.api.scheduleshapes import PatternRequest, SchedulesChanged, ScheduleView
from holdfast.api.shapes import ReasonRequest

Name = Annotated[
    str,
    Path(
        description="The schedule's name; a slash in it may be %2F, and must be if it ends like /next.",
        min_length=1,
        max_length=300,
        pattern="^[!-~]+$",
        examples=["nightly-report"],
    ),
]

ROW: Final[dict[str, Any]] = {
    "name": "nightly-report",
    "tenant": "acme",
    "agent": "report",
    "trigger": {"kind": "cron", "expression": "30 3 * * *", "zone": "Europe/Berlin"},
    "source": "api",
    "state": "waiting",
    "next_at": 1731033000.0,
    "triggered": False,
    "target": "",
    "priority": 5,
    "owner": "",
    "acquired_at": None,
    "deadline": None,
    "runs": 12,
    "streak": 0,
    "paused": "",
    "paused_since": None,
    "last_start": 1730946600.0,
    "last_end": 1730946603.2,
    "last_duration_ms": 3200.0,
    "last_outcome": "succeeded",
    "last_error": "TimeoutError: the warehouse does not answer",
    "last_error_at": 1730860203.2,
}
VIEW: Final[dict[str, Any]] = {
    **ROW,
    "fence": 1730946600000001,
    "revision": 1730000000000001,
    "timeout_seconds": 300.0,
    "error_seconds": None,
    "input": {"day": "yesterday"},
    "starts_at": 0.0,
    "ends_at": 0.0,
    "max_runs": 0,
    "misfire": "coalesce",
    "catch_up_most": 10,
    "overlap": "skip",
    "overlap_most": 10,
    "pause_after_failures": 5,
    "metadata": {"team": "sales"},
}
TURN: Final[dict[str, Any]] = {
    "turn": "nightly-report@1730946600.000",
    "outcome": "failed",
    "planned_at": 1730946600.0,
    "started_at": 1730946600.1,
    "ended_at": 1730946603.3,
    "duration_ms": 3200.0,
    "owner": "scheduler-7f9c",
    "fence": 1730946600000001,
    "attempt": 1,
    "manual": False,
    "error_kind": "transient",
    "error": "TimeoutError: the warehouse does not answer",
    "queue": "",
    "run_id": "",
}
READS: Final = answers(errors=(401, 403, 404, 409, 422, 503))
WRITES: Final = answers(errors=(401, 403, 404, 409, 413, 422, 503))
CHANGES: Final = {**answers(200, ScheduleView, "The schedule as it is now.", VIEW), **WRITES}
MANY: Final = {
    **answers(
        200,
        SchedulesChanged,
        "What became of those that fit.",
        {"matched": 2, "changed": 1, "names": ["nightly-report"]},
    ),
    **WRITES,
}
WHY: Final = takes(ReasonRequest, {"why": {"reason": "the database moves"}}, required=False)
WHICH: Final = takes(PatternRequest, {"some": {"pattern": "nightly-*", "reason": "the database moves"}})
