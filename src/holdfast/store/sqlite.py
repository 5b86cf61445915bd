"""SQLite: one thread writes, with one commit for all waiting writes, and another thread reads.

Invariant: a write is answered after its commit has reached the disk: it survives crashes and power cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import ConfigError, PayloadTooLarge, StoreUnavailable
from holdfast.store.dialect import SQLITE
from holdfast.store.engine import Away, QueryResult
from holdfast.store.migrate import APPLIED, CREATE_TABLE, NOTE, missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.engine import Kind, Operation

T = TypeVar("T")

_BATCH: Final = 256
_SETTING: Final = "database.path (HOLDFAST_DATABASE_PATH)"
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_BUSY_PAUSE_SECONDS: Final = 0.01
_MEANINGS: Final = {
    sqlite3.SQLITE_CANTOPEN: "can't be opened",
    sqlite3.SQLITE_READONLY: "can't be written to",
    sqlite3.SQLITE_PERM: "can't be written to",
    sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a backup, or move it away",
    sqlite3.SQLITE_NOTADB: "is no SQLite database, or is damaged: restore it from a backup, or move it away",
    sqlite3.SQLITE_FULL: "can't grow, its disk is full",
    sqlite3.SQLITE_IOERR: "can't be read or written, its disk fails",
}


@dataclass(slots=True)
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    alone: bool = False
    result: Any = None
    error: BaseException | None = None


class _ConnectionThread:
    """A thread with its own connection, which performs jobs in their order."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], *, writes: bool) -> None:
        self._connect = connect
        self._writes = writes
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._serve, name="store-writer" if writes else "store-reader", daemon=True
        )
        self._closed = False
        self._connection: sqlite3.Connection | None = None
        self._thread.start()

    async def do(self, work: Callable[[sqlite3.Connection], T], *, alone: bool = False) -> T:
        """Perform a job on the thread; with ``alone`` the job manages its own transaction."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(work, loop, future, alone))
        return await future

    async def close(self) -> None:
        """Perform the waiting jobs, then end the thread."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _serve(self) -> None:
        held: _Job | None = None
        while (job := held or self._jobs.get()) is not None:
            batch, held, ended = self._gather(job)
            self._perform(batch)
            _answer(batch)
            if ended:
                break
        if self._connection is not None:
            self._connection.close()

    def _gather(self, first: _Job) -> tuple[list[_Job], _Job | None, bool]:
        """Take all waiting jobs, so that they share a commit, up to a job that must be ``alone``."""
        batch = [first]
        while self._writes and not first.alone and len(batch) < _BATCH:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None or job.alone:
                return batch, job, job is None
            batch.append(job)
        return batch, None, False

    def _perform(self, batch: list[_Job]) -> None:
        try:
            if self._connection is None:
                self._connection = self._connect()
            if batch[0].alone or not self._writes:
                for job in batch:
                    _try(job, self._connection)
            else:
                self._commit(batch, self._connection)
        except Exception as exc:  # an error of the transaction is one of every job in it
            for job in batch:
                job.error = job.error or exc
            self._close_connection()

    def _commit(self, batch: list[_Job], connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for job in batch:
            connection.execute("SAVEPOINT job")
            _try(job, connection)
            if isinstance(job.error, sqlite3.Error) and not connection.in_transaction:
                raise job.error  # a full or failing disk has ended the whole transaction
            if job.error is not None:
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
        connection.execute("COMMIT")

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()  # rolls back whatever was open


def _try(job: _Job, connection: sqlite3.Connection) -> None:
    try:
        job.result = job.work(connection)
    except Exception as exc:
        job.error = exc


def _answer(batch: list[_Job]) -> None:
    """Wake each event loop once for all its jobs."""
    for loop in {job.loop for job in batch}:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its callers with it
            loop.call_soon_threadsafe(_settle, [job for job in batch if job.loop is loop])


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


class SqliteEngine:
    """The engine of one file, which any number of processes may use."""

    kind: Kind = "sqlite"

    def __init__(self, path: str, *, timeout_seconds: float) -> None:
        self._path = Path(path).absolute()
        self._timeout = timeout_seconds
        self._writer = _ConnectionThread(self._connect, writes=True)
        self._reader = _ConnectionThread(self._connect, writes=False)

    async def open(self) -> list[str]:
        """Open the file, or create it, and apply missing migrations, like ``migrate``."""
        try:
            return await self.migrate()
        except BaseException as exc:
            await self.aclose()
            if isinstance(exc, StoreUnavailable) and not isinstance(exc, Away):
                raise ConfigError(str(exc)) from exc
            raise

    async def run(self, operation: Callable[[], Operation[T]], *, write: bool, single: bool = False) -> T:
        """Run an operation; concurrent writes share a commit."""
        del single
        return await self._do(lambda connection: _drive(operation(), connection), write=write)

    async def migrate(self) -> list[str]:
        """Apply missing migrations, one process at a time."""
        return await self._do(self._migrate, write=True, alone=True)

    async def applied(self) -> set[int]:
        """Return the numbers of the migrations that the file has."""
        return await self._do(lambda connection: {row[0] for row in connection.execute(APPLIED)}, write=False)

    async def aclose(self) -> None:
        """Perform the waiting writes and close the file."""
        await self._writer.close()
        await self._reader.close()

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, write: bool, alone: bool = False) -> T:
        try:
            return await (self._writer if write else self._reader).do(work, alone=alone)
        except sqlite3.DataError as exc:
            raise PayloadTooLarge(f"{self._path} can't take this value: {exc}") from exc
        except (sqlite3.DatabaseError, OSError) as exc:
            raise self._error_of(exc) from exc

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        try:
            self._use_wal(connection)
            # FULL: an answered write survives a power cut too; a step that sent a mail must not be lost.
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Retry while another process creates the file.

        SQLite returns BUSY for this pragma without waiting for its timeout.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as exc:
                if not _is_busy(exc) or time.monotonic() > deadline:  # guard: wal-retried
                    raise
            else:
                return
            time.sleep(_BUSY_PAUSE_SECONDS)

    def _migrate(self, connection: sqlite3.Connection) -> list[str]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(CREATE_TABLE)
            applied = [row[0] for row in connection.execute(APPLIED)]
            wanted = missing(self.kind, applied, f"the database {self._path}")
            for each in wanted:
                for statement in _statements(each.sql):
                    connection.execute(statement)
                connection.execute(NOTE, {"number": each.number, "name": each.name, "now": time.time()})
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        return [each.title for each in wanted]

    def _error_of(self, exc: Exception) -> StoreUnavailable:
        if _is_busy(exc):
            return Away(
                f"the database {self._path} has been locked by another process for more than "
                f"database.timeout_seconds = {self._timeout:g} ({exc}): it writes for long, or was stopped "
                f"while it wrote; `fuser -v {self._path}` lists the processes that have the file open"
            )
        meaning = _MEANINGS.get(_code(exc), "can't be used")
        return StoreUnavailable(f"the database {self._path}, from {_SETTING}, {meaning} ({exc})")


def _code(exc: Exception) -> int:
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def _is_busy(exc: Exception) -> bool:
    return _code(exc) in _BUSY


def _drive(operation: Operation[T], connection: sqlite3.Connection) -> T:
    try:
        statement = next(operation)
        while True:
            sql, before = SQLITE.render(statement.sql), connection.total_changes
            if statement.many is not None:
                cursor = connection.executemany(sql, statement.many)
            else:
                cursor = connection.execute(sql, statement.values)
            # The cursor's own count is -1 for an INSERT that begins with WITH.
            statement = operation.send(QueryResult(cursor.fetchall(), connection.total_changes - before))
    except StopIteration as stop:
        return stop.value


def _statements(script: str) -> list[str]:
    """Split a script; ``executescript`` would commit the open transaction."""
    found: list[str] = []
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found
