"""Schedulers that die or are replaced: no schedule is lost, no turn is lost or doubled, and none waits long."""

from __future__ import annotations

import itertools
import sys
from collections import Counter

import pytest

from holdfast.schedules.history import History
from tests.support.runs.system import System
from tests.support.schedules.manual_scheduler import KEYS
from tests.support.schedules.schedulers import AGENTS, SchedulerChild
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.chaos

TICKS = ("tick-a", "tick-b", "tick-c")
PATIENT_TTL = 60.0
"""Nobody waits for its end: a machine that is slow for seconds loses no lease."""


class Schedulers:
    """Scheduler processes on one Redis."""

    def __init__(self, system, ledger, **environ: str) -> None:
        self.system, self.ledger = system, ledger
        self.environ = {"CHAOS_LEDGER": str(ledger.path), **environ}
        self.children: dict[str, SchedulerChild] = {}

    async def start(self, name: str) -> SchedulerChild:
        child = SchedulerChild(self.system.settings, AGENTS, name, **self.environ)
        self.children[name] = child

        async def is_member() -> int:
            assert child.process.poll() is None, child.close()
            return await self.system.queue.redis.exists(f"member:scheduler:{name}")

        await until(is_member, what=f"scheduler {name} to announce itself")
        return child

    def begins(self, name: str = ""):
        return [line for line in self.ledger.lines("begin") if line.run_id.startswith(f"{name}@") or not name]

    async def begun(self, name: str, times: int, seconds: float = PATIENCE_SECONDS):
        return await until(lambda: self.begins(name), lambda lines: len(lines) >= times, seconds=seconds)

    def close(self) -> None:
        for name, child in self.children.items():
            print(f"--- {name}\n{child.close()}", file=sys.stderr)


@pytest.fixture
async def schedulers(redis, redis_settings, ledger):
    async with System(redis_settings, ttl=8.0) as system:
        schedulers = Schedulers(system, ledger, CHAOS_LONG_SECONDS="120")
        yield schedulers
        schedulers.close()


async def acquired_at(redis, name: str) -> float:
    """When a schedule that runs was acquired: Redis keeps its deadline, and the time that it has."""
    deadline = await redis.zscore(KEYS.working, name)
    return deadline - int(await redis.hget(KEYS.record(name), "timeout_ms")) / 1000


async def test_a_killed_schedulers_turn_runs_again_elsewhere_soon(redis, schedulers, ledger):
    first = await schedulers.start("first")
    (begin,) = await schedulers.begun("long", 1)
    await schedulers.start("second")
    first.kill()
    lease_ended = await redis.zscore(KEYS.leases, "long") / 1000
    again = (await schedulers.begun("long", 2))[1]
    # By stored times: after its lease, and before another one would be over.
    waited = await acquired_at(redis, "long") - lease_ended
    assert -0.01 <= waited < schedulers.system.settings.lease.ttl_seconds
    assert again.run_id == begin.run_id, "the turn that was not finished, under its name"
    assert again.fence > begin.fence
    (lost,) = await History(redis, KEYS).turns("long", 10)
    assert (lost.outcome, lost.owner, lost.attempt) == ("lost", "first", 1)
    assert (lost.turn, lost.fence) == (begin.run_id, begin.fence)
    before = {name: len(schedulers.begins(name)) for name in TICKS}
    for name in TICKS:
        await schedulers.begun(name, before[name] + 2)
    ledger.check_nothing_ran_twice_under_one_fence()


async def test_a_rolling_deployment_loses_no_turn_and_doubles_none(redis, redis_settings, ledger):
    async with System(redis_settings, ttl=PATIENT_TTL) as system:
        schedulers = Schedulers(system, ledger)
        try:
            await _roll(schedulers)
            _check_turns(schedulers, ledger)
        finally:
            schedulers.close()


async def _roll(schedulers):
    for name in ("old-1", "old-2"):
        await schedulers.start(name)
    await schedulers.begun("tick-a", 3)
    for old, new in (("old-1", "new-1"), ("old-2", "new-2")):
        await schedulers.start(new)
        schedulers.children[old].terminate()
        assert await schedulers.children[old].exited() == 0
    turns = len(schedulers.begins("tick-a"))
    await schedulers.begun("tick-a", turns + 3)


def _check_turns(schedulers, ledger):
    for name in TICKS:
        begins = schedulers.begins(name)
        longest = max(b.at - a.at for a, b in itertools.pairwise(begins))
        assert longest < PATIENT_TTL / 2, "a turn that was lost would have waited for its lease to end"
        assert not {turn: n for turn, n in Counter(line.run_id for line in begins).items() if n > 1}
    lines = ledger.lines()  # all at once: what begins and ends between two looks would seem unfinished
    begun, ended = ({line.run_id for line in lines if line.what == what} for what in ("begin", "end"))
    unfinished = begun - ended
    assert len(unfinished) <= len(TICKS) + 1, "only what runs at this moment"
