"""The store: the memory of runs, and ended runs, independent of the database."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.config.queues import partition_name
from holdfast.errors import ConfigError
from holdfast.reliability.backoff import backoff_seconds
from holdfast.store import archive, retention, schedules
from holdfast.store.archive import ArchivedRun, ArchivePage, ArchiveQuery
from holdfast.store.engine import Away, Statement, database_outages
from holdfast.store.fences import Holder
from holdfast.store.memory import StoredMemory
from holdfast.store.migrate import missing
from holdfast.store.names import label, run_label, scope_label, thread_label

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from holdfast.store.engine import DatabaseEngine, Kind, Operation
    from holdfast.store.retention import Pruned
    from holdfast.store.schedules import SchedulesHead, StoredSchedule

T = TypeVar("T")

_log = logging.getLogger(__name__)  # this package must not import telemetry

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_TABLES = ("fences", "steps", "state", "archive", "checkpoints", "checkpoint_writes", "schedules")


class Store:
    """One database, opened by :func:`holdfast.store.open.open_store`; close it, or use ``async with``."""

    def __init__(self, engine: DatabaseEngine, *, timeout_seconds: float) -> None:
        self._engine = engine
        self._timeout = timeout_seconds
        self._outages = database_outages(
            "steps, states and the archive of runs", "runs that need them wait until their deadlines"
        )

    @property
    def kind(self) -> Kind:
        """The kind of its database."""
        return self._engine.kind

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish the operations in progress, and close the store."""
        await self._engine.aclose()

    # -- schema

    async def migrate(self) -> list[str]:
        """Apply missing migrations, and return their names."""
        return await self._engine.migrate()

    async def check_schema(self) -> None:
        """Raise ConfigError for a schema that this version can't use."""
        missed = missing(self.kind, await self._engine.applied(), "the database")
        if missed:
            raise ConfigError(
                f"the database lacks {', '.join(each.title for each in missed)}: run `holdfast migrate`"
            )

    async def id(self) -> str:
        """Return the id that was written when the store was created: the same for all processes."""
        return await self.perform("id", _id, write=False, single=True)

    # -- running runs

    def memory(
        self,
        *,
        run_id: str,
        thread_id: str,
        fence: int,
        owner: str,
        queue: str = "",
        tenant: str = "",
        partition: int = 0,
        generation: int = 0,
    ) -> StoredMemory:
        """Return the memory of a run, for one attempt under one fence; nothing is read until it is used.

        A thread belongs to its tenant, and to the attempt with the highest ``generation``: late writes of
        earlier runs are refused. Each partition numbers its own attempts. Runs of two queues are different
        runs, even with the same id.
        """
        run = run_label(queue, run_id)
        scope = scope_label(run, thread_id, tenant)
        holder = Holder(
            run=run,
            fence=fence,
            owner=label(owner),
            scope=scope,
            thread=thread_label(partition_name(queue, partition), scope) if thread_id else "",
            generation=generation if thread_id else 0,
        )
        return StoredMemory(self, holder, queue=queue)

    # -- ended runs

    async def archive(self, runs: Sequence[ArchivedRun]) -> None:
        """Store finished runs; storing a run twice changes nothing, a later end of a run replaces it."""
        if runs:
            await self.perform("archive", lambda: archive.archive(runs))

    async def archived(self, run_id: str, tenant: str = "", queue: str = "") -> ArchivedRun | None:
        """Return a finished run, of that tenant and queue if given."""
        return await self.perform(
            "archived", lambda: archive.find(run_id, tenant, queue), write=False, single=True
        )

    async def list_archived(
        self,
        *,
        queue: str = "",
        status: str = "",
        agent: str = "",
        thread_id: str = "",
        tenant: str = "",
        since: float = 0.0,
        until: float = 0.0,
        limit: int = 50,
        cursor: str = "",
    ) -> ArchivePage:
        """List finished runs without input and result, the last to finish first; ``until`` is exclusive."""
        wanted = ArchiveQuery(
            queue=queue,
            status=status,
            agent=agent,
            thread_id=thread_id,
            tenant=tenant,
            since=since,
            until=until,
            limit=max(1, limit),
            cursor=cursor,
        )
        return await self.perform("list_archived", lambda: archive.select(wanted), write=False, single=True)

    async def prune(
        self, *, archived_before: float, steps_before: float, limit: int, threads_before: float = 0.0
    ) -> Pruned:
        """Remove old rows, about ``limit`` of each kind; a time of 0 keeps everything.

        Archived runs are removed with their steps. ``steps_before`` is for steps of runs that were never
        archived, which may still wait for an answer, so it should be much earlier. ``threads_before`` is for
        the state of threads without a write since.
        """
        return await self.perform(
            "prune",
            lambda: retention.prune(
                archived_before=archived_before,
                steps_before=steps_before,
                threads_before=threads_before,
                limit=max(1, limit),
            ),
        )

    # -- schedules, by their set of keys

    async def put_schedules(
        self, space: str, rows: Sequence[StoredSchedule], *, now: float
    ) -> dict[str, StoredSchedule]:
        """Write schedules; an older revision never replaces a newer one. Return the present rows, by name."""
        return await self.perform("put_schedules", lambda: schedules.put(space, rows, now))

    async def find_schedules(self, space: str, names: Sequence[str]) -> dict[str, StoredSchedule]:
        """Return the rows of these schedules, including removed ones."""
        return await self.perform(
            "find_schedules", lambda: schedules.find(space, names), write=False, single=True
        )

    async def page_schedules(
        self, space: str, *, after: str = "", limit: int = 500, since: float = 0.0
    ) -> list[StoredSchedule]:
        """Return the next schedules by name; with ``since`` only those written since then."""
        return await self.perform(
            "page_schedules", lambda: schedules.page(space, after, limit, since), write=False, single=True
        )

    async def schedules_head(self, space: str) -> SchedulesHead:
        """Return the values that change with every schedule."""
        return await self.perform("schedules_head", lambda: schedules.head(space), write=False, single=True)

    async def forget_schedules(self, space: str, *, before: float) -> int:
        """Delete the tombstones of schedules that were removed before that time."""
        return await self.perform("forget_schedules", lambda: schedules.forget(space, before), single=True)

    # -- health

    async def ping(self) -> float:
        """Return how many seconds the database took to answer."""
        began = time.perf_counter()
        await self.perform("ping", lambda: _number("SELECT 1"), write=False, single=True)
        return time.perf_counter() - began

    async def sizes(self) -> dict[str, int]:
        """Return the number of rows of every table; for a large one in PostgreSQL, an estimate."""
        return await self.perform("sizes", lambda: _sizes(self.kind), write=False)

    async def stored_bytes(self) -> int:
        """Return the size of the store in bytes."""
        return await self.perform("stored_bytes", lambda: _number("{bytes}"), write=False, single=True)

    # -- operations

    async def perform(
        self,
        name: str,
        operation: Callable[[], Operation[T]],
        *,
        write: bool = True,
        single: bool = False,
        patient: bool = False,
    ) -> T:
        """Run an operation; retry while the database is unavailable, if ``patient`` without a timeout."""
        deadline = time.monotonic() + self._timeout
        for failures in itertools.count(1):
            pause = backoff_seconds(failures, _FIRST_PAUSE, _LONGEST_PAUSE)
            try:
                with self._outages:
                    return await self._engine.run(operation, write=write, single=single)
            except Away:
                if not patient and time.monotonic() + pause > deadline:
                    raise
                _log.debug("%s waits for the database", name)
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")


def _id() -> Operation[str]:
    answer = yield Statement("SELECT id FROM holdfast_store")
    return str(answer.rows[0][0])


def _number(sql: str) -> Operation[int]:
    answer = yield Statement(sql)
    return int(answer.rows[0][0] or 0)


_MANY = 100_000


def _sizes(kind: Kind) -> Operation[dict[str, int]]:
    sizes: dict[str, int] = {}
    for table in _TABLES:
        sizes[table] = 0
        if kind == "postgresql":  # counting a large table there reads all of it
            sizes[table] = yield from _number(
                f"SELECT reltuples::bigint FROM pg_class WHERE oid = 'holdfast_{table}'::regclass"  # noqa: S608
            )
        if sizes[table] < _MANY:
            sizes[table] = yield from _number(f"SELECT count(*) FROM holdfast_{table}")  # noqa: S608
    return sizes
