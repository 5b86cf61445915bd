"""S: the last turns of a schedule are listed: one entry for each fence, however the turn ended."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App
from holdfast.schedules.completion import Completer
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.history import PastTurn
from holdfast.schedules.orphans import Orphans
from holdfast.schedules.parallel import ParallelFirings
from holdfast.schedules.registry import registration_of
from holdfast.schedules.replies import ChangeReply, Ended, PlaceReply
from holdfast.schedules.schedule import Schedule, turn_name
from holdfast.schedules.trigger import Every
from holdfast.telemetry.metrics import Metrics
from tests.support.schedules.manual_scheduler import Board, redis_now
from tests.support.waiting import until


async def outcomes(board: Board, name: str = "a") -> list[str]:
    return [turn.outcome for turn in await board.history.turns(name, 100)]


async def test_s1_the_newest_turn_is_first_with_its_owner_fence_and_times(board):
    await board.add("a", due=-7)
    pod = board.pod("pod-1")
    first = await pod.one()
    await pod.complete(first)
    await board.make_due()
    second = await pod.one()
    await pod.complete(second, outcome="failed", error="no", streak=1)
    past = await board.history.turns("a", 100)
    assert [(turn.fence, turn.outcome) for turn in past] == [
        (second.fence, "failed"),
        (first.fence, "succeeded"),
    ]
    turn = past[1]
    assert (turn.turn, turn.owner, turn.attempt, turn.manual) == (
        turn_name("a", first.ready),
        "pod-1",
        1,
        False,
    )
    assert (turn.planned_at, turn.started_at) == pytest.approx((first.ready, first.acquired_at))
    assert turn.started_at <= turn.ended_at <= await redis_now(board.redis)
    assert [turn.fence for turn in await board.history.turns("a", 1)] == [second.fence]


async def test_s2_an_end_under_an_old_fence_is_not_listed(board):
    await board.add("a")
    late, other = board.pod("late"), board.pod("other")
    run = await late.one()
    await board.expire()
    await other.orphans.reclaim()
    assert await late.complete(run) is Ended.STALE
    assert await late.give_back(run) is Ended.STALE
    assert await outcomes(board) == ["lost"]


async def test_s3_an_end_that_is_told_again_is_listed_once(board):
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    assert [await pod.complete(run), await pod.complete(run)] == [Ended.COMPLETED, Ended.ALREADY]
    assert await outcomes(board) == ["succeeded"]


async def test_s4_a_turn_that_died_with_its_scheduler_is_lost_and_its_next_attempt_follows(board):
    await board.add("a", due=-7)
    run = await board.pod("dead").one()
    await board.expire()
    alive = board.pod("alive")
    await alive.orphans.reclaim()
    again = await alive.one()
    await alive.complete(again)
    end, lost = await board.history.turns("a", 100)
    assert (lost.outcome, lost.owner, lost.fence, lost.attempt) == ("lost", "dead", run.fence, 1)
    assert lost.started_at == pytest.approx(run.acquired_at)
    assert lost.duration_ms == pytest.approx((lost.ended_at - lost.started_at) * 1000, abs=0.01)
    assert (end.outcome, end.owner, end.attempt, end.turn) == ("succeeded", "alive", 2, lost.turn)


async def test_s5_what_is_given_back_is_listed_if_it_had_begun(board):
    await board.add("a")
    pod = board.pod()
    await pod.give_back(await pod.one())
    assert await outcomes(board) == ["given_back"]
    run = await pod.one()
    assert await pod.completer.give_back([pod.lease(run)]) == [Ended.RETURNED]
    assert await outcomes(board) == ["given_back"]


async def test_s6_only_so_many_are_kept_and_0_keeps_none(board):
    await board.add("a", "b")
    pod = board.pod()
    for kept, listed in ((3, 3), (2, 2), (0, 0)):
        pod.completer = Completer(board.redis, board.keys, owner=pod.owner, kept_turns=kept)
        for _ in range(4):
            for run in await pod.acquire():
                await pod.complete(run)
            await board.make_due()
        assert len(await outcomes(board)) == listed
    assert await board.redis.keys("*#history") == []
    await pod.acquire()
    await board.expire()
    assert len(await Orphans(board.redis, board.keys, kept_turns=0).reclaim()) == 2
    assert await board.redis.keys("*#history") == []


async def test_s7_the_history_goes_with_its_schedule_and_no_late_end_brings_it_back(board):
    await board.add("a", "b")
    pod = board.pod()
    first, second = await pod.acquire()
    await pod.complete(first)
    assert len(await board.redis.keys("*#history")) == 1
    assert await board.registry.remove(["a", "b"]) == [ChangeReply.REMOVED] * 2
    assert await pod.complete(second) is Ended.REMOVED
    assert await board.redis.keys("*") == []


async def test_s8_a_turn_beside_another_is_listed_for_its_schedule_by_its_own_time(board):
    schedule = Schedule(name="a", agent="work", trigger=Every(seconds=60), overlap="allow")
    pod = board.pod()
    await board.registry.put([registration_of(schedule, await redis_now(board.redis) - 1)])
    first = await pod.one()
    at = round(first.acquired_at) + 60.0
    overlaps = ParallelFirings(board.redis, board.keys, Metrics(), owner=pod.owner)
    assert await overlaps.place(first, schedule, at) is PlaceReply.PLACED
    beside = await pod.one()
    await board.expire("a#1")
    await board.pod("other").orphans.reclaim()
    again = await pod.one()
    await pod.complete(again, after=None)
    end, lost = await board.history.turns("a", 100)
    assert (end.fence, end.outcome, end.attempt) == (again.fence, "succeeded", 2)
    assert (lost.fence, lost.outcome, lost.turn) == (beside.fence, "lost", turn_name("a", at))


async def test_s9_an_overwritten_history_is_thrown_away_told_and_fails_nobody(board):
    thrown: list[bytes] = []
    await board.add("a", "b")
    pod = board.pod()
    pod.completer = Completer(board.redis, board.keys, owner=pod.owner, discarded=thrown.extend)
    first, second = await pod.acquire()
    key = board.keys.history("a")
    await board.redis.set(key, "overwritten")
    assert await board.history.turns("a", 10) == []
    assert [await pod.complete(first), await pod.complete(second)] == [Ended.COMPLETED] * 2
    assert thrown == [key.encode()]
    await board.redis.lpush(key, "no JSON")
    assert await outcomes(board) == ["succeeded"]


async def test_s10_turns_of_a_scheduler_are_listed_however_they_end(stage):
    queue, app = stage.system.queue, App("test")

    @app.schedule(every=3600)
    async def good() -> None: ...

    @app.schedule(every=3600)
    async def bad() -> None:
        raise ConnectionError("the shop is closed")

    @app.schedule(every=3600, timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.schedule(every=3600)
    async def stopped() -> None:
        await asyncio.Event().wait()

    @app.schedule(every=3600)
    async def unfinished() -> None:
        await asyncio.Event().wait()

    @app.schedule(every=3600, target=queue.name)
    async def there() -> None: ...

    async def past(name: str) -> PastTurn:
        (turn,) = await until(lambda: stage.board.history.turns(name, 10), what=f"a past turn of {name}")
        return turn

    await stage.board.registry.register(list(app.schedules.values()))
    running = await stage.start(app, "s-1", zombies={"threshold_ms": 0, "executor_shutdown_await_ms": 10})
    turns = {name: await past(name) for name in ("good", "bad", "slow", "there")}
    await until(lambda: stage.board.registry.stop(["stopped"], "enough"), lambda word: word == ["stopping"])
    turns["stopped"] = await past("stopped")
    await stage.entry("unfinished", ScheduleState.RUNNING)
    await running.stop()
    turns["unfinished"] = await past("unfinished")
    assert {name: turn.outcome for name, turn in turns.items()} == {
        "good": "succeeded",
        "bad": "failed",
        "slow": "timed_out",
        "there": "submitted",
        "stopped": "cancelled",
        "unfinished": "given_back",
    }
    assert {turn.owner for turn in turns.values()} == {"s-1"}
    assert (turns["bad"].error_kind, turns["bad"].error) == (
        "transient",
        "ConnectionError: the shop is closed",
    )
    assert turns["slow"].error.startswith("no end after ")
    (run,) = (await queue.list()).runs
    assert (turns["there"].queue, turns["there"].run_id) == (queue.name, run.id)
    assert (await queue.get(run.id)).metadata["turn"] == turns["there"].turn
