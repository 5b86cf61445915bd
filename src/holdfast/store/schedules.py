"""Schedules that were made or paused at run time, stored with their revisions in case Redis loses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.store.engine import Statement
from holdfast.store.names import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.engine import Operation


class StoredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The stored fields of one schedule; the higher revision is the newer one. Times are epoch seconds."""

    name: str
    revision: int
    spec: bytes = b""
    """Its definition; empty if it is declared in the code, and only its pause is stored."""
    paused: str = ""
    paused_since: float = 0.0
    """0 is not paused."""
    done: bool = False
    removed: bool = False
    """A tombstone: it prevents an older copy from returning."""


class SchedulesHead(msgspec.Struct, frozen=True):
    """The values that change with every schedule: the number of rows, and the time of the last write."""

    count: int
    changed_at: float


_FIELDS = StoredSchedule.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
# No text of a caller is in the text of a statement: the names are those of the fields.
# guard: sql-newer-revision
_PUT = f"""
INSERT INTO holdfast_schedules (space, changed_at, {_COLUMNS})
VALUES (:space, :now, {", ".join(f":{name}" for name in _FIELDS)})
ON CONFLICT (space, name) DO UPDATE SET changed_at = excluded.changed_at,
{", ".join(f"{name} = excluded.{name}" for name in _FIELDS if name != "name")}
WHERE excluded.revision > holdfast_schedules.revision
"""  # noqa: S608
_FIND = f"SELECT {_COLUMNS} FROM holdfast_schedules WHERE space = :space AND name IN ({{keys}})"  # noqa: S608
_PAGE = f"""
SELECT {_COLUMNS} FROM holdfast_schedules WHERE space = :space AND name > :after ORDER BY name LIMIT :limit
"""  # noqa: S608
_CHANGED = f"""
SELECT {_COLUMNS} FROM holdfast_schedules WHERE space = :space AND changed_at >= :since AND name > :after
ORDER BY name LIMIT :limit
"""  # noqa: S608
_HEAD = "SELECT count(*), coalesce(max(changed_at), 0) FROM holdfast_schedules WHERE space = :space"
_FORGET = "DELETE FROM holdfast_schedules WHERE space = :space AND removed = 1 AND changed_at < :before"


def put(space: str, rows: Sequence[StoredSchedule], now: float) -> Operation[dict[str, StoredSchedule]]:
    """Write rows unless there are newer ones, and return the present rows, by name."""
    # In a fixed order, so that two processes which write the same rows can't deadlock.
    values = [_values(space, row, now) for row in sorted(rows, key=lambda row: row.name)]
    yield Statement(_PUT, many=values)
    return (yield from find(space, [row.name for row in rows]))


def find(space: str, names: Sequence[str]) -> Operation[dict[str, StoredSchedule]]:
    """Return the rows of these names, removed ones too."""
    found = yield Statement(_FIND, {"space": label(space), "keys": msgspec.json.encode(names).decode()})
    return {row.name: row for row in map(_read, found.rows)}


def page(space: str, after: str, limit: int, since: float) -> Operation[list[StoredSchedule]]:
    """Return the next rows by name; with ``since`` only those written since then."""
    values: dict[str, Any] = {"space": label(space), "after": after, "limit": limit}
    if since:
        found = yield Statement(_CHANGED, {**values, "since": since})
    else:
        found = yield Statement(_PAGE, values)
    return [_read(row) for row in found.rows]


def head(space: str) -> Operation[SchedulesHead]:
    """Return the values that change with every row."""
    found = yield Statement(_HEAD, {"space": label(space)})
    count, changed_at = found.rows[0]
    return SchedulesHead(int(count), float(changed_at))


def forget(space: str, before: float) -> Operation[int]:
    """Delete the tombstones from before that time, and return their number."""
    done = yield Statement(_FORGET, {"space": label(space), "before": before})
    return done.count


def _values(space: str, row: StoredSchedule, now: float) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    fields["paused"] = row.paused.replace("\0", "?")  # PostgreSQL's texts can't contain NUL
    return {**fields, "done": int(row.done), "removed": int(row.removed), "space": label(space), "now": now}


def _read(row: Sequence[Any]) -> StoredSchedule:
    fields = dict(zip(_FIELDS, row, strict=True))
    fields.update(spec=bytes(fields["spec"]), done=bool(fields["done"]), removed=bool(fields["removed"]))
    return StoredSchedule(**fields)
