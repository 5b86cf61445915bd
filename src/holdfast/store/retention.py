"""Removal of old rows, in bounded passes, so that no transaction is long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.store.engine import Statement
from holdfast.store.names import scope_label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store.engine import Operation


class Pruned(msgspec.Struct, frozen=True):
    """The rows that one pass removed; if it is not ``whole``, the next pass has more to remove."""

    archived: int
    journals: int
    threads: int
    whole: bool


_EXPIRED = """
SELECT run, (SELECT count(*) FROM holdfast_steps AS s WHERE s.run = a.run) FROM holdfast_archive AS a
WHERE finished_at < :before ORDER BY finished_at LIMIT :limit
"""
_ABANDONED = """
SELECT run, (SELECT count(*) FROM holdfast_steps AS s WHERE s.run = f.run) FROM holdfast_fences AS f
WHERE used_at < :before AND NOT EXISTS (SELECT 1 FROM holdfast_archive AS a WHERE a.run = f.run)
ORDER BY used_at LIMIT :limit
"""
_SILENT = """
SELECT scope, count(*) FROM holdfast_state WHERE scope >= 'thread:' AND scope < 'thread;'
GROUP BY scope HAVING max(written_at) < :before ORDER BY scope LIMIT :limit
"""
_DROP_ARCHIVED = "DELETE FROM holdfast_archive WHERE run IN ({keys}) AND finished_at < :before"
_DROP_FENCES = "DELETE FROM holdfast_fences WHERE run IN ({keys}) AND used_at < :before"
# A run that was started again has registered since, and keeps its rows.
_DROP_STEPS = """
DELETE FROM holdfast_steps WHERE run IN ({keys})
AND NOT EXISTS (SELECT 1 FROM holdfast_fences AS f WHERE f.run = holdfast_steps.run)
"""
_DROP_STATE = """
DELETE FROM holdfast_state WHERE scope IN ({keys})
AND NOT EXISTS (SELECT 1 FROM holdfast_fences AS f WHERE f.run = holdfast_state.run)
"""
_DROP_THREADS = "DELETE FROM holdfast_state WHERE scope IN ({keys}) AND written_at < :before"
_SILENT_GRAPHS = _SILENT.replace("holdfast_state", "holdfast_checkpoints")
_DROP_CHECKPOINTS = _DROP_STATE.replace("holdfast_state", "holdfast_checkpoints")
_DROP_GRAPHS = _DROP_THREADS.replace("holdfast_state", "holdfast_checkpoints")
_DROP_WRITES = """
DELETE FROM holdfast_checkpoint_writes WHERE scope IN ({keys}) AND NOT EXISTS (
    SELECT 1 FROM holdfast_checkpoints AS c WHERE c.scope = holdfast_checkpoint_writes.scope
    AND c.thread = holdfast_checkpoint_writes.thread AND c.ns = holdfast_checkpoint_writes.ns
    AND c.id = holdfast_checkpoint_writes.id)
"""


def prune(
    *, archived_before: float, steps_before: float, threads_before: float, limit: int
) -> Operation[Pruned]:
    """Remove archived runs with their journals, then journals without an archived run, then old threads."""
    archived, full = yield from _pick(_EXPIRED, archived_before, limit)
    dropped = 0
    if archived:
        done = yield _keyed(_DROP_ARCHIVED, archived, archived_before)
        dropped = done.count
        yield from _drop_journals(archived, archived_before)
    abandoned, full_too = yield from _pick(_ABANDONED, steps_before, limit)
    if abandoned:
        yield from _drop_journals(abandoned, steps_before)
    threads, full_three = yield from _pick(_SILENT, threads_before, limit)
    if threads:
        yield _keyed(_DROP_THREADS, threads, threads_before)
    graphs, full_four = yield from _pick(_SILENT_GRAPHS, threads_before, limit)
    if graphs:
        yield _keyed(_DROP_GRAPHS, graphs, threads_before)
        yield _keyed(_DROP_WRITES, graphs)
    whole = not (full or full_too or full_three or full_four)
    return Pruned(dropped, len(abandoned), len({*threads, *graphs}), whole=whole)


def _pick(sql: str, before: float, limit: int) -> Operation[tuple[list[str], bool]]:
    """Return the first names whose rows are within the limit, at least one, and whether more are left."""
    if not before:
        return [], False
    found = yield Statement(sql, {"before": before, "limit": limit})
    picked: list[str] = []
    rows = 0
    for name, inside in found.rows:
        rows += inside
        if picked and rows > limit:
            return picked, True
        picked.append(name)
    return picked, len(picked) == limit


def _drop_journals(runs: Sequence[str], before: float) -> Operation[None]:
    yield _keyed(_DROP_FENCES, runs, before)
    yield _keyed(_DROP_STEPS, runs)
    own = [scope_label(run, "", "") for run in runs]
    yield _keyed(_DROP_STATE, own)
    yield _keyed(_DROP_CHECKPOINTS, own)
    yield _keyed(_DROP_WRITES, own)


def _keyed(sql: str, keys: Sequence[str], before: float | None = None) -> Statement:
    values: dict[str, Any] = {"keys": msgspec.json.encode(keys).decode()}
    if before is not None:
        values["before"] = before
    return Statement(sql, values)
