"""Opens the store of the settings: PostgreSQL if they have a URL, else a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.packages import needs_extra
from holdfast.store.sqlite import SqliteEngine
from holdfast.store.store import Store

if TYPE_CHECKING:
    from holdfast.config import DatabaseSettings
    from holdfast.store.engine import DatabaseEngine


async def open_store(settings: DatabaseSettings, *, migrate: bool = False) -> Store:
    """Open the store; a SQLite file is migrated, a PostgreSQL database only with ``migrate``."""
    engine, _ = await _open(settings)
    store = Store(engine, timeout_seconds=settings.timeout_seconds)
    try:
        if migrate:
            await store.migrate()
        else:
            await store.check_schema()
    except BaseException:
        await store.aclose()
        raise
    return store


async def migrate_store(settings: DatabaseSettings) -> list[str]:
    """Apply missing migrations, and return their names."""
    engine, applied = await _open(settings)
    try:
        return applied + await engine.migrate()
    finally:
        await engine.aclose()


async def _open(settings: DatabaseSettings) -> tuple[DatabaseEngine, list[str]]:
    """Return the engine, and the migrations that opening it has applied."""
    if not settings.url:
        sqlite = SqliteEngine(settings.path, timeout_seconds=settings.timeout_seconds)
        return sqlite, await sqlite.open()
    with needs_extra("PostgreSQL (database.url, DATABASE_URL)", "postgres"):
        from holdfast.store.postgresql import PostgresEngine  # noqa: PLC0415  most processes need no driver
    postgresql = PostgresEngine(settings)
    await postgresql.open()
    return postgresql, []
