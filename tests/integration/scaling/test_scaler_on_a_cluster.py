"""The scaler where queues are on different servers, and one of those hangs."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from grpc import aio

from holdfast.config import QueueSettings, RedisSettings
from holdfast.config.checks import key_slot
from holdfast.redis.client import connect
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission
from tests.support.outages import outage_lines
from tests.support.redis.clusters import cluster_url, owner_of, start_cluster
from tests.support.scaling.scalers import OTHER, QUEUE, calling, heard, settings_of, submit
from tests.support.waiting import stays, until


@pytest.fixture
def nodes(start_valkey):
    return start_cluster(start_valkey, "--cluster-require-full-coverage", "no")


@contextlib.contextmanager
def hanging(node):
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


def home_of(nodes, name: str):
    """The server of a queue; each of the two has its own."""
    homes = {queue: owner_of(nodes, key_slot(queue)) for queue in (QUEUE, OTHER)}
    assert homes[QUEUE] != homes[OTHER]
    return nodes[homes[name]]


async def test_a_server_that_hangs_delays_only_the_streams_of_its_own_queues(nodes):
    """Fails if a look at all queues waits for the slowest server."""
    redis_settings = RedisSettings(url=cluster_url(nodes), socket_timeout_seconds=60.0)
    async with (
        connect(redis_settings) as redis,
        calling(settings_of(redis_settings, answer_seconds=60.0)) as caller,
    ):
        first, other = caller.stream(), caller.stream(OTHER)
        assert (await heard(first), await heard(other)) == (False, False)
        with hanging(home_of(nodes, QUEUE)):
            late = caller.stream()  # its first answer comes from the server that hangs
            await submit(redis, name=OTHER)
            assert await heard(other) is True
            assert await heard(caller.stream(OTHER)) is True
        await submit(redis)
        assert await heard(first) is True
        assert await heard(late) in (True, False)


async def test_an_outage_of_one_server_is_one_line_however_often_the_others_answer(nodes, log_lines):
    """Fails if calls to both servers share a reporter: each answer of the other one ended the outage."""
    redis_settings = RedisSettings(url=cluster_url(nodes))
    async with calling(settings_of(redis_settings, answer_seconds=3.0)) as caller:
        with hanging(home_of(nodes, QUEUE)):
            with pytest.raises(aio.AioRpcError):
                await caller.value(QUEUE)
            await until(lambda: outage_lines(log_lines()))

            async def is_one_outage() -> bool:
                await caller.value(OTHER)
                return len(outage_lines(log_lines())) == 1

            await stays(is_one_outage, seconds=5.0)


async def test_a_server_that_hangs_keeps_only_its_own_queues_from_an_answer(start_valkey):
    """Asked in the same moment as the others: a batch over both servers would wait for the one that hangs."""
    nodes = start_cluster(start_valkey, "--cluster-require-full-coverage", "no")
    homes = {name: owner_of(nodes, key_slot(name)) for name in (QUEUE, OTHER)}
    assert homes[QUEUE] != homes[OTHER]
    settings = RedisSettings(url=cluster_url(nodes))
    redis = connect(settings)
    for name in homes:
        queue = RunQueue(QueueSettings(name=name), redis)
        await queue.ensure()
        await queue.submit(Submission(agent="a"))
    await redis.aclose()
    # Long enough for the server that answers, on a busy machine too: it is waited out for the other one.
    async with calling(settings_of(settings, answer_seconds=5.0)) as caller:
        assert (await caller.value(QUEUE)).metricValue == (await caller.value(OTHER)).metricValue == 1
        nodes[homes[OTHER]].freeze()
        try:
            asked = [caller.value(name) for name in (OTHER, QUEUE) * 5]
            answers = await asyncio.gather(*asked, return_exceptions=True)
        finally:
            nodes[homes[OTHER]].thaw()
    for hung, answered in zip(answers[::2], answers[1::2], strict=True):
        assert isinstance(hung, aio.AioRpcError)
        assert hung.code().name == "UNAVAILABLE"
        assert not isinstance(answered, BaseException), "a queue of another server"
        assert answered.metricValue == 1
