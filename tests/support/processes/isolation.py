"""For tests of agents in processes of their own: wait for what they say, and look at them from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from holdfast.processes import kernel
from tests.support.paths import TESTS
from tests.support.runs.system import System

AGENTS = str(TESTS / "integration" / "isolation" / "isolatedagents.py")


class Isolation(System):
    """A system that can wait for what its agents say."""

    async def told(self, run_id: str, kind: str = "begun", times: int = 1, seconds: float = 30.0) -> Any:
        """Wait until a run has emitted an event of a type so often, and return what the last one says."""
        async with asyncio.timeout(seconds):
            while True:
                feed = await self.queue.redis.xrange(self.queue.keys.feed(run_id))
                found = [fields[b"data"] for _, fields in feed if fields[b"type"] == kind.encode()]
                if len(found) >= times:
                    return msgspec.json.decode(found[times - 1])
                run = await self.queue.get(run_id)
                assert not run.status.ended, run.error
                await asyncio.sleep(0.005)


async def gone(*pids: int, seconds: float = 30.0) -> None:
    """Wait until processes have ended."""
    async with asyncio.timeout(seconds):
        while any(kernel.start_time(pid) is not None for pid in pids):
            await asyncio.sleep(0.005)
