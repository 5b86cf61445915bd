"""How long a run waits for its start when nothing is in its way: sent at a steady pace by another process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from bench import bare, harness
from bench.figures import Figure, Goal, median_of, percentile
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.harness import Plan

RATE = 200
_WARM_UP = 50
_SHARES = (0.5, 0.95, 0.99)


async def measure(plan: Plan) -> list[Figure]:
    count = RATE * plan.pick(8, 2) + _WARM_UP
    loops: list[list[float]] = []
    ours: dict[bool, list[list[float]]] = {True: [], False: []}
    for _ in range(plan.pick(5, 1)):
        loops.append(await _bare_side(count))
        for uvloop, rounds in ours.items():
            rounds.append(await _our_side(count, uvloop=uvloop))
        plan.say(
            f"latency p50: bare {_ms(loops[-1], 0.5):.2f} ms, holdfast {_ms(ours[True][-1], 0.5):.2f} ms"
        )
    return [_figure(share, ours[True], loops, Goal("<=", 2.5, "ratio")) for share in _SHARES] + [
        _figure(share, ours[False], loops, None, ", both on asyncio") for share in _SHARES
    ]


def _figure(
    share: float, ours: list[list[float]], loops: list[list[float]], goal: Goal | None, on: str = ""
) -> Figure:
    return median_of(
        f"enqueue to start at {RATE} runs/s, p{share * 100:.0f}{on}",
        "ms",
        [_ms(ages, share) for ages in ours],
        [_ms(ages, share) for ages in loops],
        goal,
    )


def _ms(ages: list[float], share: float) -> float:
    return 1000 * percentile(ages[_WARM_UP:], share)


async def _paced(count: int, send: Callable[[int], Awaitable[None]]) -> None:
    """Send at fixed times, whether or not the one before has been answered."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(began + number / RATE - time.monotonic(), 0))
            group.create_task(send(number))


async def _bare_side(count: int) -> list[float]:
    async with harness.server() as on:
        await bare.join(on.redis)
        async with harness.bare(on.url, "follow") as child:

            async def send(number: int) -> None:
                await on.redis.xadd(bare.STREAM, bare.entry(number, f'{{"input":{time.monotonic()!r}}}'))

            await _paced(count, send)
            await harness.emptied(on, bare.STREAM)
            await on.redis.xadd(bare.STREAM, {"stop": "1"})
            return await child.result()


async def _our_side(count: int, *, uvloop: bool) -> list[float]:
    async with harness.server() as on, on.queue() as queue, harness.worker(on, uvloop=uvloop):
        runs = [""] * count

        async def send(number: int) -> None:
            ticket = await queue.submit(Submission(agent="age", input=time.monotonic()))
            runs[number] = ticket.run_id

        await _paced(count, send)
        await harness.emptied(on, queue.keys.stream)
        return [(await queue.get(run_id)).result for run_id in runs]
