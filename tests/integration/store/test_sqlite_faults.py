"""A SQLite file that is locked, damaged or can't be written is said by name, and what passes is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from holdfast.config import DatabaseSettings
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.store.open import open_store
from tests.support.outages import outage_lines
from tests.support.store.outages import note_away
from tests.support.waiting import stays, until

SETTING = r"database\.path \(HOLDFAST_DATABASE_PATH\)"


@pytest.fixture
def database(tmp_path) -> DatabaseSettings:
    return DatabaseSettings(path=str(tmp_path / "store.sqlite"), timeout_seconds=0.3)


def memory(store, run="r", fence=1):
    return store.memory(run_id=run, thread_id="", fence=fence, owner="me")


@contextlib.contextmanager
def locked(path: str):
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


async def test_a_locked_file_is_waited_for_by_runs_and_refused_to_others(database, log_lines):
    async with await open_store(database) as store:
        noticed = note_away(store)
        with locked(database.path):
            writing = asyncio.create_task(memory(store).put_step("s", b"1"))
            with pytest.raises(
                StoreUnavailable, match=r"store\.sqlite has been locked.*database\.timeout_seconds"
            ):
                await store.prune(archived_before=1.0, steps_before=1.0, limit=1)
            assert await store.archived("r") is None  # reading goes on beside it
            await until(lambda: noticed)
            (line,) = outage_lines(log_lines(), "database")
            assert "has been locked" in line["error"]
            assert not writing.done()
        await asyncio.wait_for(writing, 30)
        assert await memory(store, fence=2).step("s") == b"1"


async def test_a_file_locked_at_the_start_is_said(database):
    async with await open_store(database):
        pass
    with locked(database.path), pytest.raises(StoreUnavailable, match="has been locked"):
        await open_store(database)


async def test_a_file_that_another_process_is_making_is_waited_for(tmp_path):
    """Fails if SQLite's own timeout is relied on: whoever would make the same file is refused at once."""
    database = DatabaseSettings(path=str(tmp_path / "store.sqlite"), timeout_seconds=30.0)
    with locked(database.path):
        opening = asyncio.create_task(open_store(database))
        await stays(lambda: not opening.done(), seconds=0.3)
    async with await opening as store:
        assert await store.ping() > 0


async def test_a_run_that_waits_for_a_locked_file_can_be_cancelled(database):
    async with await open_store(database) as store:
        with locked(database.path), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await memory(store).put_step("s", b"1")


@pytest.mark.parametrize("content", [b"this is not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
async def test_a_file_that_is_no_database_is_refused_by_name(database, tmp_path, content):
    (tmp_path / "store.sqlite").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"store\.sqlite, from {SETTING}"):
        await open_store(database)
    assert (tmp_path / "store.sqlite").read_bytes() == content


@pytest.mark.parametrize("path", ["/proc/nowhere/store.sqlite", "/", "/dev/null/store.sqlite"])
async def test_a_place_that_can_not_be_written_is_refused_by_name(path):
    with pytest.raises(ConfigError, match=rf"{path}, from {SETTING}"):
        await open_store(DatabaseSettings(path=path))


async def test_a_damaged_page_is_said_by_the_operation_that_meets_it(database, tmp_path):
    async with await open_store(database) as store:
        for at in range(200):
            await memory(store).put_step(f"s{at}", b"x" * 500)
    file = tmp_path / "store.sqlite"
    raw = bytearray(file.read_bytes())
    raw[4096 * 2 :] = b"\xa5" * (len(raw) - 4096 * 2)
    file.write_bytes(raw)
    with pytest.raises((StoreUnavailable, ConfigError), match=rf"damaged.*|{SETTING}"):
        async with await open_store(database) as store:
            await memory(store, fence=2).step("s1")


async def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(database):
    async with await open_store(database) as store:
        mine = memory(store)
        await mine.put_step("before", b"1")
        await store._engine._writer.do(
            lambda c: c.execute("PRAGMA max_page_count = 40").fetchall(), alone=True
        )
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await mine.put_step("large", b"x" * 1_000_000)
        await mine.put_step("after", b"2")
    async with await open_store(database) as store:
        later = memory(store, fence=2)
        steps = [await later.step(name) for name in ("before", "large", "after")]
        assert steps == [b"1", None, b"2"]


async def test_a_closed_store_says_so(database):
    store = await open_store(database)
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.ping()


async def test_closing_writes_what_was_asked_before(database):
    store = await open_store(database)
    mine = memory(store)
    await mine.step("x")
    writes = [asyncio.create_task(mine.put_step(f"s{at}", b"1")) for at in range(50)]
    await asyncio.sleep(0)
    await store.aclose()
    await asyncio.gather(*writes)
    async with await open_store(database) as again:
        assert (await again.sizes())["steps"] == 50


def test_what_a_killed_process_was_told_is_written_stays(database, tmp_path):
    code = """
import asyncio, sys
from holdfast.config import DatabaseSettings
from holdfast.store.open import open_store
async def main():
    store = await open_store(DatabaseSettings(path=sys.argv[1]))
    mine = store.memory(run_id="r", thread_id="", fence=1, owner="me")
    for at in range(1_000_000):
        await mine.put_step(f"s{at}", b"x")
        print(at, flush=True)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", code, database.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 100:
            break
    os.kill(process.pid, signal.SIGKILL)
    told = [int(line) for line in process.stdout if line.endswith("\n")] or [100]
    process.wait(10)
    process.stdout.close()

    async def look() -> list[bytes | None]:
        async with await open_store(database) as store:
            later = memory(store, fence=2)
            return [await later.step(f"s{at}") for at in range(told[-1] + 1)]

    assert set(asyncio.run(look())) == {b"x"}
