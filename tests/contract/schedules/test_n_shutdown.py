"""N: what a scheduler gives back when it leaves."""

from __future__ import annotations

import pytest

from holdfast.leases.lease import RenewalReply
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.replies import Ended
from tests.support.schedules.manual_scheduler import Board, check_time, redis_now


@pytest.fixture
def board(redis):
    return Board(redis)


async def test_n1_what_did_not_end_is_due_now(board):
    await board.add("a", due=-50)
    pod = board.pod()
    run, before = await pod.one(), await redis_now(board.redis)
    assert await pod.give_back(run) is Ended.RETURNED
    await check_time(board.redis, (await board.waiting())["a"], since=before)
    assert (await board.working(), await board.leased()) == ({}, set())
    entry = await board.entry("a")
    assert (entry.state, entry.owner, entry.runs, entry.last_outcome) == (ScheduleState.WAITING, "", 0, "")


async def test_n2_or_a_little_later_each_by_its_own_jitter(board):
    await board.add("a", "b")
    pod = board.pod()
    runs, before = await pod.acquire(), await redis_now(board.redis)
    await pod.completer.give_back([pod.lease(run) for run in runs], [50.0, 125.0])
    turns = await board.waiting()
    for run, jitter in zip(runs, (50.0, 125.0), strict=True):
        await check_time(board.redis, turns[run.name], since=before, after=jitter)


async def test_n3_or_at_its_original_turn_where_there_was_no_room_to_start_it(board):
    await board.add("a", due=-50)
    turn = (await board.waiting())["a"]
    pod = board.pod()
    assert await pod.give_back(await pod.one(), after=None) is Ended.RETURNED
    assert await board.waiting() == {"a": turn}


async def test_n4_giving_back_twice_is_once(board):
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    assert [await pod.give_back(run, 5), await pod.give_back(run, 500)] == [Ended.RETURNED, Ended.ALREADY]
    assert (await board.waiting())["a"] < await redis_now(board.redis) + 100


async def test_n5_a_stale_giving_back_changes_nothing(board):
    await board.add("a")
    old, new = board.pod("old"), board.pod("new")
    lost = await old.one()
    await board.expire()
    await new.orphans.reclaim()
    held = await new.one()
    assert await old.give_back(lost) is Ended.STALE
    assert await board.waiting() == {}
    assert await new.renew(held) is RenewalReply.KEPT


async def test_n6_what_ended_meanwhile_keeps_its_next_turn(board):
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    await pod.complete(run, after=600)
    assert await pod.give_back(run) is Ended.ALREADY
    assert (await board.waiting())["a"] > await redis_now(board.redis) + 500


async def test_n7_removed_and_paused_ones_do_not_come_back(board, redis):
    await board.add("removed", "paused")
    pod = board.pod()
    runs = {run.name: run for run in await pod.acquire()}
    await board.registry.remove(["removed"])
    await board.registry.pause(["paused"])
    assert await pod.give_back(runs["removed"]) is Ended.REMOVED
    assert await pod.give_back(runs["paused"]) is Ended.RETURNED
    assert await board.waiting() == {}
    assert (await board.entry("paused")).state is ScheduleState.PAUSED
    assert not await redis.exists(board.keys.record("removed"))


async def test_n8_the_next_pod_has_it_at_once_under_a_higher_fence(board):
    await board.add(*(f"s{n}" for n in range(20)))
    leaving, coming = board.pod("leaving"), board.pod("coming")
    runs = await leaving.acquire()
    ended, unended = runs[:8], runs[8:]
    for run in ended:
        await leaving.complete(run, after=600)
    await leaving.completer.give_back([leaving.lease(run) for run in unended], [0.0] * len(unended))
    again = {run.name: run for run in await coming.acquire()}
    assert sorted(again) == sorted(run.name for run in unended)
    assert all(again[run.name].fence > run.fence for run in unended)
    for run in unended:
        assert await leaving.complete(run) is Ended.STALE
    assert len(await board.working()) == 12


async def test_n9_a_manual_run_given_back_is_still_one(board):
    await board.add("a", due=600)
    turn = (await board.waiting())["a"]
    await board.registry.trigger(["a"])
    pod = board.pod()
    await pod.give_back(await pod.one())
    run = await pod.one()
    assert run.triggered
    await pod.complete(run, after=5)
    assert await board.waiting() == {"a": turn}
