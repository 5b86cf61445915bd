"""Partitions where they are made for: on the servers of a cluster, which move, hang and die on their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import msgspec
import pytest

from holdfast import App
from holdfast.config import RedisSettings
from holdfast.config.checks import key_slot
from holdfast.errors import RedisUnavailable
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.keys import member_key, members_key, pod_key
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.feeds import Feeds
from holdfast.runs.run import Status, Submission
from tests.support.redis.clusters import cluster_url, move_slot, owner_of, start_cluster
from tests.support.runs.partitions import echo_app, in_every_partition, thread_in
from tests.support.runs.system import System, until


@pytest.fixture
def nodes(start_valkey):
    # A server that is away is away alone: without this, all of them refuse every command after a while.
    return start_cluster(start_valkey, "--cluster-require-full-coverage", "no")


def settings_of(nodes) -> RedisSettings:
    return RedisSettings(url=cluster_url(nodes))


def server_of(nodes, partition) -> int:
    return owner_of(nodes, key_slot(partition.keys.stream))


async def test_a_whole_life_over_the_servers_of_a_cluster(nodes):
    async with System(settings_of(nodes), partitions=4, slots=8) as system:
        queue = system.queue
        assert {server_of(nodes, partition) for partition in queue.partitions} == {0, 1, 2}
        await system.worker(echo_app(), "a")
        await system.worker(echo_app(), "b")
        ids = await in_every_partition(system, "echo") + [await system.submit("echo", n) for n in range(40)]
        ids += [one.run_id for one in await queue.submit_many([Submission(agent="echo")] * 100)]
        for run_id in ids:
            assert (await system.ended(run_id)).status is Status.SUCCEEDED
        assert {run.id for run in (await queue.list(limit=200)).runs} == set(ids)
        for run_id in await in_every_partition(system, "asks"):
            await system.reaches(run_id, Status.INTERRUPTED)
            await queue.resume_run(run_id, 1)
            events = [event.type async for event in Feeds(queue, settings_of(nodes)).follow(run_id)]
            assert events[-1] == "succeeded"
        for run_id in await in_every_partition(system, "endless"):
            await system.reaches(run_id, Status.RUNNING)
            await queue.cancel(run_id)
            assert (await system.ended(run_id)).status is Status.CANCELLED
        dead = await in_every_partition(system, "fails")
        for run_id in dead:
            await system.ended(run_id)
        assert len((await DeadLetters(queue).replay_all()).done) == 4
        await queue.pause("a while")
        waiting = asyncio.create_task(queue.submit(Submission(agent="echo")))
        with pytest.raises(Exception, match="paused"):
            await waiting
        await queue.resume()
        async with asyncio.timeout(10):
            while (await queue.depth()).depth:
                await asyncio.sleep(0.01)


async def test_a_server_that_hangs_holds_up_its_own_partitions_only(nodes):
    """One slot for all partitions: if the hung server's claim kept it, nobody else's run would begin."""
    # Who asks it waits for longer than the test does.
    redis = msgspec.structs.replace(settings_of(nodes), socket_timeout_seconds=30.0)
    async with System(redis, partitions=4, slots=1, ttl=60.0) as system:
        await system.worker(echo_app(), "w")
        for run_id in await in_every_partition(system, "echo"):
            await system.ended(run_id)
        homes = [server_of(nodes, partition) for partition in system.queue.partitions]
        hung = 0  # the one that redis-py asks for everything that is no single server's
        assert hung in homes
        nodes[hung].freeze()
        try:
            for _ in range(3):
                for n in range(4):
                    if homes[n] != hung:
                        run_id = await system.submit("echo", n, thread_id=thread_in(n))
                        part = system.queue.partitions[n]
                        async with asyncio.timeout(15):
                            while (await part.get(run_id)).status is not Status.SUCCEEDED:
                                await asyncio.sleep(0.01)
        finally:
            nodes[hung].thaw()
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(*DISCONNECTS):
                    run_id = await system.submit("echo", 1, thread_id=thread_in(homes.index(hung)))
                    await system.ended(run_id)
                    break
                await asyncio.sleep(0.1)


async def test_a_worker_that_can_not_leave_one_server_is_not_taken_for_alive_by_the_others(nodes):
    """Its record would say so for three more heartbeats, which is half a minute by default."""
    async with System(settings_of(nodes), partitions=4, slots=1, heartbeat=30.0) as system:
        homes = {server_of(nodes, partition) for partition in system.queue.partitions}
        name = "w"
        records = (members_key(), member_key("worker", name), pod_key("worker", name))
        away = max(homes - {owner_of(nodes, key_slot(key)) for key in records})
        worker = await system.worker(echo_app(), name)
        redis = system.queue.redis
        assert await redis.exists(member_key("worker", name))
        nodes[away].kill()
        await worker.stop()
        assert not await redis.exists(member_key("worker", name))


async def test_resharding_under_load_loses_and_doubles_nothing(nodes):
    """The slot of a queue moves to another server while it is submitted to, worked and looked at."""
    app, done = App("test"), Counter()

    @app.agent
    async def note(ctx, number):
        done[ctx.run_id, ctx.fence] += 1
        await ctx.emit("did", number)
        return number

    async with System(settings_of(nodes), slots=5, ttl=10.0) as system:
        await system.worker(app, "a")
        await system.worker(app, "b")
        accepted: list[str] = []
        over = asyncio.Event()

        async def produce() -> None:
            number = 0
            while not over.is_set():
                with contextlib.suppress(RedisUnavailable):
                    accepted.append(await system.submit("note", number, thread_id=f"t{number % 7}"))
                number += 1
                await asyncio.sleep(0.002)

        async def look() -> None:
            while not over.is_set():
                with contextlib.suppress(*DISCONNECTS):
                    await system.queue.depth()
                await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            looking = group.create_task(look())
            slot = key_slot(system.queue.keys.stream)
            owner = owner_of(nodes, slot)
            for step in (1, 2):
                await until(lambda step=step: len(accepted) > 60 * step, 60)
                target = (owner + 1) % 3
                others = [node for n, node in enumerate(nodes) if n not in (owner, target)]
                await asyncio.to_thread(move_slot, nodes[owner], nodes[target], others, slot)
                owner = target
            count = len(accepted)
            await until(lambda: len(accepted) > count + 60, 60)
            over.set()
        looking.result()
        for run_id in accepted:
            run = await system.ended(run_id, 30)
            assert run.status is Status.SUCCEEDED, run
        assert len(set(accepted)) == len(accepted)
        await system.nothing_left()
        assert {run_id for run_id, _ in done} >= set(accepted)
        assert set(done.values()) == {1}, "two under one fence"
