"""What it takes to keep a thousand leases: how often the renewal script is called, and how long it takes."""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

from bench import harness
from bench.figures import Figure, Goal
from holdfast.leases.streams import _RENEW as RENEW
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from bench.harness import Plan, Server
    from holdfast.runs.queue import RunQueue

LEASES = 1000
_TTL_SECONDS = 4
_LONG_US = 500


async def measure(plan: Plan) -> list[Figure]:
    seconds = plan.pick(10, 3) * _TTL_SECONDS / 4
    ttl = {"HOLDFAST_LEASE_TTL_SECONDS": str(_TTL_SECONDS)}
    async with harness.server() as on, on.queue() as queue, harness.worker(on, slots=LEASES, **ttl) as child:
        await queue.submit_many([Submission(agent="hold") for _ in range(LEASES)])
        await _all_held(queue)
        await _watch_long_calls(on)
        async with harness.metered(on, child) as cost:
            await asyncio.sleep(seconds)
        beats = (await on.commands())["xclaim"]["calls"] / LEASES
        calls = await _renewals(on)
    plan.say(f"leases: {len(calls)} calls in {beats:g} beats")
    return [
        Figure(f"script calls a beat, {LEASES:,} leases", len(calls) / beats, "calls", goal=Goal("=", 1)),
        Figure(f"Redis time a beat, {LEASES:,} leases", statistics.median(calls), "us"),
        Figure("worker CPU while it only keeps them", 100 * cost.child_cpu / cost.seconds, "%"),
    ]


async def _all_held(queue: RunQueue) -> None:
    async def held() -> bool:
        return (await queue.depth()).pending >= LEASES

    await harness.until(held)
    # Until the events that the agents began with are through.
    await asyncio.sleep(1)


async def _watch_long_calls(on: Server) -> None:
    # Only what is as long as a whole beat: noting every command would itself take longer than the beat.
    await on.redis.config_set("slowlog-max-len", 100_000)
    await on.redis.config_set("slowlog-log-slower-than", _LONG_US)
    await on.redis.slowlog_reset()
    await on.redis.config_resetstat()


async def _renewals(on: Server) -> list[int]:
    """The microseconds of every call of the renewal script."""
    named = f"EVALSHA {RENEW.sha}".encode()
    calls = await on.redis.slowlog_get(100_000)
    return [call["duration"] for call in calls if call["command"].startswith(named)]
