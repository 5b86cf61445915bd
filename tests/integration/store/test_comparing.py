"""What a process makes of a Redis that can't say which store is registered, and of a store that was replaced."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from holdfast import Client
from holdfast.config import DatabaseSettings, Settings, WorkerSettings
from holdfast.errors import ConfigError, StoreMismatch
from holdfast.redis.stores import RegisteredStore, register_store
from holdfast.services import store_registration
from holdfast.services.connections import Connections
from holdfast.services.store_registration import StoreRegistration
from holdfast.store.open import open_store
from tests.support.waiting import until


@pytest.fixture
async def registration(redis, redis_settings, tmp_path):
    settings = Settings(
        redis=redis_settings,
        database=DatabaseSettings(path=str(tmp_path / "holdfast.sqlite")),
        worker=WorkerSettings(heartbeat_seconds=0.1),
    )
    async with Connections(settings) as connections:
        yield StoreRegistration(connections, "worker", "w")


@pytest.fixture
def answers(monkeypatch):
    """What Redis answers first when a store is to be registered."""
    errors: list[Exception] = []

    async def register(redis, store, **options) -> RegisteredStore:
        if errors:
            raise errors.pop(0)
        return await register_store(redis, store, **options)

    monkeypatch.setattr(store_registration, "register_store", register)
    return errors


@pytest.fixture
def warnings(log_lines):
    return lambda: [line["event"] for line in log_lines() if line["level"] == "warning"]


async def test_a_redis_that_is_busy_is_waited_for(registration, answers, warnings):
    answers += [ResponseError("ERR not now"), ResponseError("ERR not now")]
    await registration.check()
    await registration.check()
    assert warnings() == ["store comparison rejected by Redis, runs that need the store wait or are retried"]


async def test_a_key_of_another_type_is_refused(redis, registration):
    await redis.set("registered-store", "something else")
    with pytest.raises(ConfigError, match="the key must not have another type"):
        await registration.check()


async def test_a_database_that_is_away_is_named(registration, warnings, tmp_path, monkeypatch):
    away = DatabaseSettings(url="postgresql://nobody@127.0.0.1:1/none", timeout_seconds=0.2)
    monkeypatch.setattr(registration._connections.store, "_settings", away)
    await registration.check()
    await registration.check()
    assert warnings() == ["database unavailable"]


async def test_a_store_that_was_replaced_is_reported_after_an_outage_too(
    redis, registration, answers, warnings
):
    answers.append(RedisConnectionError("refused"))
    keeping = asyncio.create_task(registration.keep())
    try:
        await until(lambda: registration._ours is not None)
        other = msgspec.structs.replace(registration._ours, id="other", process="store register")
        await register_store(redis, other, replace=True)
        await until(lambda: "another store was registered: restart this process with it" in warnings())
        assert len(warnings()) == 2
    finally:
        keeping.cancel()


@pytest.mark.parametrize("change", ["create", "pause", "remove"])
async def test_a_client_writes_no_schedule_to_another_store(redis, redis_settings, tmp_path, change):
    """Fails if the file that happens to be in its folder is taken for the system's store."""
    database = DatabaseSettings(path=str(tmp_path / "own.sqlite"))
    registered = RegisteredStore(id="another", location="postgresql://db/holdfast", process="worker w")
    await register_store(redis, registered)
    async with await open_store(database):
        pass  # a client takes a file that is there
    async with Client(settings=Settings(redis=redis_settings, database=database)) as client:
        with pytest.raises(StoreMismatch, match="postgresql://db/holdfast"):
            if change == "create":
                await client.schedules.create("report", "work", every=60)
            else:
                await getattr(client.schedules, change)("report")
    assert not await redis.exists("schedule:report")


async def test_a_client_writes_schedules_to_the_systems_store(redis, redis_settings, tmp_path):
    database = DatabaseSettings(path=str(tmp_path / "own.sqlite"))
    async with await open_store(database) as store:
        await register_store(redis, RegisteredStore(id=await store.id()))
    async with Client(settings=Settings(redis=redis_settings, database=database)) as client:
        await client.schedules.create("report", "work", every=60)
        await client.schedules.remove("report")
