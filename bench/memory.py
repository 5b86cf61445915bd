"""What a worker that has nothing to do keeps in memory, beside the bare loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench import bare, harness
from bench.figures import Figure, Goal, median_of

if TYPE_CHECKING:
    from bench.harness import Plan


async def measure(plan: Plan) -> list[Figure]:
    loops, ours = [], []
    for _ in range(plan.pick(3, 1)):
        async with harness.server() as on:
            await bare.join(on.redis)
            async with harness.bare(on.url, "follow") as loop, harness.worker(on, slots=3) as worker:
                # Longer than the first rounds of everything that goes on in an idle worker.
                await asyncio.sleep(plan.pick(5, 1))
                loops.append(loop.memory())
                ours.append(worker.memory())
    plan.say(f"memory: {len(ours)} idle workers looked at")
    rss, pss = zip(*ours, strict=True)
    bare_rss, bare_pss = zip(*loops, strict=True)
    return [
        median_of("idle worker, RSS", "MB", rss, bare_rss, Goal("<", 60)),
        median_of("idle worker, PSS", "MB", pss, bare_pss),
    ]
