"""The scaler where queues are on different servers, and one of those hangs."""

from __future__ import annotations

import asyncio

from grpc import aio

from holdfast.config import QueueSettings, RedisSettings
from holdfast.config.checks import key_slot
from holdfast.redis.client import connect
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission
from tests.support.redis.clusters import cluster_url, owner_of, start_cluster
from tests.support.scaling.scalers import OTHER, QUEUE, calling, settings_of


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
