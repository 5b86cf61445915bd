"""Operations under a fence: a run's reads and writes while its owner holds it.

A fence is registered once per attempt; it must be higher than the registered one, or the same one of the same
owner. (After a failover of Redis a fence may repeat under another owner: that one is refused.) Every write
has fence and owner again and changes nothing if they are no longer those of the run.

A thread belongs to one run at a time. An attempt that registers takes the thread under its generation and
seals the run that had it before: a late write of that run, which still waits in the database (it timed out,
its worker was frozen), changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

import msgspec

from holdfast.errors import LeaseLost, ThreadTaken
from holdfast.store.engine import Statement

if TYPE_CHECKING:
    from holdfast.store.engine import Operation

_REGISTER = """
INSERT INTO holdfast_fences (run, fence, owner, used_at) VALUES (:run, :fence, :owner, :now)
ON CONFLICT (run) DO UPDATE SET fence = excluded.fence, owner = excluded.owner, used_at = excluded.used_at
WHERE excluded.fence > holdfast_fences.fence
   OR (excluded.fence = holdfast_fences.fence AND excluded.owner = holdfast_fences.owner)
"""
_SEEN = "SELECT fence, owner FROM holdfast_fences WHERE run = :run"
# guard: store-write-fence
_HELD = "SELECT 1 AS one FROM holdfast_fences WHERE run = :run AND fence = :fence AND owner = :owner {share}"
_SEAL = "UPDATE holdfast_fences SET owner = '' WHERE run = :other"
# A thread has a row among the fences: the run that has it is the owner, its generation the fence. The row is
# made first and then locked, so that two runs that come at once take the thread one after the other.
_MAKE_THREAD = """
INSERT INTO holdfast_fences (run, fence, owner, used_at) VALUES (:thread, 0, '', :now)
ON CONFLICT (run) DO NOTHING
"""
_LOCK_THREAD = "SELECT fence, owner FROM holdfast_fences WHERE run = :thread {update}"
_TAKE_THREAD = """
UPDATE holdfast_fences SET fence = :generation, owner = :run, used_at = :now WHERE run = :thread
"""

_STEPS = "SELECT name, value FROM holdfast_steps WHERE run = :run"
_PUT_STEP = f"""
WITH held AS ({_HELD})
INSERT INTO holdfast_steps (run, name, value, seconds, fence, written_at)
SELECT :run, :name, CAST(:value AS {{blob}}), :seconds, :fence, :now FROM held WHERE true
ON CONFLICT (run, name) DO UPDATE SET value = excluded.value, seconds = excluded.seconds,
    fence = excluded.fence, written_at = excluded.written_at
"""  # noqa: S608 - all of it is written here

_STATE = """
SELECT key, value FROM holdfast_state AS mine WHERE scope = :scope AND value IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM holdfast_state AS newer
    WHERE newer.scope = mine.scope AND newer.key = mine.key AND newer.seq > mine.seq)
"""
_PUT_STATE = f"""
WITH held AS ({_HELD})
INSERT INTO holdfast_state (scope, key, run, value, seq, written_at)
SELECT :scope, :key, :run, CAST(:value AS {{blob}}), {{next_seq}}, :now FROM held WHERE true
ON CONFLICT (scope, key, run) DO UPDATE SET value = excluded.value, seq = excluded.seq,
    written_at = excluded.written_at
"""  # noqa: S608 - as above
_UNDO = "DELETE FROM holdfast_state WHERE scope = :scope AND run = :other"
_UNDO_CHECKPOINTS = "DELETE FROM holdfast_checkpoints WHERE scope = :scope AND run = :other"
_UNDO_WRITES = "DELETE FROM holdfast_checkpoint_writes WHERE scope = :scope AND run = :other"
_LAST_OTHER = """
SELECT run FROM holdfast_state WHERE scope = :scope AND run <> :run ORDER BY seq DESC LIMIT 1
"""
_COMPACT = """
DELETE FROM holdfast_state WHERE scope = :scope AND run <> :run AND run <> :other AND EXISTS (
    SELECT 1 FROM holdfast_state AS newer
    WHERE newer.scope = holdfast_state.scope AND newer.key = holdfast_state.key
      AND newer.seq > holdfast_state.seq AND newer.run <> :run AND newer.run <> :other)
"""
_COMPACT_DELETED = """
DELETE FROM holdfast_state WHERE scope = :scope AND run <> :run AND run <> :other AND value IS NULL
"""

_CLOCK_SECONDS = 5.0
"""By how much the clocks of Redis and of a worker may differ."""


class Holder(msgspec.Struct, frozen=True):
    """The writer: a run under one fence of one owner, and the scope of its state.

    ``thread`` names the thread in its partition, ``generation`` is higher for each attempt of its runs;
    without a thread they are empty.
    """

    run: str
    fence: int
    owner: str
    scope: str
    thread: str = ""
    generation: int = 0

    def values(self) -> dict[str, object]:
        """Return the values that identify the holder in a statement."""
        return {"run": self.run, "fence": self.fence, "owner": self.owner}


def register(holder: Holder) -> Operation[dict[str, bytes]]:
    """Take the run over under this fence and return its finished steps."""
    if holder.generation:
        # Before the run's own row: two runs of a thread that lock each other's rows would deadlock.
        yield from _take_thread(holder)
    done = yield Statement(_REGISTER, {**holder.values(), "now": time.time()})
    if not done.count:
        yield from _refuse(holder)
    found = yield Statement(_STEPS, {"run": holder.run})
    if holder.thread:
        yield from _compact(holder)
    return {name: bytes(value) for name, value in found.rows}


def _take_thread(holder: Holder) -> Operation[None]:
    """Take the thread over from the run that had it before, which can write no more."""
    thread, now = {"thread": holder.thread}, time.time()
    yield Statement(_MAKE_THREAD, {**thread, "now": now})
    found = yield Statement(_LOCK_THREAD, thread)
    generation, other = found.rows[0]
    if _is_newer(generation, holder.generation, now):  # guard: older-attempt-of-thread-refused
        raise ThreadTaken(
            f"run {holder.run!r} can't use its thread any more: run {other!r} of the same thread has used it "
            f"since (generation {generation}, not {holder.generation}); nothing was written"
        )
    yield Statement(_TAKE_THREAD, {**thread, "generation": holder.generation, "run": holder.run, "now": now})
    if other not in {"", holder.run}:
        yield Statement(_SEAL, {"other": other})  # guard: earlier-run-of-thread-sealed


def _is_newer(generation: int, than: int, now: float) -> bool:
    """Whether another attempt of the thread began later.

    Generations are times (us). One of the future was given by a clock that was wrong: it must not keep the
    thread's runs from the store until that time.
    """
    return generation > than and generation <= (now + _CLOCK_SECONDS) * 1e6  # guard: wrong-clock-forgiven


def _compact(holder: Holder) -> Operation[None]:
    """Delete the writes of earlier runs that later runs have replaced.

    The last run keeps all its rows and those that it replaced, because it may be rolled back.
    """
    found = yield Statement(_LAST_OTHER, {"scope": holder.scope, "run": holder.run})
    if found.rows:
        values = {"scope": holder.scope, "run": holder.run, "other": found.rows[0][0]}
        yield Statement(_COMPACT, values)
        yield Statement(_COMPACT_DELETED, values)


def put_step(holder: Holder, name: str, value: bytes, seconds: float) -> Operation[None]:
    """Store a finished step; the same name again replaces its value."""
    values = {**holder.values(), "name": name, "value": value, "seconds": seconds, "now": time.time()}
    done = yield Statement(_PUT_STEP, values)
    if not done.count:
        yield from _refuse(holder)


def read_state(scope: str) -> Operation[dict[str, bytes]]:
    """Return the newest value of every key that is not deleted."""
    found = yield Statement(_STATE, {"scope": scope})
    return {key: bytes(value) for key, value in found.rows}


def put_state(holder: Holder, key: str, value: bytes | None) -> Operation[None]:
    """Write a key of the state; None deletes it, which a rollback can undo."""
    values = {**holder.values(), "scope": holder.scope, "key": key, "value": value, "now": time.time()}
    done = yield Statement(_PUT_STATE, values)
    if not done.count:
        yield from _refuse(holder)


def roll_back(holder: Holder, other: str) -> Operation[None]:
    """Delete the writes of another run in this scope, and refuse later ones of its former owner."""
    yield from held(holder)
    yield Statement(_SEAL, {"other": other})
    yield Statement(_UNDO, {"scope": holder.scope, "other": other})
    yield Statement(_UNDO_CHECKPOINTS, {"scope": holder.scope, "other": other})
    yield Statement(_UNDO_WRITES, {"scope": holder.scope, "other": other})


def held(holder: Holder) -> Operation[None]:
    """Raise LeaseLost if another owner has the run, else lock it until the transaction ends."""
    found = yield Statement(_HELD, holder.values())
    if not found.rows:
        yield from _refuse(holder)


def _refuse(holder: Holder) -> Operation[NoReturn]:
    """Raise what keeps this attempt from writing."""
    seen = (yield Statement(_SEEN, {"run": holder.run})).rows
    if seen and seen[0][0] == holder.fence and not seen[0][1]:
        # It counts as an attempt: two runs that shut each other out would else begin again for ever.
        raise ThreadTaken(
            f"run {holder.run!r} can't write any more under fence {holder.fence}: another run of its thread "
            "has used the store since, or has rolled this one back"
        )
    now = f" ({seen[0][1]!r} has it under fence {seen[0][0]})" if seen else ""
    raise LeaseLost(
        f"run {holder.run!r} is no longer {holder.owner!r}'s under fence {holder.fence}{now}: "
        "nothing was written"
    )
