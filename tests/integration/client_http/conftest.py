"""A client over HTTP in front of real APIs; ``api(**settings)`` starts one, ``replica()`` one that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import App
from holdfast.config import ApiSettings, ClientSettings, DatabaseSettings, RedisSettings, Settings
from holdfast.redis.client import Redis
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi
from tests.support.processes import forked
from tests.support.runs.system import System

StartApi = Callable[..., Awaitable[RunningApi]]


@pytest.fixture
async def system(redis: Redis, redis_settings: RedisSettings, tmp_path: Path) -> AsyncIterator[System]:
    database = DatabaseSettings(path=str(tmp_path / "archive.sqlite"))  # that of the replicas
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
def settings() -> Settings:
    """Settings of a client that reaches no Redis."""
    client = ClientSettings(timeout_seconds=20.0)
    return Settings(redis=RedisSettings(url="redis://127.0.0.1:1"), client=client)


@pytest.fixture
async def api(system: System) -> AsyncIterator[StartApi]:
    started: list[RunningApi] = []

    async def start(
        app: App | None = None, changes: dict[str, Any] | None = None, **options: Any
    ) -> RunningApi:
        serving = ApiSettings(
            **{"port": 0, "linger_seconds": 0.0, "janitor": False, "relay": False, **options}
        )
        settings = msgspec.structs.replace(system.settings, api=serving, **(changes or {}))
        running = RunningApi(ApiProcess(settings, app))
        started.append(running)
        return await running.ready()

    yield start
    for running in started:
        if not running.task.done():
            await running.close()


class Replica:
    """An api process of its own."""

    def __init__(self, redis_url: str, folder: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environ |= {"REDIS_URL": redis_url, "HOLDFAST_DATABASE_PATH": f"{folder}/archive.sqlite"}
        command = [sys.executable, "-m", "holdfast", "api", "--port", "0", "--json"]
        self.process = forked.Popen(command, stderr=subprocess.PIPE, text=True, env=environ, cwd=folder)
        assert self.process.stderr is not None
        said = list[str]()
        for line in self.process.stderr:
            said.append(line)
            if "api ready" in line:
                self.url = f"http://127.0.0.1:{json.loads(line)['port']}"
                # A process whose log nobody reads stands still when the pipe is full.
                self._reading = threading.Thread(target=self.process.stderr.read)
                self._reading.start()
                return
        raise AssertionError("".join(said))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def terminate(self) -> None:
        self.process.terminate()


@pytest.fixture
def replica(redis_url: str, tmp_path: Any) -> Iterator[Callable[[], Replica]]:
    started: list[Replica] = []

    def start() -> Replica:
        started.append(Replica(redis_url, str(tmp_path)))
        return started[-1]

    yield start
    for each in started:
        each.close()
