"""Finished runs: the stored fields, and the statements that write, find and list them."""

from __future__ import annotations

import base64
import math
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import InputError
from holdfast.store.engine import Statement
from holdfast.store.names import incarnation, label, run_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.engine import Operation


class ArchivedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has ended. Times are seconds since 1970; the last four fields are JSON, empty if none."""

    id: str
    queue: str = ""
    agent: str = ""
    thread_id: str = ""
    tenant: str = ""
    status: str = ""
    attempt: int = 0
    fence: int = 0
    submitted_at: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    input: bytes = b""
    result: bytes = b""
    error: bytes = b""
    metadata: bytes = b""


class ArchivePage(msgspec.Struct, frozen=True):
    """One page of archived runs, without input and result; ``cursor`` is empty after the last page."""

    runs: list[ArchivedRun]
    cursor: str


class ArchiveQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of archived runs; an empty field or 0 matches all."""

    queue: str = ""
    status: str = ""
    agent: str = ""
    thread_id: str = ""
    tenant: str = ""
    since: float = 0.0
    until: float = 0.0
    limit: int = 50
    cursor: str = ""


_FIELDS = ArchivedRun.__struct_fields__
_SHORT = ", ".join(f"'' AS {field}" if field in {"input", "result"} else field for field in _FIELDS)
_COLUMNS = ("run", *_FIELDS)
# No text of a caller is in the text of a statement: the names are those of the fields.
_ARCHIVE = f"""
INSERT INTO holdfast_archive ({", ".join(_COLUMNS)}) VALUES ({", ".join(f":{name}" for name in _COLUMNS)})
ON CONFLICT (run) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _FIELDS)}
WHERE excluded.finished_at >= holdfast_archive.finished_at
"""  # noqa: S608
_FIND = f"""
SELECT {", ".join(_FIELDS)} FROM holdfast_archive
WHERE id = :id AND (CAST(:tenant AS text) = '' OR tenant = :tenant)
AND (CAST(:queue AS text) = '' OR queue = :queue) ORDER BY finished_at DESC LIMIT 1
"""  # noqa: S608
_LIST = f"""
SELECT run, {_SHORT} FROM holdfast_archive WHERE {{where}} ORDER BY finished_at DESC, run DESC LIMIT :most
"""  # noqa: S608


def archive(runs: Sequence[ArchivedRun]) -> Operation[None]:
    """Write finished runs; a stored run is replaced unless it finished later."""
    # In a fixed order, so that two processes which write the same runs can't deadlock.
    rows = sorted((_row(run) for run in runs), key=lambda row: (row["run"], row["finished_at"]))
    yield Statement(_ARCHIVE, many=rows)


def _row(run: ArchivedRun) -> dict[str, Any]:
    row = {field: _storable(getattr(run, field)) for field in _FIELDS}
    row["run"] = run_label(run.queue, incarnation(run.id, round(run.submitted_at * 1000)))
    return row


def _storable(value: Any) -> Any:
    """Return a value that a database accepts: one invalid value must not fail a whole batch."""
    if isinstance(value, str):
        return label(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else 0.0
    return value


def find(run_id: str, tenant: str = "", queue: str = "") -> Operation[ArchivedRun | None]:
    """Return an archived run; if several queues have one of that id, the one that ended last."""
    found = yield Statement(_FIND, {"id": label(run_id), "tenant": label(tenant), "queue": label(queue)})
    return _read(found.rows[0]) if found.rows else None


def select(wanted: ArchiveQuery) -> Operation[ArchivePage]:
    """Return a page of archived runs, newest first."""
    where, values = _conditions(wanted)
    values["most"] = wanted.limit + 1
    found = yield Statement(_LIST.replace("{where}", " AND ".join(where)), values)
    rows = found.rows[: wanted.limit]
    runs = [_read(row[1:]) for row in rows]
    more = len(found.rows) > wanted.limit
    return ArchivePage(runs, _cursor(runs[-1].finished_at, rows[-1][0]) if more else "")


def _conditions(wanted: ArchiveQuery) -> tuple[list[str], dict[str, Any]]:
    where, values = ["1 = 1"], dict[str, Any]()
    for field in ("queue", "status", "agent", "thread_id", "tenant"):
        if value := getattr(wanted, field):
            where.append(f"{field} = :{field}")
            values[field] = label(value)
    if wanted.since:
        where.append("finished_at >= :since")
        values["since"] = float(wanted.since)
    if wanted.until:
        where.append("finished_at < :until")
        values["until"] = float(wanted.until)
    if wanted.cursor:
        where.append("(finished_at, run) < (:at, :after)")
        values["at"], values["after"] = _read_cursor(wanted.cursor)
    return where, values


def _read(row: Sequence[Any]) -> ArchivedRun:
    fields = dict(zip(_FIELDS, row, strict=True))
    for name in ("input", "result", "error", "metadata"):
        fields[name] = bytes(fields[name] or b"")
    return ArchivedRun(**fields)


def _cursor(finished_at: float, run: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((finished_at, run))).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[float, str]:
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=tuple[float, str])
    except (ValueError, msgspec.DecodeError) as exc:
        raise InputError(f"the cursor {cursor[:100]!r} is not one of a list of archived runs") from exc
