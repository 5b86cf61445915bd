"""A real API for tests, as a task of the test, and keys for it."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import httpx

from holdfast.services.api import ApiProcess
from tests.support.waiting import PATIENCE_SECONDS, until


def key_line(name: str, tenant: str = "*", roles: str = "read+submit+operate") -> str:
    """The line of a key whose secret is ``<name>-secret``."""
    return f"{name}:{tenant}:{roles}:{hashlib.sha256(f'{name}-secret'.encode()).hexdigest()}"


class RunningApi:
    """An api process that runs as a task of the test."""

    def __init__(self, process: ApiProcess) -> None:
        self.process = process
        self.task = asyncio.create_task(process.run())
        self._clients: list[httpx.AsyncClient] = []

    async def ready(self) -> RunningApi:
        await until(lambda: self.process.ready or self.task.done())
        if self.task.done():
            self.task.result()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.port}"

    def client(self, key: str = "", **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}-secret"} if key else {}
        # Without TLS nothing is verified, and reading the system's certificates takes 40 ms of CPU a client.
        client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=20, trust_env=False, verify=False, **options
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
        self.process.request_stop()
        self.process.request_stop()
        await asyncio.wait_for(self.task, PATIENCE_SECONDS)
