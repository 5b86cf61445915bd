"""A producer where its roll-out and its queue are on two servers, which fail each on their own."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from holdfast import Producer
from holdfast.client.transports.redis.rollouts import Rollouts
from holdfast.config import BreakerSettings, RedisSettings
from holdfast.config.checks import key_slot
from holdfast.redis.keys import rollout_key
from holdfast.reliability.breaker import BreakerState
from tests.support.redis.clusters import cluster_url, owner_of, start_cluster
from tests.support.runs.system import System


@pytest.fixture
def nodes(start_valkey):
    return start_cluster(start_valkey, "--cluster-require-full-coverage", "no")


async def test_a_rollout_whose_server_is_away_leaves_the_queue_alone(nodes):
    redis = RedisSettings(
        url=cluster_url(nodes), breaker=BreakerSettings(failure_threshold=2, cooldown_seconds=60.0)
    )
    taken: list[object] = []

    async def old_way(message: object) -> None:
        taken.append(message)

    async with System(redis) as system:
        home = owner_of(nodes, key_slot(system.queue.keys.stream))
        names = (f"flag-{number}" for number in itertools.count())
        flag, away = next(
            (name, at) for name in names if (at := owner_of(nodes, key_slot(rollout_key(name)))) != home
        )
        await Rollouts(system.queue.redis).set(flag, 100)
        settings = msgspec.structs.replace(system.settings, redis=redis)
        sending = Producer(
            "moving",
            agent="echo",
            rollout=flag,
            fallback=old_way,
            refresh=0,
            patience="20s",
            settings=settings,
        )
        async with sending:
            assert (await sending.send(1)).path == "queue"
            nodes[away].kill()
            assert [(await sending.send(n)).path for n in range(6)] == ["queue"] * 6
            assert sending.breaker.state is BreakerState.CLOSED
    assert not taken
