"""How fast runs are accepted, beside a pipeline of XADD of the same fields in batches of the same size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import bare, harness
from bench.figures import Figure, Goal, median_of
from holdfast.runs.run import Submission
from holdfast.runs.submit import _BATCH as BATCH

if TYPE_CHECKING:
    from bench.harness import Cost, Plan


async def measure(plan: Plan) -> list[Figure]:
    count = plan.pick(20_000, 2_000)
    pipelines, ours = [], []
    for _ in range(plan.pick(5, 2)):
        pipelines.append(await _bare_side(count))
        ours.append(await _our_side(count))
        plan.say(
            f"submit: bare {count / pipelines[-1].seconds:,.0f}/s, holdfast {count / ours[-1].seconds:,.0f}/s"
        )
    return [
        median_of(
            f"submit_many, {BATCH} a call",
            "runs/s",
            [count / cost.seconds for cost in ours],
            [count / cost.seconds for cost in pipelines],
            Goal(">=", 0.7, "ratio"),
        ),
        median_of(
            "Redis CPU a submission",
            "us",
            [1e6 * cost.server_cpu / count for cost in ours],
            [1e6 * cost.server_cpu / count for cost in pipelines],
        ),
        median_of(
            "sender CPU a submission",
            "us",
            [1e6 * cost.child_cpu / count for cost in ours],
            [1e6 * cost.child_cpu / count for cost in pipelines],
        ),
    ]


async def _bare_side(count: int) -> Cost:
    async with harness.server() as on:
        async with harness.metered(on) as cost:
            await bare.fill(on.redis, count, BATCH)
        return cost


async def _our_side(count: int) -> Cost:
    async with harness.server() as on, on.queue() as queue:
        async with harness.metered(on) as cost:
            tickets = await queue.submit_many([Submission(agent="noop", input=1) for _ in range(count)])
        assert not [ticket for ticket in tickets if isinstance(ticket, Exception)]
        return cost
