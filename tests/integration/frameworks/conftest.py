"""Agents of each framework on a real worker and a real store, and the ledger of what they really did."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.config import DatabaseSettings
from holdfast.store.open import open_store
from tests.support.runs.system import System
from tests.support.runs.worker_processes import Ledger
from tests.support.waiting import until

from .attempts import Attempts

HERE = Path(__file__).parent


@pytest.fixture
def ledger(tmp_path, monkeypatch) -> Ledger:
    monkeypatch.setenv("CHAOS_LEDGER", str(tmp_path / "ledger"))
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def gate(tmp_path, monkeypatch) -> Path:
    """The tool ``slow`` waits until this file is there."""
    path = tmp_path / "gate"
    monkeypatch.setenv("CHAOS_GATE", str(path))
    return path


@pytest.fixture(params=["pydantic_ai", "openai_agents", "langgraph"])
def framework(request) -> str:
    return request.param


@pytest.fixture
def app(framework, ledger, gate, monkeypatch) -> App:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    return load_app(f"{HERE}/durable_{framework}.py:app")


@pytest.fixture
def database(tmp_path) -> DatabaseSettings:
    return DatabaseSettings(path=str(tmp_path / "holdfast.sqlite"))


@pytest.fixture
async def system(redis, redis_settings, database):
    # A lease that a busy machine keeps: with a lost one, a run does things twice that these tests count.
    async with System(redis_settings, slots=4, ttl=30.0, database=database) as system:
        yield system


@pytest.fixture
def done(ledger):
    """Count what a run has done, by name."""
    return lambda run_id: Counter(line.what for line in ledger.lines(run_id=run_id))


@pytest.fixture
def does(ledger):
    """Wait until a run has done something."""

    async def does(what: str, run_id: str, times: int = 1) -> None:
        await until(lambda: len(ledger.lines(what, run_id)) >= times)

    return does


@pytest.fixture
def chunks(system):
    """Read the chunks of a run's feed."""

    async def read(run_id: str) -> list:
        feed = await system.queue.redis.xrange(system.queue.keys.feed(run_id))
        return [msgspec.json.decode(f[b"data"]) for _, f in feed if f[b"type"] == b"chunk"]

    return read


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request, tmp_path) -> DatabaseSettings:
    if request.param == "sqlite":
        return DatabaseSettings(path=str(tmp_path / "store.sqlite"))
    return DatabaseSettings(url=request.getfixturevalue("postgres_url"))


@pytest.fixture
async def any_store(any_database):
    async with await open_store(any_database, migrate=True) as store:
        yield store


@pytest.fixture
async def attempts(tmp_path):
    async with await open_store(DatabaseSettings(path=str(tmp_path / "store.sqlite"))) as store:
        yield Attempts(store)
