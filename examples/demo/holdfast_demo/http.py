"""The HTTP API as the demo calls it: like any other client, and able to say which replica it means."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import msgspec

from holdfast_demo.system import DemoFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

_LOOK_SECONDS = 0.05
_LOOKS = 400
_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=5)


class Http:
    """Calls replicas by their base address."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def execute(self, base: str, agent: str, value: Any) -> str:
        """Submit a run and return its id."""
        body = {"agent_id": agent, "input": value, "priority": "high"}
        return (await self._call("POST", f"{base}/execute", body))["run_id"]

    async def resume(self, base: str, run_id: str, value: Any) -> None:
        """Answer a run."""
        await self._call("POST", f"{base}/runs/{run_id}/resume", {"value": value})

    async def question(self, base: str, run_id: str) -> dict[str, Any]:
        """Wait until a run asks or has ended, and return what it says."""
        for _ in range(_LOOKS):
            run = await self._call("GET", f"{base}/runs/{run_id}")
            if run["status"] not in {"queued", "running"}:
                return run
            await asyncio.sleep(_LOOK_SECONDS)
        raise DemoFailed(f"run {run_id} asked nothing in {_LOOKS * _LOOK_SECONDS:g} s")

    async def schedule(self, base: str, name: str, agent: str, **options: Any) -> None:
        """Make a schedule."""
        await self._call("POST", f"{base}/schedules", {"name": name, "agent": agent, **options})

    async def steer(self, base: str, schedule: str, verb: str, body: Any = None) -> None:
        """Pause, resume or trigger a schedule."""
        await self._call("POST", f"{base}/schedules/{schedule}/{verb}", body)

    async def look(self, base: str, schedule: str) -> dict[str, Any]:
        """Read a schedule."""
        return await self._call("GET", f"{base}/schedules/{schedule}")

    async def follow(self, base: str, run_id: str, after: str = "") -> AsyncGenerator[str]:
        """Yield the ids of a run's events as they come; ends when the run or the connection does."""
        headers = {"Last-Event-ID": after} if after else {}
        event_id = ""
        try:
            async with self._session.get(f"{base}/runs/{run_id}/events", headers=headers) as response:
                async for line in response.content:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "id":
                        event_id = value
                    elif not name and event_id:  # a blank line: the event is whole
                        yield event_id
                        event_id = ""
        except (aiohttp.ClientError, OSError):
            return

    async def _call(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(method, url, data=data) as response:
                answer = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise DemoFailed(f"{method} {url} got no answer: {exc!r}") from exc
        if response.status >= 300:
            raise DemoFailed(f"{method} {url} was answered {response.status}: {answer.decode()[:300]}")
        return msgspec.json.decode(answer)
