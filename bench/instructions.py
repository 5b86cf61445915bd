"""What a run costs the server in instructions: the same number on a busy machine and on a quiet one.

Counted by valgrind's callgrind, if it is installed. It knows nothing of the kernel and of caches, so it does
not replace the CPU time of `drain`; it tells whether a change made a run cheaper where that can't be timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from bench import bare, harness
from bench.figures import Figure
from holdfast.leases.streams import StreamLeases
from holdfast.redis.embedded import MALLOC, find_server
from holdfast.runs.execution.claim import Claimer
from holdfast.runs.execution.settle import Settler
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.run import Status, Submission
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from bench.harness import Plan, Server
    from holdfast.runs.partition import Partition

_BATCH = 100  # what a busy worker claims and settles at once
_OWNER = "bench-1"
_FLAGS = ("--port", "0", "--save", "", "--appendonly", "yes", "--stream-node-max-bytes", "1024")


async def measure(plan: Plan) -> list[Figure]:
    if shutil.which("valgrind") is None:
        plan.say("valgrind is not installed: no instructions are counted")
        return []
    count = plan.pick(4_000, 1_000)
    ours, loop = await _of(_drain, count), await _of(_drain_bare, count)
    return [Figure("Redis instructions a run", ours / 1000, "k", bare=loop / 1000, ratio=ours / loop)]


async def _of(drain: Callable[[Server, int], AsyncIterator[int]], count: int) -> float:
    """Instructions for each run that ``drain`` drains after its first step, which only warms up."""
    with tempfile.TemporaryDirectory(prefix="hfbench", ignore_cleanup_errors=True) as directory:
        done = 0
        async with _server(Path(directory)) as (on, counting):
            steps = drain(on, count)
            await anext(steps)
            await counting("on")
            async for ended in steps:
                done += ended
            await counting("off")
        totals = re.search(r"^totals: (\d+)", (Path(directory) / "counted").read_text(), re.MULTILINE)
        assert totals is not None, "callgrind has counted nothing"
        return int(totals[1]) / done


@contextlib.asynccontextmanager
async def _server(directory: Path) -> AsyncIterator[tuple[Server, Callable[[str], Awaitable[None]]]]:
    """A server like the embedded one under callgrind, and how its counting is switched."""
    callgrind = ("--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={directory / 'counted'}")
    socket = directory / "redis.sock"
    command = (find_server(), *_FLAGS, "--dir", directory, "--unixsocket", socket)
    with (directory / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *("valgrind", *callgrind, *command),
            env={**os.environ, "GLIBC_TUNABLES": MALLOC},
            stdout=log,
            stderr=log,
        )

    async def counting(word: str) -> None:
        control = ("callgrind_control", "-i", word, str(process.pid))
        switch = await asyncio.create_subprocess_exec(
            *control, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        assert await switch.wait() == 0, "callgrind_control failed"

    async def answers() -> bool:
        return process.returncode is not None or socket.exists()

    try:
        await harness.until(answers)
        async with Redis.from_url(f"unix://{socket}", socket_timeout=60) as redis:
            yield harness.Server(f"unix://{socket}", redis), counting
            with contextlib.suppress(RedisConnectionError):
                await redis.execute_command("SHUTDOWN", "NOSAVE")
        async with asyncio.timeout(60):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _drain(on: Server, count: int) -> AsyncIterator[int]:
    async with on.queue() as queue:
        await queue.submit_many([Submission(agent="noop", input=1) for _ in range(count)])
        (partition,) = queue.partitions
        claimer = Claimer(partition, _OWNER, on.redis)
        await claimer.join()
        async with asyncio.TaskGroup() as group:
            settler = _settler(partition)
            running = group.create_task(settler.run())
            while claimed := (await claimer.claim(_BATCH, [])).runs:
                for run in claimed:
                    settler.add(Settlement(run.lease(_OWNER), Status.SUCCEEDED, "result", b"1", b""))
                await settler.flushed()
                yield len(claimed)
            running.cancel()


def _settler(partition: Partition) -> Settler:
    leases = StreamLeases(
        partition.keys, group=partition.settings.group, owner=_OWNER, ttl_ms=30_000, turn_ms=900
    )
    return Settler(partition, leases, _OWNER, Metrics())


async def _drain_bare(on: Server, count: int) -> AsyncIterator[int]:
    await bare.fill(on.redis, count, bare.READ)
    await bare.join(on.redis)
    left = count
    while left:
        step = min(left, bare.READ)
        await bare.drain(on.redis, step)
        left -= step
        yield step
