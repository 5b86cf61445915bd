"""Q: what becomes of a turn that comes while another of its schedule is still on."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from holdfast import App, Context
from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Failed, Succeeded
from holdfast.config import SchedulerSettings
from holdfast.leases.lease import RenewalReply
from holdfast.schedules.acquisition import Acquired
from holdfast.schedules.cadence import Next, next_run
from holdfast.schedules.completion import decide
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.firing import Firing
from holdfast.schedules.parallel import ParallelFirings
from holdfast.schedules.registry import registration_of
from holdfast.schedules.replies import Ended, PlaceReply
from holdfast.schedules.schedule import Schedule, decoded
from holdfast.schedules.trigger import Cron, Every
from holdfast.telemetry.metrics import Metrics
from tests.support.schedules.manual_scheduler import Board, redis_now, registration
from tests.support.waiting import stays, until

NOW = 1_775_000_000.0
OTHERS = ("skip", "cancel", "allow")


# -- buffer


def after(schedule: Schedule, took: float, outcome=None, *, late: float = 0.0) -> Next:
    return next_run(
        schedule,
        ready=NOW - late,
        acquired=NOW,
        ended=NOW + took,
        outcome=outcome or Succeeded(None),
        streak=0,
        runs=1,
        settings=SchedulerSettings(),
        random=lambda: 0.5,
    )


def every(seconds: float = 10, **options) -> Schedule:
    return Schedule(name="s", agent="a", trigger=Every(seconds=seconds), **options)


@pytest.mark.parametrize("misfire", ["coalesce", "skip", "catch_up"])
def test_q1_with_buffer_one_turn_waits_and_runs_right_after_whatever_the_misfire_policy(misfire):
    found = after(every(overlap="buffer", misfire=misfire), took=35)
    assert (found.at, found.missed, found.reason) == (NOW + 35, 2, "buffered")


@pytest.mark.parametrize("overlap", OTHERS)
def test_q2_without_buffer_the_misfire_policy_decides(overlap):
    assert after(every(overlap=overlap, misfire="skip"), took=35).at == NOW + 40
    assert after(every(overlap=overlap, misfire="catch_up"), took=35).at == NOW + 10


def test_q3_with_buffer_nothing_waits_that_did_not_come():
    assert after(every(overlap="buffer"), took=9) == Next(NOW + 10, 0, 0, "turn")
    cron = Schedule(name="s", agent="a", trigger=Cron(expression="*/10 * * * * *"), overlap="buffer")
    assert after(cron, took=9).at == NOW + 10
    assert after(cron, took=31).at == NOW + 31


def test_q4_turns_that_are_caught_up_come_before_the_one_that_waits():
    found = after(every(overlap="buffer", misfire="catch_up"), took=35, late=20)
    assert (found.at, found.reason) == (NOW - 10, "catch_up")


def test_q5_a_failures_wait_counts_for_the_one_that_waits_too():
    failed = Failed(Failure(FailureClass.UNKNOWN, "x"))
    assert after(every(overlap="buffer", error_seconds=60), 35, failed).at == NOW + 95
    cron = Schedule(name="s", agent="a", trigger=Cron(expression="*/10 * * * * *"), overlap="buffer")
    assert after(cron, 31, failed).at == NOW + 31


async def test_q6_in_the_loop_the_waiting_turn_is_one_and_follows_at_once(stage):
    app, began, free = App("test"), [], asyncio.Event()

    @app.schedule(every=0.2, overlap="buffer", misfire="skip", max_runs=2)
    async def slow(ctx: Context) -> None:
        began.append(ctx.run_id)
        if len(began) == 1:
            await free.wait()

    running = await stage.start(app)
    await until(lambda: began)
    await stays(lambda: len(began) == 1, seconds=1.1)  # five of its turns
    free.set()
    await stage.entry("slow", ScheduleState.DONE, runs=2)
    assert len(began) == 2
    assert running.count("schedule_missed_total") >= 2


# -- allow, by hand


def allowed(most: int = 3, **options) -> Schedule:
    return Schedule(
        name="a", agent="work", trigger=Every(seconds=60), overlap="allow", overlap_most=most, **options
    )


async def running_one(board: Board, schedule: Schedule, pod):
    await board.registry.put([registration_of(schedule, await redis_now(board.redis) - 1)])
    return await pod.one()


def overlaps(board: Board, owner: str = "pod") -> ParallelFirings:
    return ParallelFirings(board.redis, board.keys, Metrics(), owner=owner)


async def test_q7_the_next_turn_is_a_schedule_of_its_own_with_its_own_lease_and_fence(board):
    schedule, pod, other = allowed(priority=2, timeout_seconds=7), board.pod(), board.pod("other")
    first = await running_one(board, schedule, pod)
    at = first.acquired_at + 60
    assert await overlaps(board).place(first, schedule, at) is PlaceReply.PLACED
    second = await other.one()
    assert (second.name, second.deadline - second.acquired_at) == ("a#1", pytest.approx(7, abs=0.01))
    spec = decoded(second.spec)
    assert (spec.name, spec.trigger.at, spec.source, spec.priority) == ("a#1", at, "turn", 2)
    assert second.fence > first.fence
    assert [await pod.renew(first), await other.renew(second)] == [RenewalReply.KEPT] * 2
    assert sorted(await board.working()) == ["a", "a#1"]
    assert await board.redis.zscore(board.keys.priorities, "a#1") == 2


async def test_q8_it_ends_to_the_account_of_its_schedule_and_leaves_nothing(board):
    schedule, pod = allowed(priority=2), board.pod()
    first = await running_one(board, schedule, pod)
    await overlaps(board).place(first, schedule, first.acquired_at + 60)
    second = await pod.one()
    assert await pod.complete(second, after=None, outcome="failed", error="no", streak=1) is Ended.COMPLETED
    entry = await board.entry("a")
    assert (entry.state, entry.streak, entry.runs) == (ScheduleState.RUNNING, 1, 1)
    assert (entry.last_outcome, entry.last_error) == ("failed", "no")
    assert list(await board.working()) == ["a"]
    assert not await board.redis.exists(board.keys.record("a#1"))
    assert await board.redis.hkeys(board.keys.definitions) == [b"a"]
    assert await board.redis.zscore(board.keys.priorities, "a#1") is None
    assert await pod.complete(second, after=None) is Ended.REMOVED, "a reply that was lost is asked for again"


async def test_q9_there_are_never_more_than_allowed_and_an_end_makes_room(board):
    schedule, pod = allowed(most=3), board.pod()
    first = await running_one(board, schedule, pod)
    beside = overlaps(board)
    words = [await beside.place(first, schedule, first.acquired_at + 60 * n) for n in range(1, 5)]
    assert words == [PlaceReply.PLACED, PlaceReply.PLACED, PlaceReply.FULL, PlaceReply.FULL]
    runs = await pod.acquire()
    assert sorted(run.name for run in runs) == ["a#1", "a#2"]
    await pod.complete(runs[0], after=None)
    assert await beside.place(first, schedule, first.acquired_at + 300) is PlaceReply.PLACED
    (again,) = await pod.acquire()
    assert again.name == runs[0].name
    assert again.fence > runs[0].fence


async def test_q10_a_turn_is_placed_once_however_often_it_is_asked_for(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    at, beside = first.acquired_at + 60, overlaps(board)
    assert [await beside.place(first, schedule, at) for _ in range(3)] == [
        PlaceReply.PLACED,
        PlaceReply.ALREADY,
        PlaceReply.ALREADY,
    ]
    assert list(await board.waiting()) == ["a#1"]


async def test_q11_only_the_holder_of_the_turn_places_others_beside_it(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    at = first.acquired_at + 60
    assert await overlaps(board, "other").place(first, schedule, at) is PlaceReply.STALE
    await board.expire()
    await pod.orphans.reclaim()
    assert await overlaps(board).place(first, schedule, at) is PlaceReply.STALE
    await board.registry.remove(["a"])
    assert await overlaps(board).place(first, schedule, at) is PlaceReply.UNKNOWN
    assert await board.waiting() == {}


async def test_q12_a_dead_holders_parallel_turn_comes_back_as_itself(board):
    schedule, pod, other = allowed(), board.pod(), board.pod("other")
    first = await running_one(board, schedule, pod)
    await overlaps(board).place(first, schedule, first.acquired_at + 60)
    lost = await other.one()
    await board.expire("a#1")
    assert [one.name for one in await pod.orphans.reclaim()] == ["a#1"]
    again = await pod.one()
    assert (again.name, again.spec) == (lost.name, lost.spec)
    assert again.fence > lost.fence
    assert await other.complete(lost) is Ended.STALE
    assert await pod.complete(again, after=None) is Ended.COMPLETED


async def test_q13_removing_a_schedule_removes_its_parallel_turns(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    beside = overlaps(board)
    for n in (1, 2):
        await beside.place(first, schedule, first.acquired_at + 60 * n)
    held = await pod.one()
    await board.registry.remove(["a"], stop="gone")
    assert await board.waiting() == {}
    assert await pod.renew(held) is RenewalReply.STOP
    assert [await pod.complete(run) for run in (held, first)] == [Ended.REMOVED] * 2
    assert await board.redis.keys(board.keys.record("*")) == []


async def test_q14_what_was_lost_of_a_parallel_turn_is_put_back(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    await overlaps(board).place(first, schedule, first.acquired_at)
    await board.redis.zrem(board.keys.waiting, "a#1")
    await board.redis.delete(board.keys.record("a#1"))
    assert await board.registry.repopulate() == ["a#1"]
    again = await pod.one()
    assert again.name == "a#1"
    assert await pod.complete(again, after=None) is Ended.COMPLETED
    assert await board.redis.hkeys(board.keys.definitions) == [b"a"]


async def test_q15_failures_in_a_row_of_parallel_turns_pause_the_schedule(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    await overlaps(board).place(first, schedule, first.acquired_at + 60)
    second = await pod.one()
    await pod.complete(first, after=60)
    await pod.complete(second, after=None, outcome="failed", streak=1, pause_after=1)
    entry = await board.entry("a")
    assert (entry.state, entry.paused) == (ScheduleState.PAUSED, "1 failures in a row")


async def test_q32_one_paused_while_it_runs_has_no_turn_beside_it(board):
    schedule, pod = allowed(), board.pod()
    first = await running_one(board, schedule, pod)
    await board.registry.pause(["a"], "why")
    assert await overlaps(board).place(first, schedule, first.acquired_at + 60) is PlaceReply.PAUSED
    assert await board.waiting() == {}
    await board.registry.resume(["a"])
    assert await overlaps(board).place(first, schedule, first.acquired_at + 120) is PlaceReply.PLACED


def test_q34_the_end_of_a_turn_plans_the_one_after_the_last_that_was_placed_beside_it():
    schedule = allowed()
    run = Acquired("a", 1, NOW, NOW, NOW + 300, 0, 0, b"", False)
    turn = Firing(run, schedule, None, beside=NOW + 120, placed=2)
    options = {"ended": NOW + 150, "settings": SchedulerSettings(), "random": lambda: 0.5}
    done, following = decide(turn, Succeeded(None), **options)
    assert (done.next_at, following.missed) == (NOW + 180, 0)
    assert done.duration_ms == pytest.approx(150_000)


# -- allow, in the loop


class Crowd:
    """Turns that stay until they are let go."""

    def __init__(self) -> None:
        self.now, self.most, self.free = 0, 0, asyncio.Event()
        self.began: list[str] = []
        self.fences: set[int] = set()

    async def work(self, ctx: Context) -> None:
        self.began.append(ctx.run_id)
        self.fences.add(ctx.fence)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.free.wait()
        finally:
            self.now -= 1


async def test_q16_turns_run_side_by_side_up_to_the_bound(stage):
    app, crowd = App("test"), Crowd()
    app.register("work", crowd.work)
    schedule = Schedule(
        name="par", agent="work", trigger=Every(seconds=0.15), overlap="allow", overlap_most=3
    )
    await stage.board.registry.register([schedule])
    running = await stage.start(app)
    await until(lambda: crowd.now == 3)
    await until(lambda: running.count("schedule_missed_total") >= 2)  # turns that found no room
    assert crowd.most == 3
    assert len(set(crowd.began)) == len(crowd.fences) == 3
    assert {turn.partition("@")[0] for turn in crowd.began} == {"par"}
    crowd.free.set()
    await until(lambda: len(crowd.began) >= 6)
    assert not {turn: n for turn, n in Counter(crowd.began).items() if n > 1}
    assert (await stage.entry("par")).streak == 0


async def test_q17_max_runs_counts_parallel_turns(stage):
    app, crowd = App("test"), Crowd()
    app.register("work", crowd.work)
    schedule = Schedule(name="par", agent="work", trigger=Every(seconds=0.1), overlap="allow", max_runs=3)
    await stage.board.registry.register([schedule])
    await stage.start(app)
    await until(lambda: crowd.now == 3)
    crowd.free.set()
    entry = await stage.entry("par", ScheduleState.DONE)
    assert entry.runs == 3
    assert len(crowd.began) == 3


async def test_q18_patterns_mean_the_schedule_and_its_turns(stage):
    app, crowd = App("test"), Crowd()
    app.register("work", crowd.work)
    schedule = Schedule(
        name="par", agent="work", trigger=Every(seconds=0.15), overlap="allow", overlap_most=2
    )
    await stage.board.registry.register([schedule])
    await stage.start(app, agent={"enabled_pattern": "par"})
    await until(lambda: crowd.now == 2)
    crowd.free.set()


async def test_q33_a_manual_run_has_no_turns_beside_it(stage):
    app, crowd = App("test"), Crowd()
    app.register("work", crowd.work)
    schedule = Schedule(name="par", agent="work", trigger=Every(seconds=0.1), overlap="allow")
    later = registration_of(schedule, await redis_now(stage.board.redis) + 3600)
    await stage.board.registry.put([later])
    await stage.board.registry.trigger(["par"])
    await stage.start(app)
    await until(lambda: crowd.began)
    await stays(lambda: crowd.most == 1, seconds=0.5)  # five of its turns
    assert await stage.board.waiting() == {}
    crowd.free.set()
    entry = await stage.entry("par", ScheduleState.WAITING)
    assert entry.next_at == pytest.approx(later.first, abs=0.01)


def test_q19_the_bound_is_part_of_the_definition():
    schedule = msgspec.structs.replace(allowed(), overlap_most=7)
    assert decoded(registration_of(schedule, NOW).spec).overlap_most == 7
    assert registration("x").priority == 5
