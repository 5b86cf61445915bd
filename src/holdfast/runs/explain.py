"""Explains the state of a run in sentences that an operator can act on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.config.durations import span
from holdfast.redis.command import commands
from holdfast.redis.library import ResponseError
from holdfast.runs.run import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.members import Member
    from holdfast.runs.queue import Depth, Gate, RunQueue
    from holdfast.runs.run import Run


_LONGEST_QUESTION = 200
_CHILDREN = 1000
"""How many waiting runs are searched for their parents."""
_PAGE = 200
_UNTAKEN_SECONDS = 1.0


async def parents_of_waiting_runs(run: Run, queue: RunQueue, depth: Depth) -> int:
    """Count the running runs of a queue if each has submitted a run that waits in the same queue; else 0.

    If they wait for those children, no slot ever becomes free. That explains queued and running runs; for
    other runs nothing is counted.
    """
    if run.status not in {Status.QUEUED, Status.RUNNING}:
        return 0
    if not depth.pending or depth.oldest_seconds < _UNTAKEN_SECONDS:  # a free slot takes a run at once
        return 0
    waiting = (await queue.list(status=Status.QUEUED, limit=_CHILDREN)).runs
    parents = sorted({run.parent for run in waiting if run.parent})
    if len(parents) < depth.pending:
        return 0
    partitions = await queue.all_partitions()
    running = 0
    for at in range(0, len(parents), _PAGE):
        records = [each.keys.run(parent) for parent in parents[at : at + _PAGE] for each in partitions]
        statuses = await commands(queue.redis, [("HGET", record, "status") for record in records])
        running += sum(status == Status.RUNNING.encode() for status in statuses)
        if running >= depth.pending:
            return running
    return 0


class LeaseAge(msgspec.Struct, frozen=True):
    """How long ago a run's worker renewed its lease, and how long a lease lasts."""

    seconds: float
    ttl_seconds: float

    @property
    def late(self) -> bool:
        """Whether the worker has missed a renewal: it renews every quarter of the ttl."""
        return self.seconds > self.ttl_seconds / 2


async def lease_age(run: Run, queue: RunQueue, ttl_seconds: float) -> LeaseAge | None:
    """Read the age of a running run's lease; None if the run is not running or its entry is not held."""
    if run.status is not Status.RUNNING or not run.lane or not run.entry:
        return None
    group, entry = queue.settings.group, run.entry
    try:
        pending: list[dict[str, Any]] = await queue.redis.xpending_range(  # pyright: ignore[reportUnknownMemberType]
            run.lane, group, entry, entry, 1, run.owner
        )
    except ResponseError:  # the group was deleted, or the record is damaged
        return None
    return LeaseAge(pending[0]["time_since_delivered"] / 1000, ttl_seconds) if pending else None


def explain(
    run: Run,
    gate: Gate,
    depth: Depth,
    members: Sequence[Member],
    now: float | None = None,
    *,
    parents: int = 0,
    lease: LeaseAge | None = None,
) -> list[str]:
    """Return the reasons, the main one first; ``parents`` is of :func:`parents_of_waiting_runs`."""
    now = time.time() if now is None else now
    match run.status:
        case Status.QUEUED:
            return _queued(run, gate, depth, members, parents)
        case Status.DELAYED:
            return [_delayed(run, now), *_last_error(run)]
        case Status.RUNNING:
            return _running(run, members, now, parents, lease)
        case Status.INTERRUPTED:
            question = f"the agent asked {_in_short(run.interrupt)} and goes on when it has the answer"
            return [f"{question}: `holdfast runs resume {run.id} '\"ANSWER\"'`, where ANSWER is JSON"]
        case Status.SUCCEEDED:
            return _ended_well(run)
        case _:
            again = f"`holdfast runs retry {run.id}` queues it again, from its first attempt"
            return [*_ended_badly(run), again]


def _in_short(question: Any) -> str:
    text = msgspec.json.encode(question).decode()
    return text if len(text) <= _LONGEST_QUESTION else f"{text[:_LONGEST_QUESTION]}…"


def explain_past(run: Run) -> list[str]:
    """Return how a run ended that only the archive has."""
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.finished_at))
    reasons = _ended_well(run) if run.status is Status.SUCCEEDED else _ended_badly(run)
    return [
        *reasons,
        f"it ended on {day} UTC; only its record is in the archive: submit its input to run it again",
    ]


def _queued(run: Run, gate: Gate, depth: Depth, members: Sequence[Member], parents: int) -> list[str]:
    if run.parked:
        return [f"it waits for {run.parked}, which is taken: it starts as soon as that is free"]
    reasons: list[str] = []
    if gate.mode == "paused":
        why = f" ({gate.reason})" if gate.reason else ""
        reasons.append(
            f"queue {run.queue!r} is paused{why}: `holdfast queues resume {run.queue}` opens it again"
        )
    workers = [m for m in members if m.kind == "worker" and run.queue in _names(m, "queues")]
    if not workers:
        reasons.append(f"no worker serves queue {run.queue!r}: start one with `holdfast worker --app APP`")
    elif all(member.fields.get("state") == "draining" for member in workers):
        reasons.append(f"every worker of queue {run.queue!r} is shutting down: start another")
    elif not any(run.agent in _names(member, "agents") for member in workers):
        names = ", ".join(sorted(member.name for member in workers)[:5])
        reasons.append(f"no worker of queue {run.queue!r} has the agent {run.agent!r}: {names} run others")
    elif parents:
        reasons.append(_deadlock(run, parents))
    if run.attempt:
        reasons.append(f"it was handed back or reclaimed after {_attempts(run)}; it is served first")
    reasons.append(
        f"queue {run.queue!r}: {depth.undelivered} waiting, {depth.pending} pending, "
        f"{_counted(len(workers), 'worker')}; the oldest has waited {depth.oldest_seconds:.1f} s"
    )
    return reasons


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _deadlock(run: Run, parents: int) -> str:
    return (
        f"all {parents} running runs of queue {run.queue!r} have submitted children that wait in the "
        "same queue: if they wait for those children, no slot will ever get free; start another worker, "
        "and submit children to a queue of their own"
    )


def _running(
    run: Run, members: Sequence[Member], now: float, parents: int, lease: LeaseAge | None
) -> list[str]:
    late = lease is not None and lease.late
    if lease is not None and late:
        reasons = [_not_renewed(run, lease)]
    else:
        reasons = [f"running on {run.owner} for {max(now - run.started_at, 0):.1f} s, {_ordinal(run)}"]
    if run.cancel:
        reasons.insert(0, f"it was asked to stop: {run.cancel}")
    if not late and not any(member.kind == "worker" and member.name == run.owner for member in members):
        reasons.append(f"{run.owner} gives no sign of life: another worker takes over when its lease ends")
    if parents:
        reasons.append(_deadlock(run, parents))
    return reasons + _last_error(run)


def _not_renewed(run: Run, lease: LeaseAge) -> str:
    silent = f"{run.owner} has not renewed its lease for {lease.seconds:.0f} s"
    left = lease.ttl_seconds - lease.seconds
    if left <= 0:
        return f"{silent}, and it has ended: another worker takes the run"
    return f"{silent}; another worker takes the run when it ends, in {left:.0f} s"


def _delayed(run: Run, now: float) -> str:
    left = run.due_at - now
    due = f"in {span(left)}" if left > 0 else "now"
    return f"it is due {due}" + (f", after {_attempts(run)}" if run.attempt else "")


def _ended_well(run: Run) -> list[str]:
    return [f"it succeeded after {_attempts(run)}, in {run.finished_at - run.started_at:.3f} s"]


def _ended_badly(run: Run) -> list[str]:
    if run.status is Status.CANCELLED:
        return [f"it was cancelled: {run.cancel or 'no reason is known'}"]
    return [f"it was given up after {_attempts(run)}", *_last_error(run)]


def _last_error(run: Run) -> list[str]:
    return [f"its last error: {run.error.kind}: {run.error.message}"] if run.error else []


def _attempts(run: Run) -> str:
    return f"{run.attempt} attempt{'' if run.attempt == 1 else 's'}"


def _ordinal(run: Run) -> str:
    return f"attempt {run.attempt}, fence {run.fence}"


def _names(member: Member, field: str) -> list[str]:
    return member.fields.get(field, "").split(",")
