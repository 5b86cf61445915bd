"""How many events fifty running agents can emit, each awaiting its own, beside fifty tasks awaiting XADD."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bench import harness
from bench.figures import Figure, median_of
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from bench.harness import Plan

RUNS = 50


async def measure(plan: Plan) -> list[Figure]:
    events = plan.pick(400, 40)
    tasks, ours = [], []
    for _ in range(plan.pick(3, 1)):
        tasks.append(RUNS * events / await _bare_side(events))
        ours.append(RUNS * events / await _our_side(events))
        plan.say(f"emit: bare {tasks[-1]:,.0f}/s, holdfast {ours[-1]:,.0f}/s")
    return [median_of(f"ctx.emit of {RUNS} runs", "events/s", ours, tasks)]


async def _bare_side(events: int) -> float:
    async with harness.server() as on, harness.bare(on.url, "emit", RUNS, events) as child:
        await child.go()
        return await child.result()


async def _our_side(events: int) -> float:
    async with harness.server() as on, on.queue() as queue, harness.worker(on, slots=RUNS):
        sent = await queue.submit_many([Submission(agent="chatter", input=events) for _ in range(RUNS)])
        await harness.emptied(on, queue.keys.stream)
        runs = await asyncio.gather(*(queue.get(ticket.run_id) for ticket in sent))
        began, ended = zip(*(run.result for run in runs), strict=True)
        return max(ended) - min(began)
