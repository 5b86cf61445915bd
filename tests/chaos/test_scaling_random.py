"""Scaling up and down by chance, with long runs, short drains and a Redis that hangs: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from holdfast.config.scaling import ScalingSettings
from holdfast.runs.run import Submission
from holdfast_simulator.rules import Keda
from holdfast_simulator.spec import (
    Behavior,
    Direction,
    Fallback,
    FallbackBehavior,
    KedaSpec,
    Limit,
    Trigger,
)
from tests.support.runs.system import System
from tests.support.scaling.replica_set import (
    check_everybody_left_politely,
    check_nothing_was_lost_or_doubled,
    running,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]

SPEED = 50.0
SLOTS = 2


def keda(most: int) -> Keda:
    """Hasty in going down: the window is one look of the HPA, so that busy workers have to leave."""
    down = Direction(
        stabilization_window_seconds=15, policies=(Limit(type="Percent", value=100, period_seconds=15),)
    )
    spec = KedaSpec(
        max_replica_count=most,
        polling_interval=5,
        cooldown_period=60,
        triggers=(Trigger(target=SLOTS),),
        fallback=Fallback(replicas=1, behavior=FallbackBehavior.IF_HIGHER),
        behavior=Behavior(scale_down=down),
    )
    return Keda(spec)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("costs", [True, False])
async def test_waves_of_runs_survive_a_hasty_autoscaler(
    restartable_valkey, redis_settings, ledger, seed: int, costs: bool
):
    chance = random.Random(seed)
    redis = msgspec.structs.replace(
        redis_settings, url=restartable_valkey.url, socket_timeout_seconds=1.0, connect_timeout_seconds=1.0
    )
    scaling = ScalingSettings(target_wait_seconds=30 / SPEED)
    environ = {"WORKER_POD_MESSAGES_BATCH_SIZE": str(SLOTS)}
    async with (
        System(redis, slots=SLOTS, ttl=30.0, drain=0.3, scaling=scaling) as system,
        running(system, ledger, keda(5), speed=SPEED, costs=costs, **environ) as cluster,
    ):
        runs: list[str] = []
        for wave in range(4):
            seconds = [chance.choice([0.05, 0.3, 1.0, 4.0]) for _ in range(chance.randint(4, 14))]
            tickets = await system.queue.submit_many([Submission(agent="work", input=s) for s in seconds])
            runs += [ticket.run_id for ticket in tickets]
            await asyncio.sleep(chance.uniform(0.5, 5.0))
            if wave == 2 and cluster.pods.replicas:
                restartable_valkey.freeze()
                try:
                    await asyncio.sleep(chance.uniform(1.0, 4.0))
                    assert cluster.pods.replicas > 0
                finally:
                    restartable_valkey.thaw()
        handed_back = await check_nothing_was_lost_or_doubled(system, ledger, runs)
        await until(lambda: cluster.pods.replicas == 0 and not cluster.pods.leaving, seconds=60)
        await check_everybody_left_politely(system, cluster.pods)
        print(f"{len(runs)} runs, {handed_back} handed back, replicas {cluster.curve}")
