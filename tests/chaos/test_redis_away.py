"""Redis goes away under real worker processes: they stay, and every run is done once, also what came meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from holdfast.config import RedisSettings
from holdfast.errors import RedisUnavailable
from holdfast.redis.client import DISCONNECTS
from holdfast.runs.run import Status, Submission
from tests.support.runs.system import System
from tests.support.runs.worker_processes import Fleet, Ledger, fleet_of
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

NAMES = ("a", "b", "c")
SLOTS = 8
LONG = 3 * SLOTS
"""As many runs longer than the lease as there are slots: all are in flight when Redis goes."""


@contextlib.asynccontextmanager
async def three_workers(settings: RedisSettings, ledger: Ledger) -> AsyncIterator[tuple[System, Fleet]]:
    environ = {
        "MAX_ATTEMPTS": "50",
        "WORKER_POD_MESSAGES_BATCH_SIZE": str(SLOTS),
        "HEARTBEAT_INTERVAL": "1",  # so that a beat, too, falls into the shorter outage
    }
    async with (
        System(settings, ttl=3.0, max_attempts=50) as system,
        fleet_of(system, ledger, **environ) as fleet,
    ):
        for name in NAMES:
            await fleet.start(name)
        yield system, fleet


async def submit(queue, prefix: str, count: int, seconds: float) -> list[str]:
    asked = [Submission(agent="work", input=seconds, run_id=f"{prefix}-{n}") for n in range(count)]
    return [ticket.run_id for ticket in await queue.submit_many(asked)]


async def persist(queue, run_id: str, refused: list[str]) -> str:
    """Submit as docs/guides/producers.md says: under one id, again when told so."""
    while True:
        try:
            return (await queue.submit(Submission(agent="work", input=0.05, run_id=run_id))).run_id
        except RedisUnavailable as exc:
            refused.append(run_id)
            await asyncio.sleep(min(exc.retry_after, 1.0))


def pids(fleet: Fleet) -> dict[str, int]:
    return {name: child.process.pid for name, child in fleet.children.items()}


def assert_all_alive(fleet: Fleet) -> None:
    assert {name: child.process.poll() for name, child in fleet.children.items()} == dict.fromkeys(NAMES)


async def same_workers(system: System, fleet: Fleet, before: dict[str, int]) -> None:
    """The processes are those that were there before, and all say so again."""
    for name, pid in before.items():
        await fleet.joined(name)
        assert await system.queue.redis.hget(f"member:worker:{name}", "pid") == str(pid).encode()
    assert_all_alive(fleet)


async def each_done_once(system: System, ledger: Ledger, run_ids: list[str], seconds: float = 120.0) -> None:
    """Every run succeeded, under a fence that exactly one body had, and brought to its end once."""
    async with asyncio.timeout(seconds):
        runs = [await system.ended(run_id, seconds) for run_id in run_ids]
    assert Counter(run.status for run in runs) == {Status.SUCCEEDED: len(run_ids)}
    finished = Counter((line.run_id, line.fence) for line in ledger.lines("end"))
    for run in runs:
        assert finished[run.id, run.fence] == 1, run
        assert (await system.events(run.id)).count("succeeded") == 1
    assert {line.run_id for line in ledger.lines("begin")} == set(run_ids)
    ledger.check_nothing_ran_twice_under_one_fence()
    await system.nothing_left()


async def all_work_again(system: System, fleet: Fleet, ledger: Ledger, since: float) -> list[str]:
    """Submit until every process has begun something since then; return what was submitted."""
    run_ids: list[str] = []

    async def began() -> set[int]:
        run_ids.extend(await submit(system.queue, f"after-{len(run_ids)}", SLOTS, 0.05))
        await system.ended(run_ids[-1])
        return {line.pid for line in ledger.lines("begin") if line.at > since}

    everybody = set(pids(fleet).values())
    await until(began, lambda found: found == everybody, seconds=60, tolerate=DISCONNECTS)
    return run_ids


@pytest.mark.timeout(300)
@pytest.mark.parametrize("away_seconds", [4.0, pytest.param(20.0, marks=pytest.mark.long)])
async def test_workers_outlive_a_redis_that_is_away(restartable_valkey, ledger, away_seconds):
    async with three_workers(RedisSettings(url=restartable_valkey.tcp_url), ledger) as (system, fleet):
        before = pids(fleet)
        run_ids = await submit(system.queue, "long", LONG, 5.0)
        run_ids += await submit(system.queue, "queued", 150, 0.05)
        await until(lambda: len(ledger.lines("begin")) >= LONG)
        restartable_valkey.kill()
        long = [line for line in ledger.lines() if line.run_id.startswith("long-")]
        begun, ended = ({line.run_id for line in long if line.what == what} for what in ("begin", "end"))
        assert begun - ended, "nothing was in flight"
        refused: list[str] = []
        senders = [asyncio.create_task(persist(system.queue, f"sent-{n}", refused)) for n in range(20)]
        await asyncio.sleep(away_seconds)
        assert_all_alive(fleet)
        assert not any(sender.done() for sender in senders)
        restartable_valkey.start()
        back = time.time()
        run_ids += await asyncio.gather(*senders)
        run_ids += await all_work_again(system, fleet, ledger, back)
        await each_done_once(system, ledger, run_ids)
        await same_workers(system, fleet, before)
        assert refused or away_seconds < 6, "no sender was told that Redis is away"


async def test_workers_outlive_connections_that_are_reset_again_and_again(
    redis, redis_settings, proxied_settings, fault_proxy, ledger
):
    async with (
        System(redis_settings) as direct,
        three_workers(proxied_settings, ledger) as (_, fleet),
    ):
        before = pids(fleet)
        run_ids = await submit(direct.queue, "long", LONG // 2, 3.5)
        run_ids += await submit(direct.queue, "queued", 400, 0.02)
        await until(lambda: len(ledger.lines("begin")) >= LONG)
        for _ in range(12):
            accepted, calls = fault_proxy.accepted, fault_proxy.commands[b"EVALSHA"]
            fault_proxy.reset()
            await until(lambda seen=accepted: fault_proxy.accepted >= seen + len(NAMES))
            # A script has just been asked for: some of these resets meet it before its answer.
            await until(lambda seen=calls: fault_proxy.commands[b"EVALSHA"] > seen)
        run_ids += await all_work_again(direct, fleet, ledger, time.time())
        await each_done_once(direct, ledger, run_ids)
        await same_workers(direct, fleet, before)
