"""A real API on a free port of this machine, over a real Valkey; ``api(**settings)`` starts one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import App
from holdfast.config import ApiSettings, DatabaseSettings, RedisSettings
from holdfast.redis.client import Redis
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi
from tests.support.runs.system import System

StartApi = Callable[..., Awaitable[RunningApi]]


@pytest.fixture
async def system(redis: Redis, redis_settings: RedisSettings, tmp_path: Path) -> AsyncIterator[System]:
    database = DatabaseSettings(path=str(tmp_path / "holdfast.sqlite"))
    # Nobody dies here: a short lease would only be lost by a busy machine.
    async with System(redis_settings, ttl=10.0, heartbeat=10.0, database=database) as system:
        yield system


@pytest.fixture
def proxied_settings(proxied_settings: RedisSettings) -> RedisSettings:
    """Settings that lead through the proxy, with timeouts that no test here waits for."""
    return msgspec.structs.replace(
        proxied_settings, socket_timeout_seconds=20.0, connect_timeout_seconds=20.0
    )


@pytest.fixture
async def api(system: System) -> AsyncIterator[StartApi]:
    started: list[RunningApi] = []

    async def start(app: App | None = None, redis: RedisSettings | None = None, **options: Any) -> RunningApi:
        options.setdefault("linger_seconds", 0.0)
        options.setdefault("janitor", False)
        options.setdefault("relay", False)
        settings = msgspec.structs.replace(
            system.settings,
            redis=redis or system.settings.redis,
            api=ApiSettings(port=0, **options),
        )
        running = RunningApi(ApiProcess(settings, app))
        started.append(running)
        return await running.ready()

    yield start
    for running in started:
        if not running.task.done():
            await running.close()


@pytest.fixture
async def client(api: StartApi) -> httpx.AsyncClient:
    """A client of an API without keys."""
    return (await api()).client()
