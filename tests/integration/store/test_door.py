"""Who opens the store, when, and what becomes of a store that must not be used."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.config import DatabaseSettings
from holdfast.errors import StoreMismatch
from holdfast.redis.stores import RegisteredStore, register_store, registered_store
from holdfast.runs.execution.worker import WorkerTuning
from holdfast.runs.run import Status
from holdfast.services.worker import WorkerProcess
from holdfast.store.lazy import LazyStore
from tests.support.runs.system import System
from tests.support.waiting import stays, until


@pytest.fixture
def database(tmp_path) -> DatabaseSettings:
    return DatabaseSettings(path=str(tmp_path / "holdfast.sqlite"))


@pytest.fixture
async def refusing(database):
    """A door to a store that is not the system's."""

    async def refuse(_) -> None:
        raise StoreMismatch("another store is registered")

    door = LazyStore(database)
    door.admit = refuse
    yield door
    await door.aclose()


def memory(door: LazyStore):
    return door.memory(run_id="r", thread_id="", fence=1, owner="o")


async def test_an_agent_is_told_that_its_store_must_not_be_used(refusing):
    """The mistake: in a process that nothing ends, it waited until the run's deadline."""
    with pytest.raises(StoreMismatch, match="another store"):
        async with asyncio.timeout(20):
            await memory(refusing).step("one")


async def test_an_agent_waits_in_a_process_that_ends_because_of_its_store(refusing):
    refusing.refusal_ends_process = True
    step = asyncio.create_task(memory(refusing).step("one"))
    await stays(lambda: not step.done(), seconds=0.5)
    step.cancel()


async def test_a_worker_like_a_resident_opens_no_store_before_an_agent_uses_it(
    redis, redis_settings, database
):
    app = App("resident")

    @app.agent
    async def remembers(ctx):
        return await ctx.step("one", lambda: 1)

    async with System(redis_settings, ttl=30.0, database=database) as system:
        process = WorkerProcess(system.settings, app, tuning=WorkerTuning(registers_store=False))
        working = asyncio.create_task(process.run())
        try:
            await until(lambda: process.ready or working.done())
            await stays(lambda: not Path(database.path).exists(), seconds=1.5)
            assert await registered_store(redis) is None
            assert (await system.ended(await system.submit("remembers"))).result == 1
            assert await registered_store(redis) is not None, "its first use was admitted"
        finally:
            process.request_stop()
            await working


async def test_an_app_that_changes_the_directory_on_import_has_the_store_of_its_worker(
    redis, redis_settings, tmp_path, monkeypatch
):
    """In the process of an attempt, too: there the app is imported once more."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "wanderer.py").write_text(
        "import os\n"
        "from holdfast import App, Context\n"
        "app = App('wanderer')\n"
        f"if os.getpid() != {os.getpid()}: os.chdir({str(elsewhere)!r})\n"
        "@app.agent(isolation='process')\n"
        "async def remembers(ctx: Context): return await ctx.step('one', os.getcwd)\n"
    )
    monkeypatch.chdir(tmp_path)
    relative = DatabaseSettings(path="holdfast.sqlite")
    async with System(redis_settings, ttl=30.0, database=relative) as system:
        await system.worker(load_app(str(tmp_path / "wanderer.py")))
        run = await system.ended(await system.submit("remembers"), 60)
        assert run.result == str(elsewhere)
    assert (tmp_path / "holdfast.sqlite").exists()
    assert not (elsewhere / "holdfast.sqlite").exists()


REMEMBERS = """
from holdfast import App, Context

app = App("remembers")


@app.agent(isolation="process")
async def remembers(ctx: Context):
    return await ctx.step("one", lambda: 1)
"""


@pytest.fixture
def remembers(tmp_path) -> App:
    path = tmp_path / "remembers.py"
    path.write_text(REMEMBERS)
    return load_app(str(path))


async def test_the_process_of_an_attempt_does_not_use_a_store_that_was_never_compared(
    redis, redis_settings, database, remembers
):
    """The mistake: it opened the store by itself, found no journal, and did finished steps again."""
    await register_store(redis, RegisteredStore(id="other", location="elsewhere"))
    async with System(redis_settings, ttl=30.0, database=database, max_attempts=1) as system:
        process = WorkerProcess(system.settings, remembers, tuning=WorkerTuning(registers_store=False))
        working = asyncio.create_task(process.run())
        try:
            run = await system.ended(await system.submit("remembers"), 60)
            assert run.status is Status.FAILED
            assert "with two stores finished steps would be repeated" in run.error.message
        finally:
            process.request_stop()
            await working


async def test_the_process_of_an_attempt_goes_on_with_the_store_of_its_worker(
    redis, redis_settings, database, remembers
):
    """A running worker goes on with its store when another one is registered: so do its attempts."""
    async with System(redis_settings, ttl=30.0, database=database, max_attempts=1) as system:
        await system.worker(remembers)
        await register_store(redis, RegisteredStore(id="other", process="store register"), replace=True)
        run = await system.ended(await system.submit("remembers"), 60)
        assert (run.status, run.result) == (Status.SUCCEEDED, 1)


async def test_the_process_of_an_attempt_refuses_a_store_that_was_recreated(
    redis, redis_settings, database, remembers
):
    async with System(redis_settings, ttl=30.0, database=database, max_attempts=1) as system:
        await system.worker(remembers)
        for path in Path(database.path).parent.glob("holdfast.sqlite*"):
            path.unlink()
        run = await system.ended(await system.submit("remembers"), 60)
        assert run.status is Status.FAILED
        assert "Restart the worker" in run.error.message
