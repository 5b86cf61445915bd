"""Why a schedule does not run now, in one sentence, from what Redis knows and what is configured here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.schedules.entries import State
from holdfast.schedules.schedule import family
from holdfast.schedules.shards import Shards

if TYPE_CHECKING:
    from holdfast.schedules.entries import Entry
    from holdfast.schedules.patterns import Patterns
    from holdfast.schedules.schedule import Schedule


def explain(
    entry: Entry,
    schedule: Schedule,
    *,
    now: float,
    patterns: Patterns,
    schedulers: dict[str, dict[str, str]],
    sharded: bool = False,
) -> str:
    """Return the reason; ``schedulers`` are the live ones, by name, with what they say of themselves."""
    if sharded and schedulers:
        first, *others = schedulers
        owner = Shards(first, others).owner(entry.name)
        schedulers = {owner: schedulers[owner]}
    match entry.state:
        case State.RUNNING:
            since = now - (entry.acquired_at or now)
            return f"it runs since {since:.1f} s, in {entry.owner or 'nobody'} under fence {entry.fence}"
        case State.PAUSED:
            return f"it is paused: {entry.paused or 'no reason was given'}"
        case State.DONE:
            return "it is done: no turn is left"
        case State.MISSING:
            return "it has lost its place: the next reconcile of any scheduler brings it back"
        case State.WAITING:
            return _waits(entry, schedule, now, patterns, schedulers)


def _waits(
    entry: Entry, schedule: Schedule, now: float, patterns: Patterns, schedulers: dict[str, dict[str, str]]
) -> str:
    if entry.next_at is not None and entry.next_at > now:
        return f"it is not due: its turn is in {entry.next_at - now:.1f} s"
    refusal = patterns.refusal(family(entry.name))
    if refusal:
        return f"it is due, but {refusal} keeps it from being run"
    if not schedulers:
        return "it is due, but no scheduler lives: start one with `holdfast scheduler --app …`"
    able = {name: said for name, said in schedulers.items() if _knows(said, schedule)}
    if not able:
        return f"it is due, but no live scheduler has the agent {schedule.agent!r}"
    full = {name for name, said in able.items() if _full(said)}
    if len(full) == len(able):
        return f"it is due, but no permit is free in {', '.join(sorted(full))}"
    return _should_run({name: said for name, said in able.items() if name not in full})


def _should_run(free: dict[str, dict[str, str]]) -> str:
    """Say which of those that have the agent and a permit should take it, or what keeps them from it."""
    ready = [name for name, said in free.items() if not said.get("breakers")]
    if ready:
        return f"it is due: {' or '.join(sorted(ready))} should take it at once"
    breakers = "; ".join(f"{name}: {said['breakers']}" for name, said in sorted(free.items()))
    return f"it is due, but a circuit breaker keeps it from being acquired ({breakers})"


def _knows(said: dict[str, str], schedule: Schedule) -> bool:
    return bool(schedule.target) or schedule.agent in said.get("agents", "").split(",")


def _full(said: dict[str, str]) -> bool:
    capacity, load = said.get("capacity", "0"), said.get("load", "0")
    return capacity.isdigit() and load.isdigit() and 0 < int(capacity) <= int(load)
