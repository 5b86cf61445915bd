"""PostgreSQL: psycopg's pool, with a limit for every wait, and a check of every connection after a failure.

Invariant: a caller that stops waiting returns at once, even if the server hangs; the statement may still be
executed, which is safe because operations are fenced and idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool

from holdfast.errors import ConfigError, InputError, StoreUnavailable
from holdfast.redaction import redact, redact_url
from holdfast.store.dialect import POSTGRESQL
from holdfast.store.engine import Away, QueryResult
from holdfast.store.migrate import APPLIED, CREATE_TABLE, NOTE, missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import DatabaseSettings
    from holdfast.store.engine import Kind, Operation

T = TypeVar("T")

_SETTING: Final = "database.url (DATABASE_URL)"
_LOCK: Final = 0x686F6C6466617374  # "holdfast"
_MIGRATE_SECONDS: Final = 600.0
_POOL_SECONDS: Final = 1.0
"""How long the pool tries before the operation retries; its own pauses would grow to minutes."""
_IDLE_SECONDS: Final = 1.0
"""A connection that was used more recently is not checked: that would double the time of each operation."""
_IDLE_IN_TRANSACTION: Final = 0.5
"""How long a transaction may stand still, as a part of the timeout: a frozen process keeps its locks."""
_AWAY: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.IdleInTransactionSessionTimeout,
    OSError,
)


class _Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    used_at = 0.0


class PostgresEngine:
    """The engine over one PostgreSQL database."""

    kind: Kind = "postgresql"

    def __init__(self, settings: DatabaseSettings) -> None:
        self._where = f"the database {redact_url(settings.url)}, from {_SETTING},"
        self._timeout = settings.timeout_seconds
        self._url = settings.url
        self._parameters = self._connection_parameters()
        self._pool = AsyncConnectionPool(
            settings.url,
            connection_class=_Connection,
            kwargs=self._parameters,
            min_size=1,
            max_size=settings.pool_size,
            timeout=min(_POOL_SECONDS, self._timeout),
            reconnect_timeout=_POOL_SECONDS,
            check=self._check,
            configure=self._configure,
            name="holdfast-store",
            open=False,
        )
        self._failed_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Connect, or raise an error with the reason."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    connection = await _Connection.connect(self._url, **self._parameters)
                    await connection.close()
                break
            except (*_AWAY, TimeoutError) as exc:
                if time.monotonic() > deadline:
                    raise self._away(exc) from exc
                await asyncio.sleep(0.1)
        await self._pool.open()

    async def run(self, operation: Callable[[], Operation[T]], *, write: bool, single: bool = False) -> T:
        """Run an operation; ``single`` saves the round trips of a transaction."""
        del write
        return await self._with_timeout(self._attempt(operation, single=single), self._timeout)

    async def migrate(self) -> list[str]:
        """Apply missing migrations, one process at a time."""
        return await self._with_timeout(self._migrate(), _MIGRATE_SECONDS)

    async def applied(self) -> set[int]:
        """Return the numbers of the migrations that the database has."""

        async def read() -> set[int]:
            async with self._pool.connection(timeout=self._timeout) as connection:
                try:
                    return {row[0] for row in await (await connection.execute(APPLIED)).fetchall()}
                except psycopg.errors.UndefinedTable:
                    return set()

        return await self._with_timeout(read(), self._timeout)

    async def aclose(self) -> None:
        """Close all connections."""
        for task in (*self._abandoned, *([self._refreshing] if self._refreshing else [])):
            task.cancel()
        await self._pool.close(timeout=min(self._timeout, 2.0))

    # -- one try

    async def _with_timeout(self, work: Any, seconds: float) -> Any:
        """Wait for ``work`` up to the timeout, not for its cancellation: in psycopg that takes up to 10 s."""
        task: asyncio.Task[Any] = asyncio.create_task(work, name="store operation")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError as exc:
            self._check_connections()
            raise self._away(exc) from exc
        except _AWAY as exc:
            self._check_connections()
            raise self._away(exc) from exc
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as exc:
            raise ConfigError(
                f"{self._where} lacks tables: run `holdfast migrate` ({_first_line(exc)})"
            ) from exc
        except psycopg.errors.InsufficientPrivilege as exc:
            raise ConfigError(f"{self._where} refuses its user: {_first_line(exc)}") from exc
        except psycopg.DataError as exc:
            raise InputError(f"{self._where} can't take this value: {_first_line(exc)}") from exc
        except psycopg.Error as exc:
            raise StoreUnavailable(f"{self._where} answered: {_first_line(exc)}") from exc
        finally:
            if not task.done():
                task.cancel()
                self._abandoned.add(task)
                task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: no caller waits for the task any more

    async def _attempt(self, operation: Callable[[], Operation[T]], *, single: bool) -> T:
        async with self._pool.connection() as connection:
            if single:
                answer = await _drive(operation(), connection)
            else:
                async with connection.transaction():
                    answer = await _drive(operation(), connection)
            connection.used_at = time.monotonic()
            return answer

    async def _migrate(self) -> list[str]:
        async with self._pool.connection(timeout=self._timeout) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            await connection.execute(CREATE_TABLE)
            applied = [row[0] for row in await (await connection.execute(APPLIED)).fetchall()]
            wanted = missing(self.kind, applied, self._where.removesuffix(","))
            for each in wanted:
                await connection.execute(each.sql.encode())
                values = {"number": each.number, "name": each.name, "now": time.time()}
                await connection.execute(POSTGRESQL.render(NOTE).encode(), values)
            return [each.title for each in wanted]

    # -- health

    async def _check(self, connection: _Connection) -> None:
        if connection.used_at < max(self._failed_at, time.monotonic() - _IDLE_SECONDS):
            async with asyncio.timeout(self._timeout):
                await AsyncConnectionPool.check_connection(connection)

    async def _configure(self, connection: _Connection) -> None:
        """Have the server end a transaction in which this process stands still: others wait for its rows."""
        longest_ms = round(max(self._timeout * _IDLE_IN_TRANSACTION, 1.0) * 1000)
        # guard: idle-transaction-ended
        await connection.execute(f"SET idle_in_transaction_session_timeout = {longest_ms}".encode())

    def _check_connections(self) -> None:
        """After a failure, replace all dead connections at once, instead of one per try."""
        self._failed_at = time.monotonic()
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="store refresh")

    async def _refresh(self) -> None:
        with contextlib.suppress(psycopg.Error, TimeoutError, OSError):
            async with asyncio.timeout(self._timeout):
                await self._pool.check()

    def _connection_parameters(self) -> dict[str, Any]:
        try:
            given = conninfo_to_dict(self._url)
        except psycopg.ProgrammingError as exc:
            raise ConfigError(
                f"{_SETTING} is not the address of a PostgreSQL database: {_first_line(exc)}"
            ) from exc
        defaults = {
            "autocommit": True,
            "connect_timeout": max(2, round(self._timeout)),
            "application_name": "holdfast",
        }
        return {name: value for name, value in defaults.items() if name not in given}

    def _away(self, exc: BaseException) -> Away:
        why = _first_line(exc) or f"no answer within database.timeout_seconds = {self._timeout:g}"
        return Away(f"{self._where} can't be reached or does not answer: {why}")


async def _drive(operation: Operation[T], connection: _Connection) -> T:
    try:
        statement = next(operation)
        async with connection.cursor() as cursor:
            while True:
                sql = POSTGRESQL.render(statement.sql).encode()
                if statement.many is not None:
                    await cursor.executemany(sql, statement.many)
                else:
                    await cursor.execute(sql, statement.values, binary=None)
                rows = await cursor.fetchall() if cursor.description else []
                statement = operation.send(QueryResult(rows, cursor.rowcount))
    except StopIteration as stop:
        return stop.value


def _first_line(exc: BaseException) -> str:
    """Return the first line of a server's message, without passwords."""
    return redact(str(exc).strip().partition("\n")[0])
