"""How fast the relay carries events outside, in order for each run, to a receiver on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from bench import harness
from bench.figures import Figure, Goal
from holdfast.config import EventApiSettings, QueueSettings, RedisSettings, Settings
from holdfast.runs.run import Submission
from holdfast.services.connections import Connections

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.harness import Plan

_LEAST = 2_000


async def measure(plan: Plan) -> list[Figure]:
    runs, events = plan.pick(200, 50), plan.pick(50, 10)
    rates = [await _rate(runs, events) for _ in range(plan.pick(3, 1))]
    best = sorted(rates)[len(rates) // 2]
    plan.say(f"relay: {best:,.0f} events/s")
    return [
        Figure(
            f"events delivered, {runs} runs",
            best,
            "events/s",
            goal=Goal(">=", _LEAST),
            rounds=tuple(rates),
        )
    ]


async def _rate(runs: int, events: int) -> float:
    got: defaultdict[str, list[int]] = defaultdict(list)
    wanted = runs * (events + 1)
    async with harness.server() as on, _receiver(got) as url:
        settings = Settings(
            redis=RedisSettings(url=on.url),
            queue=QueueSettings(name=harness.QUEUE),
            event_api=EventApiSettings(url=url),
        )
        await _fill(settings, runs, events)
        with tempfile.TemporaryDirectory(prefix="hfbench") as cwd:
            environ = {"REDIS_URL": on.url, "EVENT_API_URL": url, "LOG_LEVEL": "WARNING"}
            async with harness.Child.of("-m", "holdfast", "relay", cwd=cwd, **environ):
                await harness.until(lambda: _arrived(got, 1), 20)
                began, before = time.perf_counter(), sum(map(len, got.values()))
                await harness.until(lambda: _arrived(got, wanted), 60)
                took = time.perf_counter() - began
    for run_id, numbers in got.items():
        assert numbers == sorted(numbers), f"the order of {run_id} is broken: {numbers}"
    return (wanted - before) / took


async def _fill(settings: Settings, runs: int, events: int) -> None:
    """Runs whose feeds are written, and which the outbox names."""
    async with Connections(settings) as connections:
        queue = connections.sender(settings.queue)
        await queue.ensure()
        for _ in range(runs):
            ticket = await queue.submit(Submission(agent="noop", input=1))
            pipeline = queue.redis.pipeline(transaction=False)
            for number in range(events):
                pipeline.xadd(queue.keys.feed(ticket.run_id), {"type": "tick", "data": str(number)})
            await pipeline.execute()


async def _arrived(got: dict[str, list[int]], count: int) -> bool:
    return sum(map(len, got.values())) >= count


@contextlib.asynccontextmanager
async def _receiver(got: dict[str, list[int]]) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next(line for line in lines if line.startswith(b"content-length"))
                body = await reader.readexactly(int(length.partition(b":")[2]))
                run_id, _, number = json.loads(body)["id"].rpartition("/")
                got[run_id].append(int(number))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/events"
    finally:
        server.close()
