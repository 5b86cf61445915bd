"""Why a schedule does not run now, in one sentence, from its state in Redis and the settings here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.config.durations import span
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.schedule import family
from holdfast.schedules.selection import Shards
from holdfast.schedules.submission import unserved_queue

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.schedules.entries import Entry
    from holdfast.schedules.schedule import Schedule
    from holdfast.schedules.selection import Patterns


def explain(
    entry: Entry,
    schedule: Schedule,
    *,
    now: float,
    patterns: Patterns,
    schedulers: dict[str, dict[str, str]],
    sharded: bool = False,
    queues: Collection[str] | None = None,
) -> str:
    """Return the reason; ``schedulers`` are the live ones, by name, with their fields.

    ``queues`` are those that workers serve; None if unknown.
    """
    schedulers = {name: fields for name, fields in schedulers.items() if fields.get("state") != "disabled"}
    if sharded and schedulers:
        first, *others = schedulers
        owner = Shards(first, others).owner(entry.name)
        schedulers = {owner: schedulers[owner]}
    match entry.state:
        case ScheduleState.RUNNING:
            since = now - (entry.acquired_at or now)
            return f"it runs since {since:.1f} s, in {entry.owner or 'nobody'} under fence {entry.fence}"
        case ScheduleState.PAUSED:
            return f"it is paused: {entry.paused or 'no reason was given'}"
        case ScheduleState.DONE:
            return "it is done: no turn is left"
        case ScheduleState.MISSING:
            return "it has lost its place: the next reconcile of any scheduler brings it back"
        case ScheduleState.WAITING:
            text = _waits(entry, schedule, now, patterns, schedulers)
            if schedule.target and queues is not None and schedule.target not in queues:
                text += f"; but its runs stay where they are: {unserved_queue(schedule.target, queues)}"
            return text


def _waits(
    entry: Entry, schedule: Schedule, now: float, patterns: Patterns, schedulers: dict[str, dict[str, str]]
) -> str:
    able = {name: fields for name, fields in schedulers.items() if _knows(fields, schedule)}
    hindrance = _hindrance(entry, schedule, patterns, able, any_live=bool(schedulers))
    if entry.next_at is not None and entry.next_at > now:
        text = f"it is not due: its next turn is in {span(entry.next_at - now)}"
        return f"{text}; and then {hindrance}" if hindrance else text
    if hindrance:
        return f"it is due, but {hindrance}"
    full = {name for name, fields in able.items() if _full(fields)}
    if len(full) == len(able):
        return f"it is due, but no permit is free in {', '.join(sorted(full))}"
    return _should_run({name: fields for name, fields in able.items() if name not in full})


def _hindrance(
    entry: Entry, schedule: Schedule, patterns: Patterns, able: Collection[str], *, any_live: bool
) -> str:
    """Return what keeps every scheduler from running it until a person changes that; or nothing."""
    name = family(entry.name)
    refusal = patterns.refusal(name)
    if refusal:
        return f"{refusal} keeps it from being run"
    if not any_live:
        return "no live scheduler runs schedules: start one with `holdfast scheduler --app …`"
    if able:
        return ""
    force = "" if schedule.source == "api" else " --force"
    return (
        f"no live scheduler has the agent {schedule.agent!r}: deploy it, or end the schedule by "
        f"`holdfast schedules remove {name}{force}`"
    )


def _should_run(free: dict[str, dict[str, str]]) -> str:
    """Return which schedulers with the agent and a permit should run it, or the breaker that prevents it."""
    ready = [
        name for name, fields in free.items() if not fields.get("breakers")
    ]  # guard: explain-open-breaker
    if ready:
        return f"it is due: {' or '.join(sorted(ready))} should take it at once"
    breakers = "; ".join(f"{name}: {fields['breakers']}" for name, fields in sorted(free.items()))
    return f"it is due, but a circuit breaker keeps it from being acquired ({breakers})"


def _knows(fields: dict[str, str], schedule: Schedule) -> bool:
    return bool(schedule.target) or schedule.agent in fields.get("agents", "").split(",")


def _full(fields: dict[str, str]) -> bool:
    capacity, load = fields.get("capacity", "0"), fields.get("load", "0")
    return capacity.isdigit() and load.isdigit() and 0 < int(capacity) <= int(load)
