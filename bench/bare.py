"""What the run path is measured against: redis-py as it comes, without any guarantee.

``python -m bench.bare URL drain|follow|emit …`` says ``ready``, waits for a line, works, prints its result.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from redis.asyncio import Redis

STREAM = "bare"
GROUP = "bare-group"
READ = 500
NEWS = {STREAM: ">"}
_BLOCK_MS = 2000  # well below the 5 s that redis-py itself waits for an answer


def entry(number: int, message: str = '{"input":1}') -> dict[str, str]:
    """The five fields of a run's entry, in the same sizes; as cheap as can be, since making it is timed."""
    run_id = f"{number:036d}"
    return {
        "message_data": message,
        "agent_id": "noop",
        "task_id": run_id,
        "timestamp": "1790000000.000",
        "correlation_id": run_id,
    }


async def fill(redis: Redis, count: int, batch: int) -> None:
    """Queue entries in pipelines of ``batch``."""
    for start in range(0, count, batch):
        pipe = redis.pipeline(transaction=False)
        for number in range(start, min(start + batch, count)):
            pipe.xadd(STREAM, entry(number))
        await pipe.execute()


async def join(redis: Redis) -> None:
    await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)


async def drain(redis: Redis, count: int) -> None:
    """Read, a task per entry, acknowledge and delete what they have done."""
    left = count
    while left:
        left -= len(await _turn(redis, _nothing))


async def follow(redis: Redis) -> list[float]:
    """The same with blocking reads; return how old entries were at the start of their task, until a stop."""
    ages: list[float] = []

    async def note(fields: dict[bytes, bytes]) -> None:
        if b"stop" not in fields:
            ages.append(time.monotonic() - json.loads(fields[b"message_data"])["input"])

    while True:
        if any(b"stop" in fields for _, fields in await _turn(redis, note, block=_BLOCK_MS)):
            return ages


async def emit(redis: Redis, streams: int, events: int) -> float:
    """Every one of ``streams`` tasks awaits one XADD after the other; return the seconds."""

    async def speak(number: int) -> None:
        for tick in range(events):
            await redis.xadd(f"{STREAM}:{number}", {"type": "tick", "data": tick})

    began = time.monotonic()
    await asyncio.gather(*(speak(number) for number in range(streams)))
    return time.monotonic() - began


async def _nothing(_: dict[bytes, bytes]) -> None:
    pass


async def _turn(redis: Redis, work: Any, block: int | None = None) -> list[Any]:
    reply = await redis.xreadgroup(GROUP, "worker", NEWS, count=READ, block=block)
    if not reply:
        return []
    [(_, entries)] = reply.items() if isinstance(reply, dict) else reply
    done: list[bytes] = []

    async def attend(entry_id: bytes, fields: dict[bytes, bytes]) -> None:
        await work(fields)
        done.append(entry_id)

    await asyncio.gather(*[asyncio.create_task(attend(*each)) for each in entries])
    pipe = redis.pipeline(transaction=False)
    for entry_id in done:
        pipe.xack(STREAM, GROUP, entry_id)
        pipe.xdel(STREAM, entry_id)
    await pipe.execute()
    return entries


async def _main(url: str, what: str, *numbers: str) -> None:
    async with Redis.from_url(url) as redis:
        await redis.ping()
        print("ready", flush=True)
        if what != "follow":
            sys.stdin.readline()
        result = await {"drain": drain, "follow": follow, "emit": emit}[what](redis, *map(int, numbers))
        print(json.dumps(result), flush=True)


def _run(arguments: list[str]) -> None:
    if arguments[0] == "--uvloop":
        import uvloop  # noqa: PLC0415  only where it is measured

        uvloop.run(_main(*arguments[1:]))
    else:
        asyncio.run(_main(*arguments))


if __name__ == "__main__":
    _run(sys.argv[1:])
