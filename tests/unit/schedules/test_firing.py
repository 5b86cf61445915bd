"""A turn whose schedule has a target submits a run, for as long as its lease is trusted."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any

import pytest

from holdfast import App
from holdfast.agents.outcome import Lost, Succeeded
from holdfast.clock import boot_time
from holdfast.config import LeaseSettings, SchedulerSettings
from holdfast.leases.keeper import Keeper
from holdfast.redis.client import Redis
from holdfast.redis.keys import ScheduleKeys
from holdfast.schedules.acquisition import Acquired, schedule_leases
from holdfast.schedules.clock import RedisClock
from holdfast.schedules.context import SchedulerContext
from holdfast.schedules.firing import Firing, perform
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from holdfast.telemetry.metrics import Metrics

SCHEDULE = Schedule(name="report", agent="work", trigger=Every(seconds=60), target="media")
RUN = Acquired("report", 1, 0.0, 0.0, 60.0, 0, 0, b"", triggered=False)


def no_redis() -> Redis:
    raise AssertionError("nothing here asks Redis")


@pytest.fixture
def turn():
    keeper = Keeper(LeaseSettings(), no_redis, Metrics())
    store = schedule_leases(ScheduleKeys.of(), owner="pod", ttl_ms=30_000)
    yield Firing(RUN, SCHEDULE, keeper.hold(store, RUN.lease("pod"), granted_at=boot_time()))
    keeper.timer.close()


class Submitter:
    """Asks a queue twice, as after a lost reply; ``between`` is what happens before the second time."""

    run_id, fresh = "run-1", True

    def __init__(self, between: Any) -> None:
        self.asked: list[str] = []
        self._between = between

    async def __call__(self, schedule: Schedule, turn: str, /) -> Submitter:
        self.asked.append(turn)
        self._between()
        await asyncio.sleep(0)
        self.asked.append(turn)
        return self


async def performed(turn: Firing, submit: Submitter) -> Any:
    executor = concurrent.futures.ThreadPoolExecutor(1)
    place = SchedulerContext(App("test"), SchedulerSettings(), executor, asyncio.Event(), "pod", submit)
    overlaps: Any = None  # what is submitted has no turns beside it
    return await perform(place, turn, RedisClock(), overlaps)


async def test_a_run_is_submitted_under_the_lease(turn):
    submit = Submitter(lambda: None)
    assert await performed(turn, submit) == Succeeded(None)
    assert (turn.run_id, len(submit.asked)) == ("run-1", 2)


async def test_nothing_is_submitted_after_the_end_of_the_lease(turn):
    """As after a freeze: no timer has ended the turn yet, and another scheduler may have it."""

    def end() -> None:
        turn.hold.until = 0.0

    submit = Submitter(end)
    assert await performed(turn, submit) == Lost()
    assert (turn.run_id, len(submit.asked)) == ("", 1)


async def test_no_submission_begins_after_the_end_of_the_lease(turn):
    turn.hold.until = 0.0
    submit = Submitter(lambda: None)
    assert await performed(turn, submit) == Lost()
    assert submit.asked == []
