"""The primary dies and sentinels elect its replica: whoever was at work goes on by itself.

Redis replicates after it has answered: what the replica had not been given yet dies with the primary. What it had
is kept, and that is all that is promised here.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest
from grpc import aio

from holdfast import App, Client, Context
from holdfast.config import RedisSettings
from holdfast.errors import NoHost, RedisUnavailable
from holdfast.redis.client import DISCONNECTS, connect
from holdfast.runs.run import Status
from tests.support.events.event_receiver import Receiver
from tests.support.events.relays import Outside
from tests.support.hosts.host_processes import agent, cluster_of
from tests.support.redis.clusters import Guarded
from tests.support.runs.system import System
from tests.support.scaling.scalers import calling, heard, settings_of, submit
from tests.support.schedules.schedulers import RunningScheduler
from tests.support.waiting import until

# Each waits several times for as long as an election on a busy machine may take.
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


class Seen:
    """What agents and schedules of this process did."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, int]] = Counter()
        self.turns: Counter[str] = Counter()
        self.release = asyncio.Event()
        self.app = App("test")

        @self.app.agent
        async def note(ctx: Context, number: int) -> int:
            self.begun[ctx.run_id, ctx.fence] += 1
            return number

        @self.app.agent
        async def hold(ctx: Context, number: int) -> int:
            self.begun[ctx.run_id, ctx.fence] += 1
            await ctx.emit("holds", number)
            await self.release.wait()
            await ctx.emit("released", number)
            return ctx.fence

        @self.app.schedule(every=0.25)
        async def tick(ctx: Context) -> None:
            self.turns[ctx.run_id] += 1


async def patiently(call, seconds: float = 60.0):
    """Try again while the primary is away, as everybody must who speaks to Redis without a client of ours."""
    # NoHost: a host that could not say that it lives is one again with its next heartbeat.
    away = (*DISCONNECTS, RedisUnavailable, NoHost)
    return await until(call, lambda _: True, seconds=seconds, tolerate=away)


@pytest.fixture
def guarded(start_valkey) -> Guarded:
    return Guarded(start_valkey)


@pytest.fixture
def redis(guarded) -> RedisSettings:
    return RedisSettings(url=guarded.url, socket_timeout_seconds=2.0, connect_timeout_seconds=2.0)


async def test_runs_schedules_and_clients_go_on_after_a_failover(guarded, redis):
    seen = Seen()
    # A lease that outlasts the election: what was begun before it ends after it, in its first attempt.
    async with System(redis, slots=3, partitions=2, ttl=60.0) as system:
        for name in ("a", "b"):
            await system.worker(seen.app, name)
        ticking = RunningScheduler(system.settings, seen.app)
        await ticking.ready()
        async with Client(settings=system.settings) as client:
            held = [await client.submit("hold", n) for n in range(6)]  # every slot: nobody claims meanwhile
            await until(lambda: len(seen.begun) == 6)
            results = [asyncio.create_task(handle.result(timeout=120)) for handle in held]
            following = asyncio.create_task(_types(held[0]))
            queued = [await system.submit("note", n, thread_id=f"t{n % 5}") for n in range(30)]
            dropped = await system.submit("note", 1, delay_seconds=3600)
            await system.queue.cancel(dropped)
            await until(lambda: len(seen.turns) > 3)
            await asyncio.to_thread(guarded.in_sync)

            guarded.primary.kill()
            before = len(seen.turns)
            await asyncio.to_thread(guarded.promoted)

            # Everybody has found the new primary: producers, the scheduler, operators, the workers' leases.
            more = [await patiently(lambda n=n: system.submit("note", n)) for n in range(100, 130)]
            await until(lambda: len(seen.turns) > before + 4, seconds=60)
            assert (await patiently(lambda: system.queue.get(dropped))).status is Status.CANCELLED
            seen.release.set()
            assert await asyncio.gather(*results) == [1] * 6, (
                "in their first attempt, under their first fence"
            )
            assert (await following)[-3:] == ["holds", "released", "succeeded"]
            for run_id in queued + more:
                assert (await system.ended(run_id, 60)).status is Status.SUCCEEDED
        await patiently(system.nothing_left)
        assert set(seen.begun.values()) == {1}, "a run was begun twice under one fence"
        assert set(seen.turns.values()) == {1}, "a turn was begun twice"
        await ticking.stop()


async def _types(handle) -> list[str]:
    return [event.type async for event in handle.events()]


async def test_what_was_running_on_a_lost_lease_runs_again_once(guarded, redis):
    """The election takes longer than the lease: workers let go in time, and begin again under the next fence."""
    seen = Seen()
    async with System(redis, slots=2, ttl=1.0) as system:
        await system.worker(seen.app, "a")
        ids = [await system.submit("hold", n) for n in range(2)]
        await until(lambda: len({run_id for run_id, _ in seen.begun}) == 2)
        await asyncio.to_thread(guarded.in_sync)
        guarded.primary.kill()
        before = len(seen.begun)  # more than 2 if this process got no CPU for longer than the lease
        await asyncio.to_thread(guarded.promoted)
        await until(lambda: len(seen.begun) >= before + 2, seconds=60)
        seen.release.set()
        for run_id in ids:
            run = await patiently(lambda run_id=run_id: system.ended(run_id, 60))
            assert run.status is Status.SUCCEEDED
            assert run.result > 1
        assert set(seen.begun.values()) == {1}, "a run was begun twice under one fence"


async def test_the_old_primary_comes_back_as_a_replica_and_is_not_written_to(guarded, redis):
    """Who still has a connection to it is told READONLY, and must look for the new one."""
    seen = Seen()
    async with System(redis, slots=2, ttl=60.0) as system:
        await system.worker(seen.app, "a")
        assert (await system.ended(await system.submit("note", 1))).result == 1
        await asyncio.to_thread(guarded.in_sync)
        # Asked to, they change places without anybody dying: every connection stays open.
        await asyncio.to_thread(guarded.fail_over)
        await asyncio.to_thread(guarded.promoted)
        await asyncio.to_thread(guarded.primary.wait_for, "INFO replication", "role:slave", 60.0)
        ids = [await patiently(lambda n=n: system.submit("note", n)) for n in range(20)]
        for run_id in ids:
            assert (
                await patiently(lambda run_id=run_id: system.ended(run_id, 30))
            ).status is Status.SUCCEEDED
        assert set(seen.begun.values()) == {1}


async def test_a_resident_lives_through_a_failover(guarded, redis):
    hosted = msgspec.structs.replace(redis, socket_timeout_seconds=1.0, connect_timeout_seconds=1.0)
    async with cluster_of(hosted, "h1", ttl_seconds=60.0) as hosts:
        await hosts.engine.run(agent("x"))
        placed = await hosts.where("x")
        await asyncio.to_thread(guarded.in_sync)
        guarded.primary.kill()
        await asyncio.to_thread(guarded.promoted)
        after = await patiently(lambda: hosts.where("x"))
        assert (after.pid, after.host, after.fence) == (placed.pid, "h1", placed.fence), (
            "the same, in its place"
        )
        await patiently(lambda: hosts.engine.run(agent("y")))
        assert (await patiently(lambda: hosts.where("y"))).host == "h1"
        await patiently(lambda: hosts.engine.stop("x"))


async def test_a_relay_goes_on_where_it_was_after_a_failover(guarded, redis):
    async with Receiver() as receiver, Outside(redis, receiver.url, ttl=2.0) as outside:
        running = outside.relay()
        await outside.run("a")
        await outside.say("a", *["chunk"] * 20)
        await outside.emptied()
        await asyncio.to_thread(guarded.in_sync)
        guarded.primary.kill()
        await asyncio.to_thread(guarded.promoted)
        await patiently(lambda: outside.say("a", *["chunk"] * 20))
        await outside.emptied(60)
        assert not running.task.done()
        arrived = list(dict.fromkeys(receiver.ids("a")))
        assert arrived == [f"a/{number}" for number in range(1, 41)]


async def test_a_scaler_is_unavailable_during_a_failover_and_pushes_again_after_it(guarded, redis):
    client = connect(redis)
    async with calling(settings_of(redis, answer_seconds=1.5)) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        for sentinel in guarded.sentinels:  # else the answer could be that of the new primary
            sentinel.freeze()
        guarded.primary.kill()
        with pytest.raises(aio.AioRpcError) as caught:
            await caller.value()
        for sentinel in guarded.sentinels:
            sentinel.thaw()
        assert caught.value.code().name == "UNAVAILABLE", "an error: 0 would end every worker"
        await asyncio.to_thread(guarded.promoted)
        await patiently(lambda: submit(client))
        assert await heard(stream, 60) is True, "by the queue on its new primary"
        await until(caller.value, lambda said: said.metricValue == 1, tolerate=aio.AioRpcError)
    await client.aclose()
