"""Workers are killed in the middle of runs that work in steps: what is done is not done again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from holdfast.config import DatabaseSettings
from holdfast.runs.run import Status
from holdfast.store.open import migrate_store
from tests.support.runs.system import System
from tests.support.runs.worker_processes import fleet_of
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
STEPS = 40
"""More than a worker does while the test, on a busy machine, has no time to kill it."""


async def test_killed_again_and_again_a_run_goes_on_after_its_last_step(redis, redis_settings, ledger):
    async with (
        System(redis_settings, ttl=1.0) as system,
        fleet_of(system, ledger, MAX_ATTEMPTS="20") as fleet,
    ):
        await killed_until_done(system, fleet, ledger)


async def test_the_same_on_postgresql_that_is_restarted_meanwhile(
    redis, redis_settings, ledger, start_postgres
):
    server = start_postgres()
    database = DatabaseSettings(url=server.url)
    await migrate_store(database)
    async with (
        System(redis_settings, ttl=1.0, database=database) as system,
        fleet_of(system, ledger, MAX_ATTEMPTS="20") as fleet,
    ):
        enough = asyncio.Event()
        restarting = asyncio.create_task(restart_now_and_then(server, enough))
        try:
            await killed_until_done(system, fleet, ledger)
        finally:
            enough.set()
            await restarting  # a restart that has begun must end before the server is taken away


async def restart_now_and_then(server, enough: asyncio.Event) -> None:
    for _ in range(3):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), 1.0)
            return
        await asyncio.to_thread(server.restart)


async def killed_until_done(system, fleet, ledger) -> None:
    await fleet.start("w0")
    run_id = await system.submit("stepper", STEPS)
    for number in range(4):
        seen = len(done(ledger, run_id))
        await until(lambda seen=seen: len(done(ledger, run_id)) >= min(seen + 2, STEPS))
        await asyncio.sleep(random.uniform(0, 0.15))
        fleet.children[f"w{number}"].kill()
        await fleet.start(f"w{number + 1}")
    run = await system.ended(run_id, 40)
    assert (run.status, run.result) == (Status.SUCCEEDED, list(range(STEPS)))
    begun = len(ledger.lines("begin", run_id))
    times = Counter(done(ledger, run_id))
    # Only the step that a killed worker was in the middle of may be done again.
    assert set(times) == {f"step-{number}" for number in range(STEPS)}
    assert sum(times.values()) - STEPS <= begun - 1
    assert begun >= 3


def done(ledger, run_id) -> list[str]:
    return [line.what for line in ledger.lines(run_id=run_id) if line.what.startswith("step-")]
