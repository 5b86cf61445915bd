"""The schema is brought up to date once, however many ask, and a newer one is left alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import psycopg
import pytest

from holdfast.config import DatabaseSettings
from holdfast.errors import ConfigError
from holdfast.store import migrate
from holdfast.store.open import migrate_store, open_store
from tests.support.processes import forked

TITLES = [each.title for each in migrate.migrations("sqlite")]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path) -> DatabaseSettings:
    if request.param == "sqlite":
        return DatabaseSettings(path=str(tmp_path / "store.sqlite"))
    return DatabaseSettings(url=request.getfixturevalue("postgres_url"))


def environment(database: DatabaseSettings) -> dict[str, str]:
    return {**os.environ, "DATABASE_URL": database.url, "HOLDFAST_DATABASE_PATH": database.path}


def command(database: DatabaseSettings, cwd) -> subprocess.Popen[str]:
    return forked.Popen(
        [sys.executable, "-m", "holdfast", "migrate", "--json"],
        env=environment(database),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def applied_once(database: DatabaseSettings) -> bool:
    async with await open_store(database) as store:
        return await store._engine.applied() == {each.number for each in migrate.migrations(store.kind)}


def test_both_databases_have_the_same_migrations_numbered_without_gaps():
    assert [each.title for each in migrate.migrations("postgresql")] == TITLES
    assert [each.number for each in migrate.migrations("sqlite")] == list(range(1, len(TITLES) + 1))


def test_the_command_run_from_many_processes_at_once_applies_each_migration_once(database, tmp_path):
    processes = [command(database, tmp_path) for _ in range(4)]
    answers = [(process.communicate(timeout=60), process.returncode) for process in processes]
    assert [code for _, code in answers] == [0] * 4, answers
    applied = [json.loads(out)["applied"] for (out, _), _ in answers]
    assert sorted(applied, key=len) == [[], [], [], TITLES]
    assert asyncio.run(applied_once(database))


async def test_many_stores_of_one_process_migrate_together(database):
    applied = await asyncio.gather(*(migrate_store(database) for _ in range(5)))
    assert sorted(applied, key=len) == [[], [], [], [], TITLES]


async def test_a_newer_schema_is_refused_by_name_and_left_as_it_is(database, monkeypatch):
    await migrate_store(database)
    known = migrate.migrations
    monkeypatch.setattr(migrate, "migrations", lambda kind: known(kind)[:-1])
    newest = len(TITLES)
    for attempt in (open_store(database), open_store(database, migrate=True), migrate_store(database)):
        with pytest.raises(ConfigError, match=f"has schema {newest}.*up to {newest - 1}.*upgrade"):
            await attempt


async def test_a_migration_that_fails_leaves_nothing_behind(database, monkeypatch):
    known = migrate.migrations
    broken = migrate.Migration(len(TITLES) + 1, "broken", "CREATE TABLE half (x text);\nNONSENSE;\n")
    monkeypatch.setattr(migrate, "migrations", lambda kind: [*known(kind), broken])
    with pytest.raises(Exception, match=r"(?i)syntax error"):
        await migrate_store(database)
    monkeypatch.undo()
    assert await migrate_store(database) == TITLES


async def test_postgresql_is_not_migrated_unasked(postgres_url):
    database = DatabaseSettings(url=postgres_url)
    with pytest.raises(ConfigError, match=r"lacks 0001_journal.*holdfast migrate"):
        await open_store(database)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()"
        ).fetchone()
    assert found == (0,)
    await migrate_store(database)
    async with await open_store(database) as store:
        assert await store.ping() > 0


def test_the_command_says_what_it_did(database, tmp_path):
    for expected in (f"applied {', '.join(TITLES)}", "up to date"):
        done = forked.run(
            [sys.executable, "-m", "holdfast", "migrate"],
            env=environment(database),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert expected in done.stdout


def test_the_command_fails_in_a_sentence_without_the_password(tmp_path):
    address = "postgresql://me:secret@127.0.0.1:1/none"
    done = forked.run(
        [sys.executable, "-m", "holdfast", "migrate"],
        env={**os.environ, "DATABASE_URL": address},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "database.url (DATABASE_URL)" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr
