"""Checkpoints of graphs, as a framework writes them: rows of bytes under a run's fence.

A thread's checkpoints are in the scope of its state, so tenants are separate and a run can be rolled back.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.errors import InputError
from holdfast.store.engine import Statement
from holdfast.store.fences import held
from holdfast.store.names import label

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.store.engine import Operation
    from holdfast.store.fences import Holder
    from holdfast.store.store import Store

T = TypeVar("T")

_LONGEST_NS_BYTES = 1000
_COLUMNS = "thread, ns, id, parent, run, kind, value, metadata_kind, metadata"
_MINE = "scope = :scope AND thread = :thread"


class Write(msgspec.Struct, frozen=True):
    """A write of one task to one channel; one with a special ``idx`` (under 0) replaces the one before."""

    task: str
    idx: int
    channel: str
    kind: str
    value: bytes
    path: str


class Checkpoint(msgspec.Struct, frozen=True):
    """One checkpoint with the writes of its tasks since."""

    thread: str
    ns: str
    id: str
    parent: str
    run: str
    kind: str
    value: bytes
    metadata_kind: str
    metadata: bytes
    writes: list[Write] = msgspec.field(default_factory=list[Write])


_WRITES = f"""
SELECT task, idx, channel, kind, value, path FROM holdfast_checkpoint_writes
WHERE {_MINE} AND ns = :ns AND id = :id ORDER BY path, task, idx
"""  # noqa: S608
_OF_CHANNEL = f"""
SELECT task, idx, channel, kind, value, path FROM holdfast_checkpoint_writes
WHERE {_MINE} AND channel = :channel
"""  # noqa: S608
_PUT = """
INSERT INTO holdfast_checkpoints
    (scope, thread, ns, id, parent, run, kind, value, metadata_kind, metadata, written_at)
VALUES (:scope, :thread, :ns, :id, :parent, :run, :kind, :value, :metadata_kind, :metadata, :now)
ON CONFLICT (scope, thread, ns, id) DO UPDATE SET parent = excluded.parent, run = excluded.run,
    kind = excluded.kind, value = excluded.value, metadata_kind = excluded.metadata_kind,
    metadata = excluded.metadata, written_at = excluded.written_at
"""
_PUT_WRITE = """
INSERT INTO holdfast_checkpoint_writes
    (scope, thread, ns, id, task, idx, channel, kind, value, path, run)
VALUES (:scope, :thread, :ns, :id, :task, :idx, :channel, :kind, :value, :path, :run)
ON CONFLICT (scope, thread, ns, id, task, idx) DO
"""
_KEEP_FIRST = f"{_PUT_WRITE} NOTHING"
_REPLACE = f"""{_PUT_WRITE} UPDATE SET channel = excluded.channel, kind = excluded.kind,
    value = excluded.value, path = excluded.path, run = excluded.run
"""
_DELETE = f"DELETE FROM holdfast_checkpoints WHERE {_MINE}"  # noqa: S608
_DELETE_WRITES = f"DELETE FROM holdfast_checkpoint_writes WHERE {_MINE}"  # noqa: S608
# The last one of another run stays too: after a rollback of this run, the thread continues from there.
_OLDER = f"""{_DELETE}
AND id NOT IN (SELECT max(id) FROM holdfast_checkpoints WHERE {_MINE} GROUP BY ns)
AND id NOT IN (SELECT max(id) FROM holdfast_checkpoints WHERE {_MINE} AND run <> :run GROUP BY ns)
"""  # noqa: S608
_INNER = f"{_DELETE} AND ns <> replace(ns, ':', '')"
_ORPHANS = f"""{_DELETE_WRITES} AND NOT EXISTS (
    SELECT 1 FROM holdfast_checkpoints AS c WHERE c.scope = holdfast_checkpoint_writes.scope
    AND c.thread = holdfast_checkpoint_writes.thread AND c.ns = holdfast_checkpoint_writes.ns
    AND c.id = holdfast_checkpoint_writes.id)
"""  # noqa: S608


class Checkpoints:
    """The checkpoints of one attempt; a write raises LeaseLost if the run has a newer fence."""

    def __init__(self, store: Store, holder: Holder) -> None:
        self._store = store
        self._holder = holder

    @property
    def run(self) -> str:
        """The name of this run in the rows that it writes."""
        return self._holder.run

    async def find(self, thread: str, ns: str, checkpoint_id: str = "") -> Checkpoint | None:
        """Return a checkpoint, or the last one."""
        found = await self.select(thread, ns=ns, checkpoint_id=checkpoint_id, limit=1)
        return found[0] if found else None

    async def select(
        self,
        thread: str | None,
        *,
        ns: str | None = None,
        checkpoint_id: str = "",
        before: str = "",
        limit: int | None = None,
    ) -> list[Checkpoint]:
        """Return checkpoints of a thread (None: of all threads in this scope), the last one first."""
        wanted: dict[str, Any] = {"scope": self._holder.scope}
        sql = f"SELECT {_COLUMNS} FROM holdfast_checkpoints WHERE scope = :scope"  # noqa: S608
        for column, sign, value in (
            ("thread", "=", None if thread is None else label(thread)),
            ("ns", "=", ns),
            ("id", "=", checkpoint_id or None),
            ("id", "<", before or None),
        ):
            if value is not None:
                name = f"{column}{len(wanted)}"
                sql, wanted[name] = f"{sql} AND {column} {sign} :{name}", value
        sql += " ORDER BY id DESC"
        if limit is not None:
            sql, wanted["limit"] = f"{sql} LIMIT :limit", limit
        return await self._do("checkpoints", lambda: _select(self._holder.scope, sql, wanted), write=False)

    async def writes(self, thread: str, channel: str) -> list[Write]:
        """Return the writes of all tasks of a thread to a channel that no later checkpoint has replaced."""
        values = {"scope": self._holder.scope, "thread": label(thread), "channel": channel}
        return await self._do(
            "checkpoint_writes", lambda: _writes(Statement(_OF_CHANNEL, values)), write=False
        )

    async def put(self, row: Checkpoint) -> None:
        """Write a checkpoint; the same one again replaces it."""
        await self._do("put_checkpoint", lambda: _put(self._holder, row))

    async def put_writes(self, thread: str, ns: str, checkpoint_id: str, writes: Sequence[Write]) -> None:
        """Store the writes of a task; existing ones are kept, except for special channels."""
        key = {"thread": label(thread), "ns": _checked(ns), "id": checkpoint_id}
        await self._do("put_checkpoint_writes", lambda: _put_writes(self._holder, key, writes))

    async def delete(self, thread: str) -> None:
        """Delete everything of a thread."""
        await self._change("delete_checkpoints", thread, _DELETE, _DELETE_WRITES)

    async def prune(self, thread: str, *, ended: bool = False) -> None:
        """Keep the last checkpoint of each namespace; of an ended run, none of its inner graphs."""
        first = (_INNER,) if ended else ()
        await self._change("prune_checkpoints", thread, *first, _OLDER, _ORPHANS)

    async def _change(self, name: str, thread: str, *sql: str) -> None:
        keyed = {"scope": self._holder.scope, "thread": label(thread), "run": self._holder.run}
        await self._do(name, lambda: _statements(self._holder, sql, keyed))

    async def _do(self, name: str, operation: Callable[[], Operation[T]], *, write: bool = True) -> T:
        return await self._store.perform(name, operation, write=write, patient=True)


def _select(scope: str, sql: str, wanted: dict[str, Any]) -> Operation[list[Checkpoint]]:
    found = yield Statement(sql, wanted)
    rows: list[Checkpoint] = []
    for thread, ns, checkpoint_id, parent, run, kind, value, metadata_kind, metadata in found.rows:
        key = {"scope": scope, "thread": thread, "ns": ns, "id": checkpoint_id}
        writes = yield from _writes(Statement(_WRITES, key))
        rows.append(
            Checkpoint(
                thread,
                ns,
                checkpoint_id,
                parent,
                run,
                kind,
                bytes(value),
                metadata_kind,
                bytes(metadata),
                writes,
            )
        )
    return rows


def _writes(statement: Statement) -> Operation[list[Write]]:
    found = yield statement
    return [
        Write(task, idx, channel, kind, bytes(value), path)
        for task, idx, channel, kind, value, path in found.rows
    ]


def _put(holder: Holder, row: Checkpoint) -> Operation[None]:
    yield from held(holder)
    values = {each: getattr(row, each) for each in row.__struct_fields__ if each != "writes"}
    given = {"scope": holder.scope, "thread": label(row.thread), "run": holder.run, "now": time.time()}
    yield Statement(_PUT, {**values, "ns": _checked(row.ns), **given})


def _put_writes(holder: Holder, key: dict[str, str], writes: Sequence[Write]) -> Operation[None]:
    yield from held(holder)
    for sql, special in ((_KEEP_FIRST, False), (_REPLACE, True)):
        many = [
            {"scope": holder.scope, "run": holder.run, **key, **msgspec.structs.asdict(each)}
            for each in writes
            if (each.idx < 0) is special
        ]
        if many:
            yield Statement(sql, many=many)


def _statements(holder: Holder, sql: Sequence[str], values: dict[str, str]) -> Operation[None]:
    yield from held(holder)
    for each in sql:
        yield Statement(each, values)


def _checked(ns: str) -> str:
    if len(ns.encode()) > _LONGEST_NS_BYTES:
        raise InputError(f"graphs are nested too deeply: a namespace has at most {_LONGEST_NS_BYTES} bytes")
    return ns
