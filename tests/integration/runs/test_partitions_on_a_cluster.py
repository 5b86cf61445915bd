"""Partitions where they are made for: on the servers of a cluster, which move, hang and die on their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict

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
from holdfast.services.worker import WorkerProcess
from tests.support.redis.clusters import cluster_url, move_slot, owner_of, start_cluster
from tests.support.runs.partitions import echo_app, in_every_partition, thread_in
from tests.support.runs.system import System
from tests.support.waiting import until


@pytest.fixture
def nodes(start_valkey):
    # A server that is away is away alone: without this, all of them refuse every command after a while.
    return start_cluster(start_valkey, "--cluster-require-full-coverage", "no")


def settings_of(nodes) -> RedisSettings:
    return RedisSettings(url=cluster_url(nodes))


def server_of(nodes, partition) -> int:
    return owner_of(nodes, key_slot(partition.keys.stream))


class Bodies:
    """An agent whose runs go on until they are let go, and how many of them there were at once."""

    def __init__(self) -> None:
        self.app = echo_app()
        self.begun: Counter[str | int] = Counter()
        self.now = self.most = 0
        self.let_go: dict[str | int, asyncio.Event] = defaultdict(asyncio.Event)
        self.app.agent(self.held)

    async def held(self, ctx, name):
        self.begun[name] += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.let_go[name].wait()
        finally:
            self.now -= 1


async def succeeds(system: System, partition: int, run_id: str) -> None:
    """Wait until a run has succeeded, and ask only its own partition."""
    part = system.queue.partitions[partition]
    await until(lambda: part.get(run_id), lambda run: run.status is Status.SUCCEEDED)


async def events_of(system: System, partition: int, run_id: str) -> list[str]:
    part = system.queue.partitions[partition]
    return [fields[b"type"].decode() for _, fields in await part.redis.xrange(part.keys.feed(run_id))]


async def echoes(system: System, partition: int) -> None:
    """See a new run of a partition through."""
    await succeeds(system, partition, await system.submit("echo", 1, thread_id=thread_in(partition)))


def homes_of(nodes, system: System) -> list[int]:
    """The server of each partition; the records of the worker "w" are on the last of the three."""
    homes = [server_of(nodes, partition) for partition in system.queue.partitions]
    assert homes == [2, 0, 2, 1]
    assert owner_of(nodes, key_slot(member_key("worker", "w"))) == 1
    return homes


def slow_settings_of(nodes) -> RedisSettings:
    """Who asks a server that hangs waits for longer than the test does."""
    return msgspec.structs.replace(settings_of(nodes), socket_timeout_seconds=60.0)


@contextlib.asynccontextmanager
async def worker_whose_server_hangs_once_it_has_joined(
    system: System, app: App, node, *, last_claim_seconds: float = 0.0
):
    """Each partition begins with a claim: of those that wait for the one slot, one is the server's that hangs."""
    named = msgspec.structs.replace(system.settings.worker, name="w")
    settings = msgspec.structs.replace(system.settings, worker=named)

    def joined() -> None:
        node.freeze()
        for worker in process.workers:
            worker.claim_loop._claim_seconds = last_claim_seconds

    process = WorkerProcess(settings, app, on_joined=joined)
    task = asyncio.create_task(process.run())
    try:
        await until(lambda: process.ready or task.done())
        yield
    finally:
        node.thaw()
        process.request_stop()
        await asyncio.wait_for(task, 30)


async def test_a_whole_life_over_the_servers_of_a_cluster(nodes):
    async with System(settings_of(nodes), partitions=4, slots=8, ttl=30.0) as system:
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
        await until(queue.depth, lambda depth: not depth.depth)


async def test_a_server_that_hangs_holds_up_its_own_partitions_only(nodes):
    """One slot for all partitions: if the hung server's claim kept it, nobody else's run would begin."""
    async with System(slow_settings_of(nodes), partitions=4, slots=1, ttl=60.0) as system:
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
                        await echoes(system, n)
        finally:
            nodes[hung].thaw()
        await until(lambda: echoes(system, homes.index(hung)), lambda _: True, tolerate=DISCONNECTS)


@pytest.mark.parametrize("last_claim_seconds", [0.0, 60.0])
async def test_a_claim_without_an_answer_keeps_no_slot_from_the_other_partitions(nodes, last_claim_seconds):
    """Also if the last claim took long, as it does when an agent blocks the event loop meanwhile."""
    async with System(slow_settings_of(nodes), partitions=4, slots=1, ttl=60.0) as system:
        homes = homes_of(nodes, system)
        async with worker_whose_server_hangs_once_it_has_joined(
            system, echo_app(), nodes[0], last_claim_seconds=last_claim_seconds
        ):
            for partition in range(4):
                if homes[partition] != 0:
                    await echoes(system, partition)


async def test_a_settlement_without_an_answer_keeps_no_slot_from_the_other_partitions(nodes):
    async with System(slow_settings_of(nodes), partitions=4, slots=1, ttl=60.0) as system:
        homes = homes_of(nodes, system)
        bodies = Bodies()
        await system.worker(bodies.app, "w")
        run_id = await system.submit("held", "first", thread_id=thread_in(1))
        await until(lambda: bodies.begun["first"])
        nodes[0].freeze()
        try:
            bodies.let_go["first"].set()
            for partition in range(4):
                if homes[partition] != 0:
                    await echoes(system, partition)
        finally:
            nodes[0].thaw()
        await succeeds(system, 1, run_id)
        await echoes(system, 1)
        assert bodies.begun["first"] == 1


async def test_a_run_that_is_claimed_too_late_for_its_slot_goes_back_to_the_queue(nodes):
    """A worker never does more at once than it has slots for, however late a server answers."""
    async with System(slow_settings_of(nodes), partitions=4, slots=1, ttl=60.0) as system:
        homes_of(nodes, system)
        bodies, others = Bodies(), Bodies()
        earlier = await system.worker(echo_app())  # by which all servers know the script that claims
        for partition in range(4):
            await echoes(system, partition)
        await earlier.stop()
        late = await system.submit("held", "late", thread_id=thread_in(1))
        async with worker_whose_server_hangs_once_it_has_joined(system, bodies.app, nodes[0]):
            await echoes(system, 3)  # partitions are served in turn: the second one's claim has been sent
            first = await system.submit("held", "first", thread_id=thread_in(0))
            await until(lambda: bodies.begun["first"])
            nodes[0].thaw()
            await until(lambda: events_of(system, 1, late), lambda events: "handed_back" in events)
            await system.worker(others.app, "other")
            await until(lambda: others.begun["late"])
            for each in (bodies.let_go["first"], others.let_go["late"]):
                each.set()
            await succeeds(system, 0, first)
            await succeeds(system, 1, late)
        assert (bodies.begun, bodies.most) == ({"first": 1}, 1)


async def test_a_server_that_hangs_costs_only_its_own_leases(nodes):
    """The keeper has two connections, as many as there are partitions on the server that hangs."""
    async with System(settings_of(nodes), partitions=4, slots=4, ttl=8.0) as system:
        homes = homes_of(nodes, system)
        bodies = Bodies()
        await system.worker(bodies.app, "w")
        ids = [await system.submit("held", n, thread_id=thread_in(n)) for n in range(4)]
        await until(lambda: len(bodies.begun) == 4)
        nodes[2].freeze()
        try:
            await until(lambda: bodies.now <= 2)  # the leases of one server have ended
            for partition in range(4):
                if homes[partition] != 2:
                    bodies.let_go[partition].set()
                    await succeeds(system, partition, ids[partition])
        finally:
            nodes[2].thaw()
        for partition, run_id in enumerate(ids):
            bodies.let_go[partition].set()
            await succeeds(system, partition, run_id)
        assert [bodies.begun[n] for n in range(4) if homes[n] != 2] == [1, 1]


async def test_a_worker_that_can_not_leave_one_server_is_not_taken_for_alive_by_the_others(nodes):
    """Its record would say so for three more heartbeats, which is half a minute by default."""
    async with System(settings_of(nodes), partitions=4, slots=1, heartbeat=30.0, ttl=30.0) as system:
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
                await until(lambda step=step: len(accepted) > 60 * step, seconds=60)
                target = (owner + 1) % 3
                others = [node for n, node in enumerate(nodes) if n not in (owner, target)]
                await asyncio.to_thread(move_slot, nodes[owner], nodes[target], others, slot)
                owner = target
            count = len(accepted)
            await until(lambda: len(accepted) > count + 60, seconds=60)
            over.set()
        looking.result()
        for run_id in accepted:
            run = await system.ended(run_id, 30)
            assert run.status is Status.SUCCEEDED, run
        assert len(set(accepted)) == len(accepted)
        # What was accepted without an answer is done too, perhaps after those.
        await until(system.queue.depth, lambda depth: not depth.depth)
        await system.nothing_left()
        assert {run_id for run_id, _ in done} >= set(accepted)
        assert set(done.values()) == {1}, "two under one fence"
