"""Scaling by KEDA's and the HPA's rules with real workers on a real queue: nothing is lost on the way up or down."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config import RedisSettings
from holdfast.config.scaling import ScalingSettings
from holdfast.runs.run import Submission
from holdfast_simulator.engine import Simulation
from holdfast_simulator.outcome import Outcome
from holdfast_simulator.policies import Policy
from holdfast_simulator.recording import recorded
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
from holdfast_simulator.traces import Row, trace_of
from holdfast_simulator.world import Spread, World
from tests.support.runs.system import System
from tests.support.runs.worker_processes import Ledger
from tests.support.scaling.replica_set import (
    Cluster,
    check_everybody_left_politely,
    check_nothing_was_lost_or_doubled,
    running,
)
from tests.support.waiting import until

SPEED = 50.0
SLOW = 30.0
"""For what is measured: the slower, the less it matters that a loaded machine is late."""
SLOTS = 2
ENVIRON = {"WORKER_POD_MESSAGES_BATCH_SIZE": str(SLOTS)}


def spec(most: int = 4, *, least: int = 0, down_window: int = 60, cooldown: float = 90.0) -> KedaSpec:
    """As the chart has it, with shorter times for going down."""
    behavior = Behavior(
        scale_up=Direction(stabilization_window_seconds=0),
        scale_down=Direction(
            stabilization_window_seconds=down_window,
            policies=(Limit(type="Percent", value=50, period_seconds=15),),
        ),
    )
    return KedaSpec(
        min_replica_count=least,
        max_replica_count=most,
        polling_interval=5,
        cooldown_period=cooldown,
        triggers=(Trigger(target=SLOTS),),
        fallback=Fallback(replicas=1, behavior=FallbackBehavior.IF_HIGHER),
        behavior=behavior,
    )


def keda(**changes: Any) -> Keda:
    return Keda(spec(**changes))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def new_system(redis_settings, speed: float = SPEED, **options: Any) -> System:
    scaling = ScalingSettings(target_wait_seconds=30 / speed)
    return System(redis_settings, slots=SLOTS, ttl=20.0, scaling=scaling, **options)


@pytest.fixture
async def system(redis, redis_settings) -> AsyncIterator[System]:
    async with new_system(redis_settings, drain=10.0) as system:
        yield system


async def submitted(system: System, seconds: list[float]) -> list[str]:
    tickets = await system.queue.submit_many([Submission(agent="work", input=each) for each in seconds])
    return [ticket.run_id for ticket in tickets]


async def test_a_burst_brings_workers_from_zero_and_they_leave_to_zero_and_come_back(system, ledger):
    async with running(system, ledger, keda(), speed=SPEED, **ENVIRON) as cluster:
        assert cluster.pods.replicas == 0
        runs = await submitted(system, [0.4] * 24)
        await until(lambda: len(ledger.lines("end")) == 24, seconds=60)
        assert cluster.most == 4
        await until(lambda: cluster.pods.replicas == 0 and not cluster.pods.leaving, seconds=60)
        again = await submitted(system, [0.1])
        await until(lambda: len(ledger.lines("end")) == 25, seconds=60)
        assert await check_nothing_was_lost_or_doubled(system, ledger, runs + again) == 0
        await check_everybody_left_politely(system, cluster.pods)


async def test_workers_that_must_leave_hand_back_their_long_runs_which_go_on_elsewhere(
    redis, redis_settings, ledger, tmp_path
):
    """Four workers with one long run each, where two could do them: two leave in the middle of theirs."""
    async with (
        new_system(redis_settings, drain=0.3) as system,
        running(system, ledger, keda(down_window=15), speed=SPEED, **ENVIRON) as cluster,
    ):
        gates = {await system.submit("gated", str(tmp_path / f"{n}")): tmp_path / f"{n}" for n in range(8)}
        runs = list(gates)
        await until(lambda: len(ledger.lines("begin")) == 8, seconds=60)
        for run_id in {line.pid: line.run_id for line in ledger.lines("begin")}.values():
            gates.pop(run_id).touch()
        assert len(gates) == 4
        # Who polls while the gates open counts some of the four, and then three workers stay for a moment.
        await until(lambda: len(ledger.lines("begin")) >= 10, seconds=60)
        await until(lambda: cluster.pods.replicas == 2, seconds=60)
        for gate in gates.values():
            gate.touch()
        assert await check_nothing_was_lost_or_doubled(system, ledger, runs) >= 2
        await until(lambda: cluster.pods.replicas == 0 and not cluster.pods.leaving, seconds=60)
        await check_everybody_left_politely(system, cluster.pods)


async def test_busy_workers_stay_and_idle_ones_leave_where_busy_ones_are_marked(system, ledger, tmp_path):
    async with running(system, ledger, keda(down_window=15), speed=SPEED, **ENVIRON) as cluster:
        short = await submitted(system, [0.3] * 16)
        await until(lambda: cluster.pods.replicas == 4, seconds=60)
        await until(lambda: len(ledger.lines("end")) == 16, seconds=60)
        long = [await system.submit("gated", str(tmp_path / "gate"))]
        await until(lambda: ledger.lines("begin", long[0]), seconds=60)
        await until(lambda: cluster.pods.replicas == 1, seconds=60)
        busy = ledger.lines("begin", long[0])[0].pid
        assert [pod.child.process.pid for pod in cluster.pods.pods] == [busy]
        (tmp_path / "gate").touch()
        assert await check_nothing_was_lost_or_doubled(system, ledger, short + long) == 0


async def test_a_metric_that_cannot_be_asked_scales_nothing_to_zero(
    restartable_valkey, redis_settings, ledger
):
    """Redis hangs for more than the cooldown and the window of going down: the workers stay."""
    settings = msgspec.structs.replace(redis_settings, url=restartable_valkey.url)
    # Only who asks for the metric gives up soon: the test itself has time, also for a Redis that is late.
    hasty = msgspec.structs.replace(settings, socket_timeout_seconds=0.3, connect_timeout_seconds=0.3)
    async with (
        new_system(settings, drain=10.0) as system,
        new_system(hasty, drain=10.0) as asking,
        running(asking, ledger, keda(down_window=15, cooldown=30.0), speed=SPEED, **ENVIRON) as cluster,
    ):
        runs = await submitted(system, [0.5] * 12)
        await until(lambda: cluster.pods.replicas == 4 and len(ledger.lines("begin")) >= 4, seconds=60)
        restartable_valkey.freeze()
        already = cluster.outages
        try:
            await until(lambda: cluster.outages > already, seconds=60)
            before, since = cluster.pods.replicas, cluster.now
            await until(lambda: cluster.now > since + 150, seconds=60)  # five times the cooldown
            assert cluster.pods.replicas == before
        finally:
            restartable_valkey.thaw()
        assert await check_nothing_was_lost_or_doubled(system, ledger, runs) == 0
        await until(lambda: cluster.pods.replicas == 0 and not cluster.pods.leaving, seconds=60)
        await check_everybody_left_politely(system, cluster.pods)


LATE_SECONDS = 0.5
"""What the rules may be late by: the simulated ones are never late."""
PLAYS = 3


async def test_the_simulator_agrees_with_what_really_happened(redis, redis_settings, tmp_path):
    """The arrivals and durations of a real run of it all, simulated: replicas over time differ by 15 % at most."""
    policy = spec(6)
    for number in range(PLAYS):
        cluster, rows, ended = await played(redis_settings, Ledger(tmp_path / f"ledger-{number}"), policy)
        outcome = simulated(cluster, rows, policy)
        apart, area = disagreement(cluster, outcome, ended)
        print(f"apart {apart:.3f}, area {area:.3f}, real {cluster.curve}, simulated {steps(outcome)}")
        agree = cluster.most == outcome.replicas_most and apart <= 0.15 and area <= 0.15
        if agree or cluster.longest_gap_seconds < LATE_SECONDS:
            break
        # The machine gave the rules no CPU for as long as half a minute of theirs: what they did then is no rule's.
        await redis.flushall()
    assert cluster.most == outcome.replicas_most
    assert apart <= 0.15
    assert area <= 0.15
    other = simulated(cluster, rows, spec(3))
    assert disagreement(cluster, other, ended)[0] > 0.15, "it can tell another policy from this one"


async def played(
    redis_settings: RedisSettings, ledger: Ledger, policy: KedaSpec
) -> tuple[Cluster, list[Row], float]:
    """Two waves of runs on real workers; return the cluster, its runs and when it was empty again."""
    async with (
        new_system(redis_settings, speed=SLOW, drain=10.0) as system,
        running(system, ledger, Keda(policy), speed=SLOW, **ENVIRON) as cluster,
    ):
        runs: list[str] = []
        for wave in range(2):
            for number in range(20):  # far more than the most replicas take at once, however late a poll is
                runs += await submitted(system, [0.7 * (1 + number % 4)])
                await asyncio.sleep(0.07)
            sent = len(runs)
            await until(lambda sent=sent: len(ledger.lines("end")) == sent, seconds=60)
            if not wave:
                await until(lambda: cluster.pods.replicas < cluster.most, seconds=60)
        await until(lambda: cluster.pods.replicas == 0 and not cluster.pods.leaving, seconds=60)
        ended = cluster.now
        assert await check_nothing_was_lost_or_doubled(system, ledger, runs) == 0
        rows, others = await recorded(system.queue, None)
    assert (len(rows), others) == (40, 0)
    return cluster, rows, ended


class Recorded:
    """How long each worker really took to start, in their order: that is the machine's doing, not the policy's."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = itertools.chain(seconds, itertools.repeat(sum(seconds) / len(seconds)))

    def draw(self, _rng: random.Random) -> float:
        return next(self._seconds)


def simulated(cluster: Cluster, rows: list[Row], policy: KedaSpec) -> Outcome:
    """The same arrivals and durations in the time of the rules, with workers that start as those did."""
    speed = cluster.speed
    scaled = [
        Row((row.arrival - cluster.started) * speed, row.duration * speed, row.queue, row.priority)
        for row in rows
    ]
    ordered = sorted(cluster.pods.left, key=lambda pod: pod.number)
    world = World(
        slots=SLOTS,
        scaling=ScalingSettings(target_wait_seconds=30),
        scheduling=Spread(0, 0),
        startup=Recorded([(pod.ready_at - pod.created_at) * speed for pod in ordered if pod.ready_at]),
        drain_seconds=10.0 * speed,
        tail_seconds=cluster.now,
    )
    return Simulation(trace_of(scaled), Policy(name="depth", keda=policy), world).run()


def disagreement(cluster: Cluster, outcome: Outcome, ended: float) -> tuple[float, float]:
    """How far the two curves are apart on average, and how much their areas differ, both by the real area."""
    pairs = [(cluster.replicas_at(each.at), each.replicas) for each in outcome.samples if each.at <= ended]
    real = sum(was for was, _ in pairs)
    apart = sum(abs(was - is_) for was, is_ in pairs)
    return apart / real, abs(sum(was - is_ for was, is_ in pairs)) / real


def steps(outcome: Outcome) -> list[tuple[float, int]]:
    """The simulated curve, only where it changes."""
    changed = [outcome.samples[0]]
    changed += [
        each for before, each in itertools.pairwise(outcome.samples) if before.replicas != each.replicas
    ]
    return [(each.at, each.replicas) for each in changed]
