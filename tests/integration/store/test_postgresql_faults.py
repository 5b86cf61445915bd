"""PostgreSQL restarted, killed or hanging, between and during operations: runs wait and go on, others are told."""

from __future__ import annotations

import asyncio
import contextlib
import time

import psycopg
import pytest

from holdfast.config import DatabaseSettings
from holdfast.errors import ConfigError, LeaseLost, StoreUnavailable
from holdfast.store.open import open_store
from tests.support.store.outages import note_away
from tests.support.waiting import until


def memory(store, run="r", fence=1, owner="me"):
    return store.memory(run_id=run, thread_id="t", fence=fence, owner=owner)


@pytest.fixture
def server(start_postgres):
    return start_postgres()


@pytest.fixture
async def open_here(server):
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings):
            database = DatabaseSettings(url=server.url, **settings)
            store = await stack.enter_async_context(await open_store(database, migrate=True))
            return store, note_away(store)

        yield start


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_restart_between_operations_is_not_noticed(server, open_here, how):
    store, _ = await open_here(timeout_seconds=40.0)
    mine = memory(store)
    # As many connections as there may be, all of which die.
    await asyncio.gather(*(memory(store, run=f"w{at}").put_step("s", b"1") for at in range(20)))
    await mine.put_step("before", b"1")
    await mine.put_state("k", b"1")
    getattr(server, how)()
    server.launch()
    began = time.monotonic()
    assert await store.ping() > 0
    await mine.put_step("after", b"2")
    assert await mine.state() == {"k": b"1"}
    assert time.monotonic() - began < 30
    later = memory(store, fence=2)
    assert [await later.step("before"), await later.step("after")] == [b"1", b"2"]


async def test_a_restart_during_operations_loses_nothing_and_does_nothing_twice(server, open_here):
    store, noticed = await open_here(timeout_seconds=2.0)
    stopping = asyncio.Event()
    told: dict[str, list[str]] = {}

    async def work(run: str) -> None:
        mine, done = memory(store, run=run), told.setdefault(run, [])
        while not stopping.is_set():
            await mine.put_step(f"s{len(done)}", f"{len(done)}".encode())
            done.append(f"{len(done)}")

    async with asyncio.TaskGroup() as group:
        for at in range(8):
            group.create_task(work(f"r{at}"))
        for _ in range(2):
            reached = sum(map(len, told.values())) + 200
            await until(lambda reached=reached: sum(map(len, told.values())) >= reached)
            server.kill()
            server.launch()
        reached = sum(map(len, told.values())) + 200
        await until(lambda: sum(map(len, told.values())) >= reached)
        stopping.set()
    assert noticed
    for run, values in told.items():
        later = memory(store, run=run, fence=2)
        assert [await later.step(f"s{at}") for at in range(len(values))] == [v.encode() for v in values]
    assert (await store.sizes())["steps"] == sum(map(len, told.values()))


async def test_a_server_that_is_away_for_long_is_waited_for_by_runs_and_refused_to_others(server, open_here):
    store, noticed = await open_here(timeout_seconds=2.0)
    mine = memory(store)
    await mine.put_step("before", b"1")
    server.kill()
    waiting = asyncio.create_task(mine.put_step("during", b"2"))
    fresh = asyncio.create_task(memory(store, run="fresh").step("s"))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"database\.url \(DATABASE_URL\).*can't be reached"):
        await store.list_archived()
    assert time.monotonic() - began < 30
    await until(lambda: len(noticed) >= 6)
    assert not waiting.done()
    server.launch()
    await asyncio.wait_for(waiting, 30)
    assert await asyncio.wait_for(fresh, 30) is None
    assert await memory(store, fence=2).step("during") == b"2"


async def test_a_run_is_let_go_at_once_while_the_server_hangs(server, open_here):
    """psycopg's own farewell to a hanging server takes ten seconds, in which a lost lease would go on."""
    store, _ = await open_here(timeout_seconds=30.0)
    mine = memory(store)
    await mine.put_step("before", b"1")
    server.freeze()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await mine.put_step("during", b"2")
    assert time.monotonic() - began < 8
    server.thaw()
    await mine.put_step("after", b"3")
    assert await mine.step("after") == b"3"


async def test_a_server_that_hangs_and_wakes_up_is_gone_on_with(server, open_here):
    store, noticed = await open_here(timeout_seconds=2.0)
    mine = memory(store)
    await mine.put_step("before", b"1")
    server.freeze()
    waiting = asyncio.create_task(mine.put_step("during", b"2"))
    await until(lambda: len(noticed) >= 2)
    server.thaw()
    await asyncio.wait_for(waiting, 30)
    assert await memory(store, fence=2).step("during") == b"2"


async def test_a_fence_still_holds_after_a_restart(server, open_here):
    store, _ = await open_here()
    other, _ = await open_here()
    old = memory(store)
    await old.put_step("s", b"1")
    await memory(other, fence=2, owner="other").step("s")
    server.restart()
    with pytest.raises(LeaseLost):
        await old.put_step("s", b"2")
    assert await memory(other, fence=3, owner="third").step("s") == b"1"


async def test_a_server_that_starts_late_is_waited_for(server, open_here):
    await open_here()
    server.stop()
    server.launch()
    async with await open_store(DatabaseSettings(url=server.url, timeout_seconds=20.0)) as store:
        assert await store.ping() > 0


async def test_no_server_is_said_by_name_without_the_password():
    database = DatabaseSettings(url="postgresql://me:secret@127.0.0.1:1/x", timeout_seconds=0.2)
    with pytest.raises(StoreUnavailable, match=r"me:\*\*\*@.*database\.url \(DATABASE_URL\)") as caught:
        await open_store(database)
    assert "secret" not in str(caught.value)


async def test_an_address_that_makes_no_sense_is_said_by_name():
    with pytest.raises(ConfigError, match=r"database\.url \(DATABASE_URL\)"):
        await open_store(DatabaseSettings(url="postgresql://host/x?nonsense=1"))


async def test_tables_that_vanish_are_said(server, open_here):
    store, _ = await open_here()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP TABLE holdfast_steps")
    with pytest.raises(ConfigError, match="holdfast migrate"):
        await memory(store).put_step("s", b"1")


async def test_a_transaction_that_stands_still_is_ended_by_the_server(server, open_here):
    """A worker is frozen between two statements: its locks must not keep the next run of its thread from the store."""
    frozen, _ = await open_here(timeout_seconds=4.0)
    store, _ = await open_here(timeout_seconds=30.0)
    earlier = store.memory(run_id="a", thread_id="t", fence=1, owner="me", generation=1)
    await earlier.put_state("x", b"1")
    async with frozen._engine._pool.connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("SELECT 1 FROM holdfast_fences WHERE run = 'a' FOR SHARE")
        later = store.memory(run_id="b", thread_id="t", fence=1, owner="me", generation=2)
        assert await asyncio.wait_for(later.state(), 20) == {"x": b"1"}
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            await connection.execute("SELECT 1")
    assert await frozen.ping() > 0
