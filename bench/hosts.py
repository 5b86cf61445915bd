"""Hosts: how soon a resident is there, what it keeps, and how long it stands still when its host dies.

Bare = the same resident by ``multiprocessing`` spawn, ready when it can receive too, in the same rounds; with
Ray installed (the ``bench`` extra) also a fresh actor of its class.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import random
import signal
import statistics
import time
from typing import TYPE_CHECKING

import psutil

from bench import harness
from bench.figures import Figure, Goal, median_of, percentile
from holdfast.config import HostSettings, RedisSettings, Settings
from holdfast.hosts.agent import AgentStatus
from holdfast.hosts.remote import RemoteCalls
from holdfast.services.residents import Residents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.harness import Child, Plan, Server

_TTL_SECONDS = 2.0


async def measure(plan: Plan) -> list[Figure]:
    figures = await _creation(plan)
    figures += await _hundred(plan)
    figures += await _three_hosts(plan)
    return figures + await _kills(plan)


def _host(on: Server, **environ: str) -> contextlib.AbstractAsyncContextManager[Child]:
    return harness.process(on, "host", "residents.py", GRPC_PORT="0", METRICS_PORT="0", **environ)


@contextlib.asynccontextmanager
async def _office(on: Server) -> AsyncIterator[Residents]:
    settings = Settings(redis=RedisSettings(url=on.url), hosts=HostSettings(ttl_seconds=_TTL_SECONDS))
    async with Residents(settings) as office:
        yield office


async def _create(office: Residents, name: str) -> float:
    began = time.monotonic()
    await office.start("Echo", name)
    return time.monotonic() - began


# -- one


async def _creation(plan: Plan) -> list[Figure]:
    count = plan.pick(30, 3)
    ours, spawned, stops, asks = [], [], [], []
    async with harness.server() as on, _host(on), _spawning(on) as spawning, _office(on) as office:
        await _create(office, "first")  # the zygote imports the app for it
        for number in range(count):
            ours.append(1000 * await _create(office, f"r-{number}"))
            await spawning.go()
            spawned.append(1000 * float(await spawning.line()))
            began = time.monotonic()
            await office.ask(f"r-{number}", "hello")
            asks.append(1000 * (time.monotonic() - began))
            began = time.monotonic()
            await office.stop(f"r-{number}")
            stops.append(1000 * (time.monotonic() - began))
        calls = await _calls(plan, office)
    plan.say(f"create: {statistics.median(ours):.1f} ms, spawn {statistics.median(spawned):.0f} ms")
    return [
        median_of("create to ready, p50", "ms", ours, spawned, Goal("<", 40)),
        median_of("create to ready, beside spawn", "ms", ours, spawned, Goal("<=", 0.1, "ratio")),
        *await _beside_ray(plan),
        Figure("stop a willing one, p50", statistics.median(stops), "ms", goal=Goal("<", 100)),
        Figure("stop a willing one, max", max(stops), "ms", goal=Goal("<", 100)),
        Figure("ask and be answered, p50", statistics.median(asks), "ms"),
        *calls,
    ]


def _spawning(on: Server) -> contextlib.AbstractAsyncContextManager[Child]:
    environ = {"REDIS_URL": on.url, "LOG_LEVEL": "WARNING"}
    return harness.Child.of("-m", "bench.spawning", cwd=harness.HERE.parent, **environ)


async def _beside_ray(plan: Plan) -> list[Figure]:
    if importlib.util.find_spec("ray") is None:
        plan.say("Ray is not installed: no row beside it (pip install 'holdfast[bench]')")
        return []
    ours, actors = [], []
    async with harness.server() as on, _host(on), _office(on) as office, _ray() as ray:
        async with asyncio.timeout(180):
            assert await ray.line() == "ready"
            await _create(office, "first")
            for number in range(plan.pick(10, 2)):
                ours.append(1000 * await _create(office, f"r-{number}"))
                await ray.go()
                actors.append(1000 * float(await ray.line()))
    plan.say(f"beside Ray: {statistics.median(ours):.1f} ms, an actor {statistics.median(actors):.0f} ms")
    goal = Goal("<=", 0.1, "ratio")
    return [median_of("create to ready, beside a fresh Ray actor", "ms", ours, actors, goal)]


def _ray() -> contextlib.AbstractAsyncContextManager[Child]:
    return harness.Child.of("-m", "bench.actors", cwd=harness.HERE.parent)


async def _calls(plan: Plan, office: Residents) -> list[Figure]:
    rounds: list[tuple[list[float], list[float], list[float]]] = []
    address = await office.engine.location("first")
    assert address is not None
    async with _empty_host() as empty, contextlib.AsyncExitStack() as stack:
        calls = RemoteCalls(HostSettings())
        stack.push_async_callback(calls.close)
        other = await empty.line()
        for _ in range(plan.pick(9, 2)):
            lookups, healths, bare = [], [], []
            for _ in range(plan.pick(500, 50)):
                began = time.monotonic()
                assert await office.engine.location("first") == address
                lookups.append(1000 * (time.monotonic() - began))
                healths.append(1000 * await _health(calls, address))
                bare.append(1000 * await _health(calls, other))
            rounds.append((lookups, healths, bare))

    def at(share: float) -> list[list[float]]:
        return [[percentile(times, share) for times in each] for each in zip(*rounds, strict=True)]

    lookups_50, healths_50, bare_50 = at(0.5)
    lookups_99, healths_99, bare_99 = at(0.99)
    return [
        median_of("look up an agent, p50", "ms", lookups_50),
        median_of("look up an agent, p99", "ms", lookups_99, goal=Goal("<", 1)),
        median_of("gRPC Health, p50", "ms", healths_50, bare_50),
        median_of("gRPC Health, p99", "ms", healths_99, bare_99, Goal("<", 2)),
    ]


async def _health(calls: RemoteCalls, address: str) -> float:
    began = time.monotonic()
    assert (await calls.health(address)).healthy
    return time.monotonic() - began


def _empty_host() -> contextlib.AbstractAsyncContextManager[Child]:
    return harness.Child.of("-m", "bench.emptyhost", cwd=harness.HERE.parent)


# -- many


async def _hundred(plan: Plan) -> list[Figure]:
    count = plan.pick(100, 10)
    async with harness.server() as on, _host(on, MAX_PROCESSES="200") as host, _office(on) as office:
        await _create(office, "first")
        took = await _all(office, [f"r-{number}" for number in range(count)])
        await asyncio.sleep(plan.pick(5, 1))  # until what a resident does at its beginning is done
        used = _memory(host)
        busy = await _cpu(on, host, plan.pick(10, 2))
    plan.say(f"{count} residents in {took:.1f} s, {statistics.median(used):.1f} MiB each")
    return [
        Figure(f"{count} residents on one host", took, "s", goal=Goal("<", 10)),
        Figure("idle resident, USS, p50", statistics.median(used), "MiB", goal=Goal("<", 12)),
        Figure("idle resident, USS, max", max(used), "MiB"),
        Figure(f"CPU of {count} idle residents", 100 * busy, "% of a core"),
    ]


async def _all(office: Residents, names: list[str]) -> float:
    began = time.monotonic()
    await asyncio.gather(*(office.start("Echo", name) for name in names))
    return time.monotonic() - began


def _memory(host: Child) -> list[float]:
    """What each resident has for itself alone: those are the children of the zygote."""
    zygotes = psutil.Process(host.process.pid).children()
    return [each.memory_full_info().uss / 2**20 for zygote in zygotes for each in zygote.children()]


async def _cpu(on: Server, host: Child, seconds: float) -> float:
    """Which share of a core all residents, their host and Redis use while nothing is asked of them."""

    def spent() -> float:
        family = psutil.Process(host.process.pid).children(recursive=True)
        return host.cpu_seconds() + sum(sum(each.cpu_times()[:2]) for each in family)

    before, redis = spent(), await on.cpu_seconds()
    await asyncio.sleep(seconds)
    return (spent() - before + await on.cpu_seconds() - redis) / seconds


async def _three_hosts(plan: Plan) -> list[Figure]:
    count = plan.pick(300, 12)
    names = [f"r-{number}" for number in range(count)]
    async with harness.server() as on, contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(_host(on, MAX_PROCESSES="150"))
        async with _office(on) as office:
            took = await _all(office, names)
            answers = await asyncio.gather(*(office.ask(name, name, timeout=60) for name in names))
            assert answers == names
            live = sum(1 for each in await office.list() if each.status is AgentStatus.RUNNING)
    plan.say(f"{live} residents on three hosts in {took:.1f} s, all answered")
    return [
        Figure(f"{count} residents on three hosts", took, "s"),
        Figure("of them alive together, and answered", live, "residents", goal=Goal(">=", count)),
    ]


# -- how safe


async def _kills(plan: Plan) -> list[Figure]:
    moment, hops = random.Random(5), []
    options = {"HOLDFAST_HOSTS_TTL_SECONDS": str(_TTL_SECONDS)}
    async with harness.server() as on, contextlib.AsyncExitStack() as stack, _office(on) as office:
        holder = await stack.enter_async_context(_host(on, **options))
        names = [f"r-{number}" for number in range(10)]
        await _all(office, names)
        for _ in range(plan.pick(5, 1)):
            heir = await stack.enter_async_context(_host(on, **options))
            await asyncio.sleep(0.3 + moment.uniform(0, _TTL_SECONDS / 3))
            before = {each.agent.agent_id: each.fence for each in await office.list()}
            killed = time.monotonic()
            holder.send(signal.SIGKILL)

            async def back(before: dict[str, int] = before) -> bool:
                return all(
                    each.status is AgentStatus.RUNNING and each.fence > before[each.agent.agent_id]
                    for each in await office.list()
                )

            await harness.until(back)
            hops.append(time.monotonic() - killed)
            await holder.process.wait()
            holder = heir
    plan.say("kill -9 of a host with 10: " + ", ".join(f"{hop:.2f} s" for hop in hops))
    goal = Goal("<=", _TTL_SECONDS + 2)
    what = f"kill -9 of a host to all 10 back, ttl {_TTL_SECONDS:g} s"
    return [
        Figure(f"{what}, p50", statistics.median(hops), "s", goal=goal),
        Figure(f"{what}, max", max(hops), "s", goal=goal),
    ]
