"""How long a run stands still when its worker goes: killed, or told to leave.

One run goes from worker to worker: each round a new one joins, and the one that holds the run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import statistics
import time
from typing import TYPE_CHECKING

from bench import harness
from bench.figures import Figure, Goal
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from bench.harness import Child, Plan, Server


async def measure(plan: Plan) -> list[Figure]:
    figures: list[Figure] = []
    for ttl in plan.pick((2, 5), (2,)):
        hops = await _hops(signal.SIGKILL, plan.pick(5, 1), ttl)
        plan.say(f"kill -9, ttl {ttl} s: " + ", ".join(f"{hop:.2f} s" for hop in hops))
        goal = Goal("<=", ttl + 2)
        figures += [
            Figure(f"kill -9 to begin elsewhere, ttl {ttl} s, p50", statistics.median(hops), "s", goal=goal),
            Figure(f"kill -9 to begin elsewhere, ttl {ttl} s, max", max(hops), "s", goal=goal),
        ]
    hops = [1000 * hop for hop in await _hops(signal.SIGTERM, plan.pick(15, 2), 30)]
    plan.say("SIGTERM: " + ", ".join(f"{hop:.1f} ms" for hop in hops))
    goal = Goal("<", 100)
    return [
        *figures,
        Figure("SIGTERM to begin elsewhere, p50", statistics.median(hops), "ms", goal=goal),
        Figure("SIGTERM to begin elsewhere, max", max(hops), "ms", goal=goal),
    ]


async def _hops(end: signal.Signals, tries: int, ttl: float) -> list[float]:
    moment = random.Random(ttl)
    async with harness.server() as on, on.queue() as queue, contextlib.AsyncExitStack() as stack:
        holder = await stack.enter_async_context(_worker(on, ttl))
        ticket = await queue.submit(Submission(agent="hold"))
        begins = Begins(on, queue.keys.feed(ticket.run_id))
        await begins.next()
        hops = []
        for _ in range(tries):
            heir = await stack.enter_async_context(_worker(on, ttl))
            # Somewhere between two renewals, and after the heir has settled down.
            await asyncio.sleep(0.3 + moment.uniform(0, min(ttl / 4, 1.25)))
            ended = time.monotonic()
            holder.send(end)
            hops.append(await begins.next() - ended)
            await holder.process.wait()
            holder = heir
        return hops


def _worker(on: Server, ttl: float) -> contextlib.AbstractAsyncContextManager[Child]:
    return harness.worker(
        on,
        slots=3,
        HOLDFAST_LEASE_TTL_SECONDS=str(ttl),
        HOLDFAST_DRAIN_SECONDS="0",
        MAX_ATTEMPTS="1000",
        LOG_LEVEL="ERROR",  # that a run was reclaimed is no news here
    )


class Begins:
    """The moments at which the agent of one run began, by its own clock."""

    def __init__(self, on: Server, feed: str) -> None:
        self._redis = on.redis
        self._feed = feed
        self._last = "0"

    async def next(self) -> float:
        async with asyncio.timeout(60):
            while True:
                found = await self._redis.xread({self._feed: self._last}, count=1, block=1000)
                for entries in dict(found or {}).values():
                    [(self._last, fields)] = entries
                    if fields[b"type"] == b"began":
                        return json.loads(fields[b"data"])
