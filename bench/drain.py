"""How fast one worker process works off what waits, with all guarantees, beside a loop that has none."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from bench import bare, harness
from bench.figures import Figure, Goal, median_of
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from bench.harness import Cost, Plan, Server
    from holdfast.runs.queue import RunQueue

LEAST = Goal(">=", 0.22, "ratio")
_FILL = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    name: str
    aof: bool = True
    uvloop: bool = True
    bare_uvloop: bool = False


MAIN = Setting("AOF everysec")
EXTRAS = (
    Setting("no AOF", aof=False),
    Setting("both on uvloop", bare_uvloop=True),
    Setting("both on asyncio", uvloop=False),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One drain of one side."""

    count: int
    cost: Cost
    rss: float
    commands: dict[str, dict[str, float]]

    @property
    def rate(self) -> float:
        return self.count / self.cost.seconds

    @property
    def server_us(self) -> float:
        return 1e6 * self.cost.server_cpu / self.count

    @property
    def child_us(self) -> float:
        return 1e6 * self.cost.child_cpu / self.count


async def measure(plan: Plan) -> list[Figure]:
    count = plan.pick(20_000, 2_000)
    figures = await _figures(plan, MAIN, plan.pick(9, 2), count)
    for setting in () if plan.quick else EXTRAS:
        figures += await _figures(plan, setting, 3, count)
    return figures


async def _figures(plan: Plan, setting: Setting, rounds: int, count: int) -> list[Figure]:
    loops, workers = [], []
    for _ in range(rounds):
        loops.append(await bare_side(setting, count))
        workers.append(await our_side(setting, count))
        plan.say(f"{setting.name}: bare {loops[-1].rate:,.0f}/s, holdfast {workers[-1].rate:,.0f}/s")
    main = setting is MAIN
    figures = [
        median_of(
            f"drain, {setting.name}", "runs/s", [s.rate for s in workers], [s.rate for s in loops], LEAST
        ),
        median_of(
            f"Redis CPU a run, {setting.name}",
            "us",
            [s.server_us for s in workers],
            [s.server_us for s in loops],
            Goal("<=", 45) if main else None,
        ),
        median_of(
            f"worker CPU a run, {setting.name}",
            "us",
            [s.child_us for s in workers],
            [s.child_us for s in loops],
            Goal("<=", 90) if main else None,
        ),
    ]
    if not main:
        return figures
    # What else goes on in the machine only adds to a cost, so its least is what the code costs.
    figures += [
        _least("Redis CPU a run", [s.server_us for s in workers], [s.server_us for s in loops]),
        _least("worker CPU a run", [s.child_us for s in workers], [s.child_us for s in loops]),
    ]
    figures.append(
        median_of("worker RSS after the drain", "MB", [s.rss for s in workers], [s.rss for s in loops])
    )
    return figures + _breakdown(workers[-1])


def _least(name: str, ours: list[float], bare: list[float]) -> Figure:
    least, other = min(ours), min(bare)
    return Figure(f"{name}, least of all rounds", least, "us", bare=other, ratio=least / other)


def _breakdown(side: Side) -> list[Figure]:
    """Where the server's time goes: inside scripts by command, and the scripts themselves."""
    per_run = {name: row["usec"] / side.count for name, row in side.commands.items()}
    scripts = per_run.pop("evalsha", 0.0)
    inside = {name: us for name, us in per_run.items() if us >= 0.05}
    rows = sorted(inside.items(), key=lambda row: -row[1])
    figures = [Figure("of Redis: scripts in all", scripts, "us")]
    figures += [Figure(f"of Redis: {name}", us, "us") for name, us in rows]
    return [*figures, Figure("of Redis: the rest of the scripts", scripts - sum(inside.values()), "us")]


async def bare_side(setting: Setting, count: int) -> Side:
    async with harness.server(aof=setting.aof) as on:
        await bare.fill(on.redis, count, _FILL)
        await bare.join(on.redis)
        async with harness.bare(on.url, "drain", count, uvloop=setting.bare_uvloop) as child:
            async with harness.metered(on, child) as cost:
                await child.go()
                await harness.emptied(on, bare.STREAM)
            return Side(count, cost, child.memory()[0], {})


async def our_side(setting: Setting, count: int) -> Side:
    async with harness.server(aof=setting.aof) as on, on.queue() as queue:
        await queue.submit_many([Submission(agent="noop", input=1) for _ in range(count)])
        # A paused queue lets the worker start and settle down before the clock does.
        await queue.pause("until the worker is ready")
        async with harness.worker(on, uvloop=setting.uvloop) as child:
            await _listening(on, queue)
            await on.redis.config_resetstat()
            async with harness.metered(on, child) as cost:
                await queue.resume()
                await harness.emptied(on, queue.keys.stream)
            assert (await queue.depth()).dead == 0, "runs failed: this measured something else"
            return Side(count, cost, child.memory()[0], await on.commands())


async def _listening(on: Server, queue: RunQueue) -> None:
    """Wait until the worker hears that its queue is opened, and has seen that it is closed."""

    async def listens() -> bool:
        return (await on.redis.pubsub_numsub(queue.keys.control))[0][1] > 0

    await harness.until(listens)
    await asyncio.sleep(0.2)
