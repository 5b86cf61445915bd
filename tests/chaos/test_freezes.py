"""Processes that stand still for longer than their leases: what another one has done by then is not done again.

The agents' pauses end before their leases do. When the process goes on, their timers are due before the timer that ends
their leases, so only a look at the clock keeps the agents from going on.
"""

from __future__ import annotations

import contextlib
import signal
import sys

import psutil
import pytest

from holdfast.services.residents import Residents
from tests.chaos.freezing import KINDS, PAUSE_SECONDS
from tests.support.hosts.faulty_agents import hosts_of, written, written_by
from tests.support.paths import TESTS
from tests.support.runs.system import System
from tests.support.runs.worker_processes import Ledger, fleet_of
from tests.support.schedules.schedulers import SchedulerChild
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

NAMES = [kind.__name__ for kind in KINDS]
TTL_SECONDS = 8.0
FREEZING = str(TESTS / "chaos" / "freezing.py")


def attempts_of(worker: psutil.Process) -> list[psutil.Process]:
    """The processes of a worker's isolated attempts: the children of its zygote."""
    return [attempt for zygote in worker.children() for attempt in zygote.children()]


def frozen(pid: int) -> list[psutil.Process]:
    """Freeze a process and all its descendants; return those that can stop nobody else first."""
    worker = psutil.Process(pid)
    order = [*attempts_of(worker), *worker.children(), worker]
    for process in order:
        process.send_signal(signal.SIGSTOP)
    return order


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def thaw(order: list[psutil.Process], attempts: int) -> None:
    """Let the attempts do all that they would do before the processes go on that could kill them."""
    for process in order[:attempts]:
        with contextlib.suppress(psutil.NoSuchProcess):  # a resident's process, which the kernel kills
            process.send_signal(signal.SIGCONT)
        await until(lambda process=process: has_ended(process), what=f"the end of {process}")
    for process in order[attempts:]:
        process.send_signal(signal.SIGCONT)


async def pausing(ledger: Ledger, run_ids: list[str]) -> None:
    """Wait until all have written their first step: a process that is frozen while it writes keeps SQLite locked."""
    for run_id in run_ids:
        await until(lambda run_id=run_id: ledger.lines("pause", run_id))


async def check_charged_once(ledger: Ledger, fences: dict[str, int]) -> None:
    """Wait until the bodies under these fences have ended, then count the effects of their runs."""
    for run_id, first in fences.items():
        left = await until(
            lambda run_id=run_id: [line.fence for line in ledger.lines("left", run_id)],
            lambda left, first=first: first in left,
            what=f"the first body of {run_id} to end",
        )
        charges = [line.fence for line in ledger.lines("charge", run_id)]
        assert len(charges) == 1, f"{run_id} was charged under the fences {charges}; bodies ended: {left}"
        assert charges[0] > first


def charged(ledger: Ledger, run_ids: list[str]) -> list[str]:
    return [run_id for run_id in run_ids if ledger.lines("charge", run_id)]


@pytest.mark.parametrize("event_loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("isolation", ["app", "isolated"])
async def test_a_frozen_worker_repeats_no_effect(redis, redis_settings, ledger, event_loop, isolation):
    agents = f"{FREEZING}:{isolation}"
    environ = {"HOLDFAST_WORKER_EVENT_LOOP": event_loop, "WORKER_POD_MESSAGES_BATCH_SIZE": "8"}
    async with (
        System(redis_settings, slots=8, ttl=TTL_SECONDS) as system,
        fleet_of(system, ledger, agents, **environ) as fleet,
    ):
        first = await fleet.start("first")
        for _ in range(10):
            run_ids = [await system.submit(name, PAUSE_SECONDS) for name in NAMES]
            await pausing(ledger, run_ids)
            order = frozen(first.process.pid)
            if not charged(ledger, run_ids):
                break
            # The machine was so busy that the pauses were over: once more.
            await thaw(order, attempts=0)
            for run_id in run_ids:
                await system.ended(run_id)
        else:
            pytest.fail("the machine was too busy ten times to freeze the worker within a pause")
        fences = {run_id: ledger.lines("reserve", run_id)[0].fence for run_id in run_ids}
        await fleet.start("second")
        for run_id in run_ids:
            await until(lambda run_id=run_id: ledger.lines("charge", run_id))
        await thaw(order, attempts=len(NAMES) if isolation == "isolated" else 0)
        for run_id in run_ids:
            await system.ended(run_id)
        await check_charged_once(ledger, fences)
        ledger.check_nothing_ran_twice_under_one_fence()


@pytest.mark.parametrize(
    ("app", "event_loop"),
    [
        ("schedules", "asyncio"),
        ("schedules", "uvloop"),
        ("isolated_schedules", "uvloop"),
        pytest.param("isolated_schedules", "asyncio", marks=pytest.mark.long),
    ],
)
async def test_a_frozen_scheduler_repeats_no_effect(redis, redis_settings, ledger, app, event_loop):
    environ = {"CHAOS_LEDGER": str(ledger.path), "HOLDFAST_WORKER_EVENT_LOOP": event_loop}
    async with System(redis_settings, ttl=TTL_SECONDS) as system:
        first, order = await frozen_scheduler(system, ledger, app, environ)
        children = [first]
        try:
            run_ids = turns(ledger)
            fences = {run_id: ledger.lines("reserve", run_id)[0].fence for run_id in run_ids}
            children.append(SchedulerChild(system.settings, f"{FREEZING}:{app}", "second", **environ))
            for run_id in run_ids:
                await until(lambda run_id=run_id: ledger.lines("charge", run_id))
            await thaw(order, attempts=len(NAMES) if app == "isolated_schedules" else 0)
            await check_charged_once(ledger, fences)
        finally:
            kill(order)
            for child in children:
                print(f"---\n{child.close()}", file=sys.stderr)


async def frozen_scheduler(
    system: System, ledger: Ledger, app: str, environ: dict[str, str]
) -> tuple[SchedulerChild, list[psutil.Process]]:
    """A scheduler that stands still while every schedule pauses, and its processes; where the machine was too busy, another one."""
    for _ in range(10):
        child = SchedulerChild(system.settings, f"{FREEZING}:{app}", "first", **environ)
        await until(lambda: len(turns(ledger)) == len(NAMES), what="all schedules to pause")
        order = frozen(child.process.pid)
        if not charged(ledger, turns(ledger)):
            return child, order
        kill(order)
        child.close()
        await system.queue.redis.flushall()
        ledger.path.write_text("")
    pytest.fail("the machine was too busy ten times to freeze the scheduler within a pause")


def kill(processes: list[psutil.Process]) -> None:
    """End processes, also frozen ones, which could not end by themselves."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def turns(ledger: Ledger) -> list[str]:
    return sorted({line.run_id for line in ledger.lines("pause")})


@pytest.mark.long
async def test_a_frozen_resident_handles_no_message_twice(redis, redis_settings, tmp_path):
    ledger = tmp_path / "ledger"
    environ = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite")}
    async with (
        hosts_of(redis_settings, "a", "b", environ=environ, ttl_seconds=4.0, health_seconds=0.0) as hosts,
        Residents(hosts.settings) as residents,
    ):
        placed = await residents.start("Scribe", "scribe", str(ledger))
        await residents.send("scribe", {"n": 0, "seconds": PAUSE_SECONDS})
        await until(lambda: written(ledger, "begin"), what="the message to be in progress")
        order = frozen(hosts.children[placed.host].process.pid)
        assert placed.pid in [process.pid for process in order]
        try:
            assert not written(ledger), "the machine was too busy to freeze the resident within its pause"
            moved = await hosts.where("scribe", not_on=placed.host, seconds=60)
            await until(lambda: written(ledger), what="the other copy to handle the message")
            await thaw(order, attempts=1)
            await until(lambda: hosts.copies("scribe") == [moved.pid], seconds=60)
            await residents.send("scribe", {"n": 1})
            await until(lambda: 1 in written(ledger), what="the next message")
            assert written_by(ledger) == [(0, moved.pid), (1, moved.pid)]
        finally:
            kill(order)
