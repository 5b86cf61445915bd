"""How a run ends is heard by whoever listens just then, wherever that is; to nobody it is not told at all."""

from __future__ import annotations

import asyncio
import json

import pytest
from redis.asyncio import Redis

from holdfast.config import RedisSettings
from holdfast.redis.client import connect
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Status
from tests.support.redis.valkey_process import free_port
from tests.support.runs.manual_worker import Hand, open_queue, submit

MANY = 40
"""So many ends in one call that it is asked first who listens."""


async def end_many(queue: RunQueue, count: int = MANY) -> None:
    hand = await Hand(queue, "w").join()
    for number in range(count):
        await submit(queue, f"r{number}")
    runs = await hand.claim(count)
    batch = [Settlement(hand.lease(run), Status.SUCCEEDED, "result", b"1", b"") for run in runs]
    assert await hand._settler._settle(batch) == [SettleReply.SETTLED] * count


async def heard_by(channel, count: int) -> list[tuple[str, object]]:
    heard: list[tuple[str, object]] = []
    async with asyncio.timeout(20):
        while len(heard) < count:
            if message := await channel.get_message(timeout=1):
                run_id = message["channel"].decode().split(":")[-2]
                heard.append((run_id, json.loads(message["data"])["data"]))
    return heard


async def published(redis) -> int:
    stats = await redis.info("commandstats")
    return stats.get("cmdstat_publish", {"calls": 0})["calls"]


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


async def test_of_many_ends_only_those_are_published_that_somebody_listens_for(queue, redis):
    await redis.config_resetstat()
    await end_many(queue)
    assert await published(redis) == 0
    await redis.flushall()
    async with redis.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.subscribe(queue.keys.live("r7"), queue.keys.live("r9"), "other:live")
        await end_many(queue)
        assert await heard_by(channel, 2) == [("r7", {"result": 1}), ("r9", {"result": 1})]
    assert await published(redis) == 2


async def test_a_listener_is_heard_among_more_than_are_looked_at(queue, redis):
    async with redis.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.subscribe(queue.keys.live("r7"), *(f"other-{number}" for number in range(200)))
        await end_many(queue)
        assert await heard_by(channel, 1) == [("r7", {"result": 1})]


async def test_who_listens_by_a_pattern_hears_all(queue, redis):
    async with redis.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.psubscribe("*:live")
        await end_many(queue)
        assert len(await heard_by(channel, MANY)) == MANY


@pytest.mark.parametrize("cut", [False, True], ids=["there", "cut off"])
async def test_who_listens_at_a_replica_hears_it(start_valkey, cut):
    """Cut off for a moment, a replica goes on where it was: what was published meanwhile comes late."""
    master = start_valkey(append_only=False)
    replica = start_valkey("--replicaof", f"127.0.0.1 {master.port}", append_only=False)
    replica.wait_for("INFO replication", "master_link_status:up")
    async with Redis.from_url(master.tcp_url) as redis, Redis.from_url(replica.tcp_url) as there:
        queue = await open_queue(connect(RedisSettings(url=master.tcp_url)))
        async with there.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(queue.keys.live("r7"))
            await there.ping()
            if cut:
                replica.freeze()
                await redis.execute_command("CLIENT", "KILL", "TYPE", "replica")
            await end_many(queue)
            replica.thaw()
            assert await heard_by(channel, 1) == [("r7", {"result": 1})]
        await queue.redis.aclose()


async def test_who_listens_at_another_node_of_a_cluster_hears_it(start_valkey):
    nodes = []
    for slots in ("0 16383", ""):
        bus = free_port()
        node = start_valkey("--cluster-enabled", "yes", "--cluster-port", str(bus), append_only=False)
        nodes.append(node)
        if slots:
            assert node.ask(f"CLUSTER ADDSLOTSRANGE {slots}").startswith("+OK")
        assert nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {node.port} {bus}").startswith("+OK")
    for node in nodes:
        node.wait_for("CLUSTER INFO", "cluster_state:ok")
        node.wait_for("CLUSTER INFO", "cluster_known_nodes:2")
    queue = await open_queue(connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{nodes[0].port}")))
    there = Redis.from_url(nodes[1].tcp_url)
    async with there, there.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.subscribe(queue.keys.live("r7"))
        await end_many(queue)
        assert await heard_by(channel, 1) == [("r7", {"result": 1})]
    await queue.redis.aclose()


async def test_a_server_that_does_not_let_us_ask_publishes_all(start_valkey):
    server = start_valkey(append_only=False)
    server.ask("ACL SETUSER default -info")
    queue = await open_queue(connect(RedisSettings(url=server.tcp_url)))
    redis = Redis.from_url(server.tcp_url)
    async with redis, redis.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.subscribe(queue.keys.live("r7"))
        await end_many(queue)
        assert await heard_by(channel, 1) == [("r7", {"result": 1})]
    await queue.redis.aclose()
