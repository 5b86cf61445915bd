"""What a process makes of a Redis that can't say which store is registered, and of a store that was replaced."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from holdfast.config import DatabaseSettings, Settings, WorkerSettings
from holdfast.errors import ConfigError
from holdfast.redis.stores import RegisteredStore, register_store
from holdfast.services import store_registration
from holdfast.services.connections import Connections
from holdfast.services.store_registration import StoreRegistration
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
    assert warnings() == ["Redis refuses to compare the store: runs that need it wait or are retried"]


async def test_a_key_of_another_type_is_refused(redis, registration):
    await redis.set("registered-store", "something else")
    with pytest.raises(ConfigError, match="nobody else may have one of this name"):
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
