"""For tests of agents in processes of their own: wait for what they say, and look at them from outside."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.config import RedisSettings
from holdfast.processes import procfs
from tests.support.paths import TESTS
from tests.support.runs.system import System
from tests.support.waiting import until

AGENTS = str(TESTS / "integration" / "isolation" / "isolatedagents.py")


class Isolation(System):
    """A system that can wait for what its agents say.

    Its leases are long: a process takes its time to start on a busy machine, and few of these tests are of leases.
    """

    def __init__(self, redis: RedisSettings, *, ttl: float = 10.0, **options: Any) -> None:
        super().__init__(redis, ttl=ttl, **options)

    async def told(self, run_id: str, kind: str = "begun", times: int = 1, seconds: float = 30.0) -> Any:
        """Wait until a run has emitted an event of a type so often, and return what the last one says."""

        async def emitted() -> list[bytes]:
            run = await self.queue.get(run_id)
            feed = await self.queue.redis.xrange(self.queue.keys.feed(run_id))
            found = [fields[b"data"] for _, fields in feed if fields[b"type"] == kind.encode()]
            assert len(found) >= times or not run.status.ended, run.error
            return found

        found = await until(
            emitted, lambda found: len(found) >= times, what=f"event {kind} of run {run_id}", seconds=seconds
        )
        return msgspec.json.decode(found[times - 1])


async def gone(*pids: int, seconds: float = 30.0) -> None:
    """Wait until processes have ended."""
    await until(
        lambda: all(procfs.start_time(pid) is None for pid in pids),
        what=f"the end of processes {pids}",
        seconds=seconds,
    )
