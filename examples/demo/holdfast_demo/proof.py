"""Adds up what Redis and the Event API hold at the end: every run accounted for, once, nothing left; pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast_demo.account import CANCELLED, ENDED, FAILED, SUCCEEDED, TIMED_OUT, settled_twice
from holdfast_demo.asking import AMOUNT
from holdfast_demo.check import Check
from holdfast_demo.evidence import (
    answered,
    delivered,
    steps_done_once,
    streamed_once,
    tickets_kept,
    turns_once,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast_demo.books import Audit
    from holdfast_demo.figures import Figures
    from holdfast_demo.receiver import Delivery


@dataclass(frozen=True, slots=True)
class Proof:
    """The claims, and the figures that go with them."""

    checks: tuple[Check, ...]
    statuses: Counter[str]
    submitted: int
    attempts: int
    retries: int
    duplicates: int

    @property
    def holds(self) -> bool:
        """Whether every claim holds."""
        return all(check.holds for check in self.checks)


def prove(submitted: Mapping[str, str], figures: Figures, audit: Audit, taken: Sequence[Delivery]) -> Proof:
    """Compare what was submitted (run id to agent) with what Redis holds and the Event API has taken."""
    types = Counter(event.type for record in audit.records for event in record.events)
    duplicates = {r.run_id: twice for r in audit.records if (twice := settled_twice(r.events))}
    statuses = Counter(record.status for record in audit.records)
    checks = [
        _all_there(submitted, audit),
        _ended(submitted, audit, statuses),
        _dead(audit),
        _nothing_left(audit),
        _once(audit, types, duplicates),
        _survived(figures.shaken, audit),
        steps_done_once(figures.shaken, audit),
        *([answered(figures.asked, {"paid": AMOUNT}, audit)] if figures.asked else []),
        *([streamed_once(figures.streamed, audit)] if figures.streamed else []),
        *([turns_once(figures.turns, audit)] if figures.turns else []),
        *([tickets_kept(figures.kept)] if figures.kept else []),
        delivered(taken, audit),
    ]
    return Proof(
        checks=tuple(checks),
        statuses=statuses,
        submitted=len(submitted),
        attempts=types["started"],
        retries=types["retrying"],
        duplicates=sum(map(len, duplicates.values())),
    )


def _all_there(submitted: Mapping[str, str], audit: Audit) -> Check:
    lost = [
        f"{run_id} ({agent}) is not in Redis"
        for run_id, agent in submitted.items()
        if run_id not in audit.known
    ]
    extra = [f"{run_id} is in Redis, but nobody submitted it" for run_id in audit.known - set(submitted)]
    return Check(
        f"{len(audit.known)} runs are in Redis, exactly the {len(submitted)} submitted", (*lost, *extra)
    )


def _ended(submitted: Mapping[str, str], audit: Audit, statuses: Counter[str]) -> Check:
    dead = statuses[FAILED] + statuses[TIMED_OUT]
    claim = (
        f"{len(submitted)} submitted = {statuses[SUCCEEDED]} succeeded + {dead} in the dead letters "
        f"+ {statuses[CANCELLED]} cancelled"
    )
    open_runs = [
        f"{record.run_id} ({submitted[record.run_id]}) is {record.status}"
        for record in audit.records
        if record.status not in ENDED
    ]
    return Check(claim, tuple(open_runs))


def _dead(audit: Audit) -> Check:
    failed = Counter(record.run_id for record in audit.records if record.status in {FAILED, TIMED_OUT})
    letters = Counter(audit.dead)
    wrong = [
        f"{run_id}: {letters[run_id]} dead letters for {failed[run_id]} failures"
        for run_id in failed | letters
        if letters[run_id] != failed[run_id]
    ]
    return Check("every failed run has its one dead letter, and nobody else has one", tuple(wrong))


def _nothing_left(audit: Audit) -> Check:
    left = [f"lane {lane} still has {count} entries" for lane, count in audit.entries.items() if count]
    left += [f"lane {lane} still has {count} pending" for lane, count in audit.pending.items() if count]
    if audit.delayed:
        left.append(f"{audit.delayed} runs are still delayed")
    return Check(
        f"the {len(audit.entries)} lanes are empty, nothing is pending, nothing is delayed", tuple(left)
    )


def _once(audit: Audit, types: Counter[str], duplicates: Mapping[str, list[int]]) -> Check:
    wrong = [f"{run_id} was settled twice under fence {fences}" for run_id, fences in duplicates.items()]
    for record in audit.records:
        ends = [event.type for event in record.events if event.type in ENDED]
        if ends != [record.status]:
            wrong.append(f"{record.run_id} is {record.status}, but its feed ends with {ends or 'nothing'}")
    claim = f"{types['started']} attempts, each under its own fence: nothing was settled twice"
    return Check(claim, tuple(wrong))


def _survived(shaken: Mapping[str, int], audit: Audit) -> Check:
    workers: list[str] = []
    wrong: list[str] = []
    for record in audit.records:
        fence = shaken.get(record.run_id)
        if fence is None:
            continue
        starts = [event.data for event in record.events if event.type == "started"]
        if not starts:
            wrong.append(f"{record.run_id} was never started")
            continue
        owners = " → ".join(str(start["owner"]) for start in starts)
        workers.append(f"{owners} (fence {fence} → {starts[-1]['fence']})")
        if record.status != SUCCEEDED or int(starts[-1]["fence"]) <= fence:
            wrong.append(
                f"{record.run_id} is {record.status} under fence {starts[-1]['fence']}, it had {fence}"
            )
    return Check(f"survived: {', '.join(workers)}", tuple(wrong))
