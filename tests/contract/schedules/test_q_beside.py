"""Q: what the holder of a turn, its successor and Redis know of the turns that were placed beside it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.agents.outcome import Succeeded
from holdfast.clock import boot_time
from holdfast.config import SchedulerSettings
from holdfast.errors import InputError
from holdfast.schedules.acquisition import Acquired
from holdfast.schedules.clock import RedisClock
from holdfast.schedules.completion import decide
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.fire_times import last_due
from holdfast.schedules.firing import Firing
from holdfast.schedules.parallel import ParallelFirings
from holdfast.schedules.registry import registration_of
from holdfast.schedules.replies import Ended, PlaceReply
from holdfast.schedules.schedule import Schedule, checked
from holdfast.schedules.trigger import Cron, Every
from holdfast.telemetry.metrics import Metrics
from tests.support.schedules.manual_scheduler import Board, Pod, redis_now

NOW = 1_775_000_000.0


def allowed(seconds: float = 60, **options) -> Schedule:
    options = {"overlap": "allow", "overlap_most": 5, **options}
    return Schedule(name="a", agent="work", trigger=Every(seconds=seconds), **options)


async def running_one(board: Board, schedule: Schedule, pod: Pod) -> Acquired:
    await board.registry.put([registration_of(schedule, await redis_now(board.redis) - 1)])
    return await pod.one()


def overlaps(board: Board, redis=None) -> ParallelFirings:
    return ParallelFirings(redis or board.redis, board.keys, Metrics(), owner="pod")


def judged(turn: Firing, ended: float):
    return decide(turn, Succeeded(None), ended=ended, settings=SchedulerSettings(), random=lambda: 0.5)


# -- turns that are owed


def test_q40_catching_up_and_running_side_by_side_are_refused_together():
    with pytest.raises(InputError, match="'allow' and misfire 'catch_up' don't go together"):
        checked(allowed(misfire="catch_up"))
    assert checked(allowed(misfire="skip")).overlap == "allow"
    assert checked(allowed(misfire="catch_up", overlap="buffer")).misfire == "catch_up"


def test_q41_the_turns_that_a_late_one_owes_are_counted_though_others_ran_beside_it():
    late = Acquired("a", 1, NOW, NOW + 50, NOW + 350, 0, 0, b"", triggered=False)
    done, following = judged(Firing(late, allowed(10), None, beside=NOW + 60, placed=1), NOW + 65)
    assert (done.next_at, following.missed) == (NOW + 70, 5)


# -- a holder that did not end it


@pytest.mark.parametrize("how", ["reclaimed", "given back"])
async def test_q42_the_next_holder_knows_what_was_placed_beside_the_turn(board, how):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    at = first.acquired_at + 60
    assert first.beside == 0
    assert await overlaps(board).place(first, schedule, at) is PlaceReply.PLACED
    if how == "given back":
        await pod.give_back(first, None)
    else:
        await board.expire("a")
        await pod.orphans.reclaim()
    again = next(run for run in await pod.acquire() if run.name == "a")
    assert again.beside == pytest.approx(at, abs=1e-5)
    done, following = judged(Firing(again, schedule, None, beside=again.beside), again.acquired_at + 1)
    assert done.next_at == pytest.approx(at + 60, abs=0.01)
    assert following.missed == 0
    await pod.complete(again, after=-1)
    assert (await pod.one()).beside == 0


async def test_q43_a_manual_run_in_between_does_not_make_it_forgotten(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    at = first.acquired_at + 60
    await overlaps(board).place(first, schedule, at)
    await pod.complete(next(run for run in await pod.acquire()), after=None)
    await pod.give_back(first, None)
    await board.registry.trigger(["a"])
    manual = await pod.one()
    assert manual.triggered
    await pod.complete(manual)
    assert (await pod.one()).beside == pytest.approx(at, abs=1e-5)


# -- no answer


class Away:
    """A Redis that is away; what is asked of it is noted, and done first if its answers only get lost."""

    def __init__(self, redis=None) -> None:
        self._redis = redis
        self.asked = asyncio.Event()

    async def execute_command(self, *args, **options):
        if self._redis is not None:
            await self._redis.execute_command(*args, **options)
        self.asked.set()
        raise ConnectionError("away")


async def unanswered(board: Board, schedule: Schedule, run: Acquired, redis: Away) -> Firing:
    """Run a turn whose next one comes while Redis does not answer, and end it."""
    turn, clock = Firing(run, schedule, None), RedisClock()
    clock.synchronize(run.acquired_at + 60.5, boot_time())
    async with overlaps(board, redis).beside(turn, clock), asyncio.timeout(10):
        await redis.asked.wait()
    return turn


async def test_q44_a_turn_that_redis_never_heard_of_is_the_next_one(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    turn = await unanswered(board, schedule, first, Away())
    done, _ = judged(turn, first.acquired_at + 61)
    assert await pod.completer.complete([done]) == [Ended.COMPLETED]
    assert await board.waiting() == {"a": pytest.approx(first.acquired_at + 60, abs=0.01)}


async def test_q45_a_turn_whose_placing_was_done_but_not_answered_is_not_run_again(board):
    schedule, pod = allowed(max_runs=2), board.pod()
    first = await running_one(board, schedule, pod)
    await overlaps(board).place(first, schedule, first.acquired_at)  # the script is known from here on
    await pod.complete(await pod.one(), after=None)
    await board.redis.hset(board.keys.record("a"), "runs", 0)
    turn = await unanswered(board, schedule, first, Away(board.redis))
    done, _ = judged(turn, first.acquired_at + 61)
    assert await pod.completer.complete([done]) == [Ended.COMPLETED]
    assert list(await board.waiting()) == ["a#1"]
    entry = await board.entry("a")
    assert (entry.state, entry.runs) == (ScheduleState.DONE, 2)


# -- failures of turns side by side


async def test_q46_failures_side_by_side_add_up_in_whatever_order_they_end(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    for n in (1, 2):
        await overlaps(board).place(first, schedule, first.acquired_at + 60 * n)
    failed = {"outcome": "failed", "streak": 1, "pause_after": 3}
    for run in await pod.acquire():
        await pod.complete(run, after=None, **failed)
    assert (await board.entry("a")).streak == 2
    await pod.complete(first, after=60, **failed)
    entry = await board.entry("a")
    assert (entry.state, entry.streak, entry.paused) == (ScheduleState.PAUSED, 3, "3 failures in a row")


async def test_q47_a_manual_or_cancelled_run_leaves_what_others_added(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    await overlaps(board).place(first, schedule, first.acquired_at + 60)
    await pod.complete(await pod.one(), after=None, outcome="failed", streak=1)
    await pod.complete(first, after=60, outcome="cancelled", streak=0)
    assert (await board.entry("a")).streak == 1
    await board.registry.trigger(["a"])
    await pod.complete(await pod.one(), streak=0)
    assert (await board.entry("a")).streak == 1


async def test_q48_a_pause_for_failures_keeps_the_turn_and_gives_up_the_manual_run(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    await overlaps(board).place(first, schedule, first.acquired_at + 60)
    second = await pod.one()
    await pod.complete(first, after=600)
    turn = (await board.waiting())["a"]
    await board.registry.trigger(["a"])
    await pod.complete(second, after=None, outcome="failed", streak=1, pause_after=1)
    entry = await board.entry("a")
    assert (entry.state, entry.triggered) == (ScheduleState.PAUSED, False)
    assert entry.next_at == pytest.approx(turn, abs=0.01)
    assert await board.waiting() == {}


async def test_q49_a_run_from_before_a_resume_does_not_bring_its_failures_back(board):
    pod, failed = board.pod(), {"outcome": "failed", "pause_after": 3}
    await board.add("a")
    await pod.complete(await pod.one(), after=-1, streak=2, **failed)
    run = await pod.one()
    await board.registry.pause(["a"])
    await board.registry.resume(["a"])
    assert await pod.complete(run, streak=3, **failed) is Ended.COMPLETED
    assert (await board.entry("a")).streak == 1


# -- what is registered


async def test_q50_turns_that_come_and_go_do_not_look_like_lost_schedules(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    before = await board.registry.standing()
    for n in (1, 2):
        await overlaps(board).place(first, schedule, first.acquired_at + 60 * n)
    assert await board.registry.standing() == before
    ended, _ = await pod.acquire()
    await pod.complete(ended, after=None)
    assert await board.registry.standing() == before
    await board.redis.hdel(board.keys.definitions, "a")
    assert (await board.registry.standing()).registered == before.registered - 1
    await board.redis.hset(board.keys.definitions, "a", first.spec)
    await board.registry.remove(["a"])
    assert (await board.registry.standing()).registered == 0
    assert not await board.redis.exists(board.keys.turns)


# -- many turns at once


@pytest.mark.timeout(20)
def test_q49_the_last_of_any_number_of_turns_is_found_without_walking_them():
    year = 365 * 86400.0
    assert last_due(allowed(0.001), NOW, NOW + year) == (
        pytest.approx(NOW + year, abs=0.01),
        pytest.approx(year * 1000),
    )
    cron = Schedule(name="a", agent="w", trigger=Cron(expression="* * * * * *"), overlap="allow")
    assert last_due(cron, NOW, NOW + year + 0.5)[0] == NOW + year
    assert last_due(cron, NOW, NOW + 3.5) == (NOW + 3, 3)
    assert last_due(allowed(10), NOW, NOW + 35) == (NOW + 30, 3)
    assert last_due(allowed(10), NOW, NOW + 9) == (NOW, 0)
    assert last_due(allowed(10, ends_at=NOW + 15), NOW, NOW + 35) == (NOW + 10, 1)
