"""What speaks for the promises that need more than a count of runs: pure, over what was read back."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from holdfast_demo.account import SUCCEEDED, settled_twice
from holdfast_demo.check import Check

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast_demo.account import Event
    from holdfast_demo.books import Audit, Record
    from holdfast_demo.figures import Asked, Kept, Streamed, Turns
    from holdfast_demo.receiver import Delivery


def steps_done_once(shaken: Collection[str], audit: Audit) -> Check:
    """No step that was finished when its worker went is done again."""
    finished, wrong = 0, list[str]()
    for record in audit.records:
        if record.run_id not in shaken:
            continue
        before, repeated = _steps(record.events)
        finished += len(before)
        wrong += [f"{record.run_id}: step {step} was finished, and done again" for step in repeated]
        if not before:
            wrong.append(f"{record.run_id} had finished no step when it lost its worker")
    claim = (
        f"{finished} steps of {len(shaken)} runs were finished when their workers went: none was done again"
    )
    return Check(claim, tuple(wrong))


def _steps(events: Sequence[Event]) -> tuple[set[int], list[int]]:
    """The steps that were finished in an attempt before the last, and those that were done after that."""
    finished, ours, repeated = set[int](), set[int](), list[int]()
    for event in events:
        if event.type == "started":
            finished |= ours
            ours = set[int]()
        elif event.type == "progress":
            ours.add(int(event.data["step"]))
        elif event.type == "working" and int(event.data["step"]) in finished | ours:
            repeated.append(int(event.data["step"]))
    return finished, repeated


def answered(asked: Asked, result: object, audit: Audit) -> Check:
    """The interrupted run got the answer, and went on with it."""
    claim = f'asked "{asked.question}", answered "{asked.answer}": {msgspec.json.encode(result).decode()}'
    record = next((each for each in audit.records if each.run_id == asked.run_id), None)
    if record is None:
        return Check(claim, (f"{asked.run_id} is not in Redis",))
    wrong: list[str] = []
    expected = ["submitted", "started", "interrupted", "resumed", "started", "succeeded"]
    if (found := [event.type for event in record.events]) != expected:
        wrong.append(f"its feed has {', '.join(found)}")
    if [event.data.get("value") for event in record.events if event.type == "resumed"] != [asked.answer]:
        wrong.append("its feed has another answer")
    if record.status != SUCCEEDED or record.result != result:
        wrong.append(f"it is {record.status} with {record.result}")
    return Check(claim, tuple(wrong))


def streamed_once(streamed: Streamed, audit: Audit) -> Check:
    """The follower saw the whole feed, each event once and in order."""
    feed = next((_ids(each) for each in audit.records if each.run_id == streamed.run_id), list[str]())
    seen = list(streamed.ids)
    wrong: list[str] = []
    if missed := [each for each in feed if each not in seen]:
        wrong.append(f"missed: {', '.join(missed)}")
    if len(seen) != len(set(seen)):
        wrong.append("events were seen twice")
    if not wrong and seen != feed:
        wrong.append("events were seen out of order, or are not in the feed")
    if not streamed.before or not streamed.after:
        wrong.append("the stream was not resumed in its middle")
    parts = f"{len(streamed.before)} + {len(streamed.after)}"
    return Check(f"{parts} events followed over two replicas: none missed, none seen twice", tuple(wrong))


def turns_once(turns: Turns, audit: Audit) -> Check:
    """Every turn of the schedule is one run, there are as many as its record says, and none in its pause."""
    runs = [run for run in audit.scheduled if run.schedule == turns.submitting]
    record, other = audit.turns.get(turns.submitting, {}), audit.turns.get(turns.triggered, {})
    wrong = [
        f"turn {turn} is {count} runs" for turn, count in Counter(r.turn for r in runs).items() if count > 1
    ]
    for run in runs:
        if run.status != SUCCEEDED or settled_twice(run.events):
            wrong.append(f"{run.run_id} of turn {run.turn} is {run.status}")
        if turns.paused_at < run.asked_at < turns.resumed_at:
            wrong.append(f"{run.run_id} was asked for while {turns.submitting} was paused")
    if len(runs) != int(record.get("runs", -1)) or not runs:
        wrong.append(
            f"{turns.submitting} had {record.get('runs', 'no')} turns, but asked for {len(runs)} runs"
        )
    if other.get("last_outcome") != SUCCEEDED or int(other.get("runs", 0)):
        wrong.append(f"{turns.triggered} was triggered once, but its record says {other}")
    claim = (
        f"{len(runs)} turns of {turns.submitting}, each one run: none doubled, none while it was paused; "
        f"{turns.triggered} ran once, by hand"
    )
    return Check(claim, tuple(wrong))


def tickets_kept(kept: Kept) -> Check:
    """Every ticket is in the ledger of its resident, once and in its place, whatever became of its host."""
    expected = list(range(1, kept.tickets + 1))
    wrong = [
        f"{name} has the tickets {', '.join(map(str, ledger)) or 'none'}"
        for name, ledger in kept.ledgers.items()
        if list(ledger) != expected
    ]
    if not kept.orphans:
        wrong.append(f"{kept.victim} had no residents when it was killed")
    count = sum(map(len, kept.ledgers.values()))
    return Check(
        f"{count} tickets are in the ledgers of {len(kept.ledgers)} residents, each once and in order; "
        f"{len(kept.orphans)} of them lost their host",
        tuple(wrong),
    )


def delivered(taken: Sequence[Delivery], audit: Audit) -> Check:
    """The Event API got every event of every run in order; only the latest one of a run may come again."""
    by_run: defaultdict[str, list[str]] = defaultdict(list)
    for delivery in taken:
        by_run[delivery.run_id].append(delivery.id)
    wrong: list[str] = []
    repeats = 0
    for record in audit.records:
        came = by_run.pop(record.run_id, [])
        once = [event_id for event_id, _ in groupby(came)]
        repeats += len(came) - len(once)
        if once != (feed := _ids(record)):
            lost = len(set(feed) - set(once))
            wrong.append(
                f"{record.run_id}: " + (f"{lost} of {len(feed)} events lost" if lost else "out of order")
            )
    for run in audit.scheduled:  # they come and go beside what is counted here
        by_run.pop(run.run_id, None)
    wrong += [f"{run_id}: events of a run that nobody submitted" for run_id in by_run]
    if audit.undelivered:
        wrong.append(f"{audit.undelivered} events were given up")
    count = sum(len(record.events) for record in audit.records)
    again = f", {repeats} of them twice" if repeats else ""
    return Check(f"{count} events reached the Event API{again}: all, in order for each run", tuple(wrong))


def _ids(record: Record) -> list[str]:
    return [event.id for event in record.events]
