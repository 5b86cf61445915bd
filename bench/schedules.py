"""Schedules: how many turns a second, how late they begin, and what many of them cost.

Bare = the two scripts alone: acquire a batch, complete it, and again, from one process; nothing is run, kept
or decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import harness
from bench.figures import Figure, Goal, median_of, percentile
from holdfast.config import RedisSettings
from holdfast.redis.client import connect
from holdfast.schedules.acquisition import Acquirer
from holdfast.schedules.completion import Completer, Completion
from holdfast.schedules.history import past_turn
from holdfast.schedules.registry import ScheduleRegistry, registration_of, schedule_keys
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.harness import Child, Plan, Server
    from holdfast.redis.keys import ScheduleKeys

PERMITS = 500
_TTL_SECONDS = 2
_REGISTERED_AT_ONCE = 10_000


class Bench:
    """The schedules on one server."""

    def __init__(self, on: Server) -> None:
        settings = RedisSettings(url=on.url)
        self.on = on
        self.keys: ScheduleKeys = schedule_keys(settings)
        self.redis = connect(settings)
        self.registry = ScheduleRegistry(self.redis, self.keys)

    async def fill(self, count: int, agent: str = "noop", *, every: float = 3600, over: float = 0.0) -> None:
        """Register schedules that are due now, or at times spread over the next ``over`` seconds."""
        now = (await self.registry.count()).now
        for start in range(0, count, _REGISTERED_AT_ONCE):
            numbers = range(start, min(start + _REGISTERED_AT_ONCE, count))
            await self.registry.put(
                [
                    registration_of(
                        Schedule(name=f"s-{n}", agent=agent, trigger=Every(seconds=every), source="api"),
                        now,
                        over * n / count,
                    )
                    for n in numbers
                ]
            )

    async def left(self) -> int:
        """How many are due or run."""
        now = (await self.on.redis.time())[0] + 1
        due = await self.on.redis.zcount(self.keys.waiting, "-inf", now)
        return due + await self.on.redis.zcard(self.keys.working)

    async def idle(self) -> bool:
        return await self.left() == 0

    async def caught_up(self, rate: float) -> None:
        """Wait until the backlog is gone: what was due before a scheduler came is not late through its fault.

        A second of looks in a row, each with less than a twentieth of a second's turns left, so that a lull
        in the middle of the backlog does not count; one that never catches up fails the measurement.
        """
        since = time.monotonic()

        async def steady() -> bool:
            nonlocal since
            now = time.time()
            if await self.on.redis.zcount(self.keys.waiting, "-inf", now) > rate / 20:
                since = time.monotonic()
            return time.monotonic() - since > 1

        await harness.until(steady)

    async def trigger(self, count: int) -> None:
        await self.registry.trigger([f"s-{n}" for n in range(count)])

    async def runs(self, count: int) -> int:
        """How many turns have ended, over all schedules."""
        async with self.on.redis.pipeline(transaction=False) as pipe:
            for n in range(count):
                pipe.hget(f"{self.keys.record_prefix}s-{n}", "runs")
            return sum(int(runs or 0) for runs in await pipe.execute())


@contextlib.asynccontextmanager
async def _bench() -> AsyncIterator[Bench]:
    async with harness.server() as on:
        bench = Bench(on)
        try:
            yield bench
        finally:
            await bench.redis.aclose()


def _scheduler(on: Server, **environ: str) -> contextlib.AbstractAsyncContextManager[Child]:
    return harness.process(
        on,
        "scheduler",
        "turns.py",
        HOLDFAST_REDIS_AGENT_MAX_CONCURRENT_AGENTS=str(PERMITS),
        LOG_LEVEL="ERROR",
        **environ,
    )


async def measure(plan: Plan) -> list[Figure]:
    figures = await _throughput(plan)
    figures += await _four(plan)
    figures += await _lateness(plan)
    figures += await _million(plan)
    figures.append(await _memory(plan))
    return figures + await _kills(plan)


# -- how many


async def _throughput(plan: Plan) -> list[Figure]:
    count = plan.pick(100_000, 5_000)
    bare, ours, server, child = [], [], [], []
    for _ in range(plan.pick(3, 1)):
        bare.append(await _scripts_alone(count))
        drained = await _turns(count)
        ours.append(drained.rate)
        server.append(1e6 * drained.cost.server_cpu / drained.turns)
        child.append(1e6 * drained.cost.child_cpu / drained.turns)
        plan.say(f"turns: scripts alone {bare[-1]:,.0f}/s, a scheduler {ours[-1]:,.0f}/s")
    name = f"acquire, run and complete, {count:,} due"
    return [
        median_of(name, "turns/s", ours, bare, Goal(">=", 0.5, "ratio")),
        median_of("Redis CPU a turn", "us", server),
        median_of("scheduler CPU a turn", "us", child),
    ]


async def _scripts_alone(count: int) -> float:
    async with _bench() as bench:
        await bench.fill(count)
        acquirer = Acquirer(bench.redis, bench.keys, owner="bare", ttl_ms=30_000)
        completer = Completer(bench.redis, bench.keys, owner="bare")
        began, done = time.monotonic(), 0
        while done < count:
            found = (await acquirer.acquire(PERMITS)).schedules
            later = time.time() + 3600
            ends = [
                Completion(one.name, one.fence, later, history=past_turn(one, None, "succeeded", 0.0))
                for one in found
            ]
            await completer.complete(ends)
            done += len(found)
        return count / (time.monotonic() - began)


async def _turns(count: int, processes: int = 1) -> Drained:
    async with _bench() as bench, contextlib.AsyncExitStack() as stack:
        if processes == 1:
            await bench.fill(count)
        children = [await stack.enter_async_context(_scheduler(bench.on)) for _ in range(processes)]
        if processes == 1:
            return await _drained(bench, count, children[0])
        # All of them are there before there is anything to do: else the first one does it alone.
        async with harness.metered(bench.on, children[0]) as cost:
            await bench.fill(count)
            await harness.until(bench.idle, 120)
        return Drained(count, cost, await bench.runs(count))


@dataclasses.dataclass(frozen=True, slots=True)
class Drained:
    """What was done from the first look at the schedulers' work to its end."""

    turns: int
    cost: harness.Cost
    runs: int
    """Over all: more than there were turns if one was run twice."""

    @property
    def rate(self) -> float:
        return self.turns / self.cost.seconds


async def _drained(bench: Bench, count: int, child: Child) -> Drained:
    async def begun() -> bool:
        return await bench.left() < count

    await harness.until(begun)
    left = await bench.left()
    async with harness.metered(bench.on, child) as cost:
        await harness.until(bench.idle, 120)
    return Drained(left, cost, await bench.runs(count))


async def _four(plan: Plan) -> list[Figure]:
    count = plan.pick(100_000, 5_000)
    drained = await _turns(count, 4)
    plan.say(f"4 processes: {drained.rate:,.0f} turns/s, {drained.runs:,} runs of {count:,}")
    return [
        Figure("4 schedulers on one set", drained.rate, "turns/s"),
        Figure("turns that two of them tried", drained.runs - count, "turns", goal=Goal("<=", 0)),
    ]


# -- how late


async def _lateness(plan: Plan) -> list[Figure]:
    count, rate, seconds = plan.pick(100_000, 5_000), plan.pick(1000, 200), plan.pick(20, 4)
    async with _bench() as bench:
        every = count / rate
        await bench.fill(count, "late", every=every, over=every)
        with tempfile.NamedTemporaryFile(prefix="hfbench") as file:
            async with _scheduler(bench.on, TURNS_FILE=file.name) as child:
                await bench.caught_up(rate)
                child.send(signal.SIGUSR1)
                async with harness.metered(bench.on, child) as cost:
                    await asyncio.sleep(seconds)
                child.send(signal.SIGTERM)
                await child.process.wait()
            late = [1000 * age for age in json.loads(_text(file.name))]
    plan.say(f"lateness: {len(late) / seconds:,.0f} turns/s, p99 {percentile(late, 0.99):.1f} ms")
    what = f"begin after the turn, {rate:,} due a second of {count:,}"
    return [
        Figure(f"{what}, p50", percentile(late, 0.5), "ms"),
        Figure(f"{what}, p99", percentile(late, 0.99), "ms", goal=Goal("<", 100)),
        Figure("scheduler CPU meanwhile", 100 * cost.child_cpu / cost.seconds, "%"),
    ]


# -- how large


async def _million(plan: Plan) -> list[Figure]:
    count, batch = plan.pick(1_000_000, 20_000), 100
    async with _bench() as bench:
        began = time.monotonic()
        await bench.fill(count, over=7200)
        took = time.monotonic() - began
        acquirer = Acquirer(bench.redis, bench.keys, owner="bench", ttl_ms=30_000)
        await bench.trigger(batch * 60)
        calls = []
        for _ in range(50):
            asked = time.monotonic()
            assert len((await acquirer.acquire(batch)).schedules) == batch
            calls.append(1000 * (time.monotonic() - asked))
        memory = (await bench.on.redis.info("memory"))["used_memory"] / 2**20
    plan.say(f"{count:,} registered in {took:.0f} s; acquiring {batch}: {statistics.median(calls):.2f} ms")
    return [
        Figure(f"register in bulk, {count:,}", count / took, "schedules/s"),
        Figure(f"acquire {batch} of {count:,}, p50", statistics.median(calls), "ms", goal=Goal("<", 5)),
        Figure(f"acquire {batch} of {count:,}, p99", percentile(calls, 0.99), "ms"),
        Figure(f"Redis memory for {count:,}", memory, "MB"),
    ]


async def _memory(plan: Plan) -> Figure:
    count = plan.pick(100_000, 5_000)
    async with _bench() as bench, _scheduler(bench.on, TURNS_IN_CODE=str(count)) as child:

        async def registered() -> bool:
            return (await bench.registry.count()).registered == count

        await harness.until(registered, 120)
        await asyncio.sleep(2)
        return Figure(f"scheduler with {count:,} in code, RSS", child.memory()[0], "MB", goal=Goal("<", 400))


# -- how safe


async def _kills(plan: Plan) -> list[Figure]:
    moment, hops = random.Random(4), []
    with tempfile.NamedTemporaryFile(prefix="hfbench") as file:
        async with _bench() as bench, contextlib.AsyncExitStack() as stack:
            options = {"TURNS_FILE": file.name, "HOLDFAST_LEASE_TTL_SECONDS": str(_TTL_SECONDS)}
            await bench.fill(1, "begin")
            holder = await stack.enter_async_context(_scheduler(bench.on, **options))
            for number in range(plan.pick(5, 1)):
                await _lines(file.name, number + 1)
                heir = await stack.enter_async_context(_scheduler(bench.on, **options))
                await asyncio.sleep(0.3 + moment.uniform(0, _TTL_SECONDS / 4))
                killed = time.monotonic()
                holder.send(signal.SIGKILL)
                hops.append(float((await _lines(file.name, number + 2))[-1]) - killed)
                await holder.process.wait()
                holder = heir
    plan.say("kill -9: " + ", ".join(f"{hop:.2f} s" for hop in hops))
    goal = Goal("<=", _TTL_SECONDS + 2)
    return [
        Figure(
            f"kill -9 to begin elsewhere, ttl {_TTL_SECONDS} s, p50", statistics.median(hops), "s", goal=goal
        ),
        Figure(f"kill -9 to begin elsewhere, ttl {_TTL_SECONDS} s, max", max(hops), "s", goal=goal),
    ]


async def _lines(file: str, count: int) -> list[str]:
    async def there() -> bool:
        return len(_text(file).split()) >= count

    await harness.until(there)
    return _text(file).split()


def _text(file: str) -> str:
    return Path(file).read_text()
