"""The two ways of a client, over Redis and over HTTP: every test here runs on both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from holdfast import ApiUnavailable, Client, RedisUnavailable, Refused
from holdfast.config import ApiSettings, ClientSettings, RedisSettings, SenderSettings, Settings
from holdfast.redis.client import Redis
from holdfast.services.api import ApiProcess
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store
from tests.support.api.server import RunningApi
from tests.support.runs.system import System

NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True)
class Face:
    """What a client is given to reach the system, or a system that is away, and what it says then."""

    name: str
    here: dict[str, Any]
    away: dict[str, Any]
    error: type[Refused]


@pytest.fixture
async def system(redis: Redis, redis_settings: RedisSettings) -> AsyncIterator[System]:
    async with System(redis_settings, ttl=20.0) as system:
        queues = {name: system.settings.queue.renamed(name) for name in ("media", "even")}
        system.settings = msgspec.structs.replace(system.settings, queues=queues)
        yield system


@pytest.fixture(params=["redis", "http"])
async def face(request: pytest.FixtureRequest, system: System) -> AsyncIterator[Face]:
    if request.param == "redis":
        nowhere = RedisSettings(url=f"redis://:secret@{NOWHERE}")
        away = Settings(redis=nowhere, sender=SenderSettings(max_retries=0))
        yield Face("redis", {"settings": system.settings}, {"settings": away}, RedisUnavailable)
        return
    serving = ApiSettings(port=0, linger_seconds=0.0, janitor=False, relay=False)
    process = ApiProcess(msgspec.structs.replace(system.settings, api=serving))
    api = await RunningApi(process).ready()
    client = ClientSettings(key="secret", max_retries=0)
    no_redis = Settings(redis=RedisSettings(url=f"redis://{NOWHERE}"), client=client)
    here = {"api_url": api.url, "settings": no_redis}
    yield Face("http", here, {"api_url": f"http://{NOWHERE}", "settings": no_redis}, ApiUnavailable)
    await api.close()


@pytest.fixture
async def client(face: Face) -> AsyncIterator[Client]:
    async with Client(**face.here) as client:
        yield client


@pytest.fixture
def archive(system: System) -> Callable[..., Awaitable[None]]:
    """Puts runs into the archive, as the janitor does when they have ended."""

    async def put(*runs: ArchivedRun) -> None:
        async with await open_store(system.settings.database) as store:
            await store.archive(list(runs))

    return put
