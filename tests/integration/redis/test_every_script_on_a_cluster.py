"""Every script of every room, on a real cluster of three servers: a new one without a visit here fails.

What a server knows by its hash it has been asked to run: on servers that were empty before, that is the proof.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import redis as blocking

import holdfast
from holdfast import App
from holdfast.client.transports.redis.rollouts import Rollouts
from holdfast.compat.location_registry import AgentLocationRegistry
from holdfast.config import EventApiSettings, RedisSettings, RelaySettings, Settings
from holdfast.events.hub import Hub
from holdfast.events.relay.undelivered import Undelivered
from holdfast.hosts.agent import Agent
from holdfast.hosts.registry import AgentRegistry as HostRegistry
from holdfast.leases.leadership import Leadership
from holdfast.leases.lease import Lease, RenewalReply
from holdfast.leases.sortedsets import SortedSetLeases
from holdfast.leases.streams import StreamLeases
from holdfast.redis import scripts
from holdfast.redis.client import Redis, connect, connect_blocking
from holdfast.redis.keys import HostKeys, ScheduleKeys
from holdfast.redis.members import Member, Members
from holdfast.runs.archive import Archive
from holdfast.runs.cleanup import list_consumers
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.execution.claim import Claimer
from holdfast.runs.expiry import Expiry
from holdfast.runs.feeds import Feeds
from holdfast.runs.retention import Retention
from holdfast.runs.run import Status, Submission
from holdfast.runs.waiting import EndWaiter
from holdfast.scaling.arrivals import Arrivals
from holdfast.schedules.acquisition import Acquirer, schedule_leases
from holdfast.schedules.backfill import Backfill
from holdfast.schedules.completion import Completer, Completion
from holdfast.schedules.entries import Entries
from holdfast.schedules.orphans import Orphans, cleanup_leadership
from holdfast.schedules.parallel import ParallelFirings
from holdfast.schedules.registry import ScheduleRegistry, registration_of
from holdfast.schedules.replies import ChangeReply, Registered
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from holdfast.services.janitor import Janitor
from holdfast.telemetry.metrics import Metrics
from tests.support.events.event_receiver import Receiver
from tests.support.events.relays import QUICK, Running, undelivered_runs
from tests.support.redis.clusters import cluster_url, start_cluster
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.runs.system import System
from tests.support.schedules.manual_scheduler import registration
from tests.support.waiting import until

SOURCE = Path(holdfast.__file__).parent
INCLUDE = re.compile(r"^\s*--\s*@include\s+(\S+)", re.MULTILINE)


# -- what there is, and what was run


def lua_files() -> dict[tuple[str, str], str]:
    """Every .lua file, by its package and name."""
    return {
        (".".join(("holdfast", *path.parent.parent.relative_to(SOURCE).parts)), path.stem): path.read_text()
        for path in SOURCE.rglob("lua/*.lua")
    }


def parts_of(package: str, name: str, files: dict[tuple[str, str], str]) -> Iterator[tuple[str, str]]:
    """A script and all fragments that it includes."""
    at = (package, name) if (package, name) in files else ("holdfast.redis", name)
    yield at
    for included in INCLUDE.findall(files[at]):
        yield from parts_of(package, included, files)


def knows(nodes: list[ValkeyProcess], package: str, name: str) -> bool:
    """Whether some server has been given this script, which happens only when it shall run it."""
    sha = scripts.load(package, name).sha
    return any(":1" in node.ask(f"SCRIPT EXISTS {sha}") for node in nodes)


def run_on(nodes: list[ValkeyProcess]) -> set[tuple[str, str]]:
    """Every file of which some server has run the script, or one that includes it."""
    files = lua_files()
    done: set[tuple[str, str]] = set()
    for package, name in files:
        if knows(nodes, package, name):
            done.update(parts_of(package, name, files))
    return done


def failed_scripts(node: ValkeyProcess) -> int:
    """Calls of scripts that failed for another reason than that the server had to be given the script first."""
    unknown = sum(map(int, re.findall(r"errorstat_NOSCRIPT:count=(\d+)", node.ask("INFO errorstats"))))
    failed = re.findall(r"cmdstat_eval(?:sha)?:.*failed_calls=(\d+)", node.ask("INFO commandstats"))
    return sum(map(int, failed)) - unknown


# -- the rooms


async def visit_runs(redis: RedisSettings) -> None:
    app, gate = App("test"), asyncio.Event()

    @app.agent(max_attempts=1)
    async def fails(payload=None):
        raise ValueError("no")

    @app.agent(concurrency=1)
    async def works(ctx, payload=None):
        await ctx.emit("hello", payload)
        if payload == "again" and ctx.attempt == 1:
            raise ConnectionError("once")
        if payload == "asks":
            return await ctx.interrupt("sure?")
        return payload

    @app.agent
    async def waits(ctx, payload=None):
        await gate.wait()

    # A prefix as an installation that shares its cluster has it; runs stay for as long as the test asks for them.
    redis = msgspec.structs.replace(redis, key_prefix="mine:")
    async with System(redis, partitions=3, slots=4, retention_seconds=60, delete_after_ack=False) as system:
        queue = system.queue
        worker = await system.worker(app, "w")
        for n in range(6):
            assert (await system.ended(await system.submit("works", n, thread_id=f"t{n % 2}"))).result == n
        again = await system.submit("works", "again", tenant="a", concurrency_key="k", idempotency_key="i")
        assert (await system.ended(again)).attempt == 2  # by way of the delayed set
        delayed = await system.submit("works", 1, delay_seconds=0.05)
        await system.ended(delayed)
        asking = await system.submit("works", "asks")
        await system.reaches(asking, Status.INTERRUPTED)
        await queue.resume_run(asking, 7)
        assert (await system.ended(asking)).result == 7
        events = [event.type async for event in Feeds(queue, redis).follow(asking)]
        assert (events[0], events[-1]) == ("submitted", "succeeded")
        async with Hub(queue.redis, redis) as hub:
            waited = await EndWaiter(queue, hub).wait(asking)
        assert waited is not None
        assert waited.result == 7
        dead = [await system.submit("fails") for _ in range(2)]
        for run_id in dead:
            await system.ended(run_id)
        letters = DeadLetters(queue)
        assert len((await letters.list()).letters) == 2
        await letters.replay(dead[0])
        await system.ended(dead[0])
        await letters.drop(dead[1])
        running = await system.submit("waits")
        await system.reaches(running, Status.RUNNING)
        await queue.cancel(running)
        await system.ended(running)
        await queue.pause("a while")
        await queue.resume()
        assert (await queue.list(limit=5)).runs
        assert (await queue.depth()).depth == 0
        assert (await queue.activity()).length > 0, "finished ones are kept"
        await worker.stop()
        await after_the_worker(system)


async def after_the_worker(system: System) -> None:
    """What the janitor does, and what happens to runs of workers that are gone."""
    metrics, reader = Metrics(()), connect_blocking(system.settings.redis, 1.0)
    for number, partition in enumerate(system.queue.partitions):
        claimer = Claimer(partition, "dead", reader)
        await claimer.join()
        await partition.submit(Submission(agent="works", input=number, thread_id=f"x{number}"))
        (woken,) = await claimer.wait(1000)
        (run,) = (await claimer.claim(1, [woken])).runs
        leases = StreamLeases(
            partition.keys, group=partition.settings.group, owner="dead", ttl_ms=1, turn_ms=1
        )
        assert await leases.renew(partition.redis, [run.lease("dead")]) == [RenewalReply.KEPT]
        assert await leases.release(partition.redis, [run.lease("dead")]) == [True]
        (run,) = (await claimer.claim(1, [])).runs
        # The worker's turn to look may last a little longer than it did.
        reclaim = functools.partial(leases.reclaim, partition.redis)
        await until(reclaim, lambda found, run=run: found == [run.run_id])
        await claimer.claim(1, [])
        assert await claimer.tidy([]) == (1, 1)
        assert [consumer.name for consumer in await list_consumers(partition)] == ["dead"]
        await partition.cancel(run.run_id)
        # As a run that was lost: it has a record, and is nowhere.
        await partition.submit(Submission(agent="works", run_id="lost", thread_id="y"))
        await partition.redis.delete(partition.keys.stream)
        await partition.ensure()
        await partition.redis.hset(partition.keys.letters, "1-1", "{}")
        await Expiry(partition, metrics).run_once(dry_run=True)
        await Retention(partition, metrics, ttl_seconds=0.001).run_once()
        await Archive(partition, system._connections.store, metrics).run_once()
        await leases.leave(partition.redis)
    await reader.aclose()
    janitor = Janitor(system._connections, metrics)
    assert len(await janitor.run_once()) == 3
    arrivals = Arrivals(system.queue, system.queue.redis, block_seconds=0.01)
    await arrivals.mark()
    await arrivals.wait()


async def visit_events(redis: RedisSettings, nodes: list[ValkeyProcess]) -> None:
    """The relay takes a run's events outside, in order; one receiver does not answer at first."""
    app = App("test")

    @app.agent
    async def says(ctx, payload=None):
        await ctx.emit("hello", payload)

    async with Receiver() as receiver:
        event_api = EventApiSettings(url=receiver.url, secret="s")
        async with System(redis, name="told", partitions=2, event_api=event_api, ttl=1.0) as system:
            relays = RelaySettings(**{**QUICK, "timeout_seconds": 0.5})
            settings: Settings = msgspec.structs.replace(system.settings, relay=relays)
            await system.worker(app, "w")
            receiver.status = 500
            relay = Running(settings, "relay")
            ids = [await system.submit("says", n, webhook=f"{receiver.url}/hook") for n in range(4)]
            for run_id in ids:
                await system.ended(run_id)
            await until(lambda: len(receiver.got) > 3)
            receiver.status = 204
            await until(partial(_all_delivered, system), what="an empty outbox")
            receiver.behave = lambda path, body: 422
            refused = await system.submit("says")
            await until(partial(_undelivered, system, lambda count: count == 4))
            receiver.behave = lambda path, body: 204
            for partition in system.queue.partitions:
                await Undelivered(partition.keys, partition.redis).redeliver()
            await until(partial(_told_all, receiver, refused))
            await until(partial(_undelivered, system, lambda count: count == 0))
            receiver.behave = lambda path, body: "hang"  # an entry that is held for longer than a beat
            await system.submit("says", webhook=f"{receiver.url}/hook")
            await until(lambda: knows(nodes, "holdfast.events.relay", "outbox_renew"))
            receiver.behave = lambda path, body: 204
            await relay.stop()


async def _all_delivered(system: System) -> bool:
    """Whether every sink has taken every event: one that it has not would be rejected with the next run's."""
    partitions = system.queue.partitions
    return sum([await undelivered_runs(partition.redis, partition.keys) for partition in partitions]) == 0


async def _undelivered(system: System, enough: Callable[[int], bool]) -> bool:
    streams = [partition.keys.undelivered for partition in system.queue.partitions]
    return enough(sum([await system.queue.redis.xlen(stream) for stream in streams]))


def _told_all(receiver: Receiver, run_id: str) -> bool:
    return len(set(receiver.ids(run_id))) >= 4  # submitted, started, hello, succeeded


async def visit_leases(cluster: Redis) -> None:
    leases = SortedSetLeases("{t}:table", "{t}:record:", kind="t", owner="me", ttl_ms=50)
    assert await leases.renew(cluster, [Lease("a", "me", 1)]) == [RenewalReply.LOST]
    office = Leadership("{t}:office", owner="me", ttl_ms=9000)
    term = await office.campaign(cluster)
    assert isinstance(term, Lease)
    assert await office.renew(cluster, [term]) == [RenewalReply.KEPT]
    assert await office.resign(cluster, term) is True


async def visit_members(cluster: Redis) -> None:
    members = Members(prefix="mine:", heartbeat_seconds=5)
    for n in range(5):
        await members.announce(cluster, Member("worker", f"w{n}", {"host": "h"}))
    assert [member.name for member in await members.all(cluster)] == [f"w{n}" for n in range(5)]
    await members.leave(cluster, "worker", "w0")
    assert not await members.alive(cluster, "worker", "w0")


async def visit_schedules(cluster: Redis) -> None:
    keys = ScheduleKeys.of(prefix="mine:", hash_tag="ps")
    registry, acquirer = ScheduleRegistry(cluster, keys), Acquirer(cluster, keys, owner="pod", ttl_ms=30_000)
    completer, orphans = Completer(cluster, keys, owner="pod"), Orphans(cluster, keys)
    names = [f"s{n}" for n in range(20)]
    put = await registry.put([registration(name, first=1.0, priority=n % 9) for n, name in enumerate(names)])
    assert put == [Registered.CREATED] * 20
    assert (await registry.standing()).registered == 20
    assert await registry.differing([(names[0], "other")]) == [0]
    runs = (await acquirer.acquire(5)).schedules + (await acquirer.acquire(40, lambda *_: True)).schedules
    leases = [run.lease("pod") for run in runs]
    table = schedule_leases(keys, owner="pod", ttl_ms=9000)
    assert set(await table.renew(cluster, leases)) == {RenewalReply.KEPT}
    await completer.give_back(leases[:5], [0.0] * 5)
    await completer.complete([Completion(run.name, run.fence, 9e9) for run in runs[5:]])
    assert await registry.pause(names[:1], "why") == [ChangeReply.PAUSED]
    assert await registry.resume(names[:1]) == [ChangeReply.RESUMED]
    assert await registry.trigger(names[:1]) == [ChangeReply.TRIGGERED]
    assert await registry.stop(names[:1], "why") == [ChangeReply.IDLE]
    assert len((await Entries(cluster, keys).list(limit=100)).entries) == (await registry.count()).registered
    assert await orphans.reclaim() == []
    assert (await orphans.sweep()).looked_at == 20
    assert await registry.repopulate(lambda lost: pytest.fail(lost.name)) == []
    office = cleanup_leadership(keys, owner="pod", ttl_ms=9000)
    term = await office.campaign(cluster)
    assert term is not None
    assert await office.renew(cluster, [term]) == [RenewalReply.KEPT]
    assert await office.resign(cluster, term) is True
    assert await registry.remove(names) == [ChangeReply.REMOVED] * 20
    # Turns beside each other, and turns of the past.
    now = time.time()
    allow = Schedule(name="a", agent="x", trigger=Every(seconds=60), overlap="allow", overlap_most=3)
    await registry.put([registration_of(allow, now - 1)])
    (first,) = (await acquirer.acquire(1)).schedules
    await ParallelFirings(cluster, keys, Metrics(), owner="pod").place(first, allow, now + 60)
    filled = await Backfill(cluster, keys).run("a", now - 600, now - 300)
    assert filled


async def visit_hosts(cluster: Redis, nodes: list[ValkeyProcess]) -> None:
    registry = HostRegistry(HostKeys.of(hash_tag="h"), cluster, ttl_seconds=0.1, placing_seconds=5)
    for n in range(3):
        await registry.want(Agent(agent_id=f"a{n}", entry="plain", payload=b"{}"))
        grant = await registry.grant("host", "host:1", f"a{n}")
        assert grant.given
        assert await registry.started("host", "host:1", f"a{n}", grant.fence, 1) == "kept"
        held = [Lease(f"a{n}", "host", grant.fence)]
        assert await registry.leases("host", "host:1").renew(cluster, held) != [RenewalReply.LOST]
        if n == 0:
            assert await registry.release("host", "a0", grant.fence, "stopped")
        if n == 1:
            await registry.unwant("a1")
    await until(registry.reclaim)
    client = blocking.RedisCluster("127.0.0.1", nodes[0].port)
    locations = AgentLocationRegistry(client, hash_tag="h")
    locations.register("b", "elsewhere:9")
    assert locations.heartbeat("b")
    assert locations.get_location("b") == "elsewhere:9"
    assert locations.get_host_agents("elsewhere") == ["b"]
    assert locations.get_host_load()["elsewhere"] == 1
    locations.deregister("b")
    client.close()


async def visit_rollouts(cluster: Redis) -> None:
    rollouts = Rollouts(cluster, prefix="mine:")
    await rollouts.set("flag", 30, allow=["t"], reason="why")
    assert [each.percent for each in await rollouts.all()] == [30]
    await rollouts.remove("flag")


async def test_every_script_runs_on_a_cluster(start_valkey):
    nodes = start_cluster(start_valkey)
    redis = RedisSettings(url=cluster_url(nodes))
    cluster = connect(redis)
    await visit_runs(redis)
    await visit_events(redis, nodes)
    await visit_leases(cluster)
    await visit_members(cluster)
    await visit_schedules(cluster)
    await visit_hosts(cluster, nodes)
    await visit_rollouts(cluster)
    await cluster.aclose()
    left = sorted(lua_files().keys() - run_on(nodes))
    assert not left, f"no server of the cluster was asked to run these: {left}"
    assert [failed_scripts(node) for node in nodes] == [0, 0, 0]
    told = "".join(node.ask("INFO errorstats") for node in nodes)
    assert "CROSSSLOT" not in told
    calls = [re.search(r"cmdstat_evalsha:calls=(\d+)", node.ask("INFO commandstats")) for node in nodes]
    assert all(found and int(found[1]) > 10 for found in calls), "every server had its part"
