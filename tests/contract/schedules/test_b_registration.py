"""B: registration, and what operators do to what is registered."""

from __future__ import annotations

import pytest

from holdfast.errors import NotFound
from holdfast.leases.lease import RenewalReply
from holdfast.schedules import Every, Once, Schedule
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.replies import ChangeReply, Ended, Registered
from holdfast.schedules.schedule import decoded
from tests.support.schedules.manual_scheduler import check_time, redis_now, registration


async def test_b1_a_new_schedule_waits_for_its_first_turn(board):
    before = await redis_now(board.redis)
    assert await board.add("a", due=60) == [Registered.CREATED]
    entry = await board.entry("a")
    assert entry.state is ScheduleState.WAITING
    await check_time(board.redis, entry.next_at, since=before, after=60)
    assert (entry.runs, entry.streak, entry.owner, entry.last_outcome) == (0, 0, "", "")


async def test_b2_registering_again_moves_nothing(board):
    await board.add("a", due=60)
    before = await board.waiting()
    assert await board.add("a", due=10) == [Registered.UNCHANGED]
    assert await board.waiting() == before


async def test_b3_another_input_is_an_update_that_keeps_the_turn(board):
    await board.add("a", due=60)
    before = await board.waiting()
    assert await board.add("a", due=10, spec=b'{"input":2}') == [Registered.UPDATED]
    assert await board.waiting() == before
    assert (await board.entry("a")).spec == b'{"input":2}'


async def test_b4_another_trigger_gives_a_new_turn(board):
    await board.add("a", due=60)
    before = await redis_now(board.redis)
    assert await board.add("a", due=10, trigger="every hour") == [Registered.UPDATED]
    await check_time(board.redis, (await board.waiting())["a"], since=before, after=10)


async def test_b5_registering_keeps_streak_runs_and_fence(board):
    pod = board.pod()
    await board.add("a")
    run = await pod.one()
    await pod.complete(run, streak=3, outcome="failed", error="boom")
    await board.add("a", spec=b"{}")
    entry = await board.entry("a")
    assert (entry.streak, entry.runs, entry.fence, entry.last_error) == (3, 1, run.fence, "boom")


async def test_b6_registering_what_runs_does_not_start_it_twice(board):
    pod = board.pod()
    await board.add("a")
    run = await pod.one()
    assert await board.add("a") == [Registered.UNCHANGED]
    assert await board.add("a", spec=b"{}") == [Registered.UPDATED]
    assert await board.waiting() == {}
    assert await pod.complete(run, after=60) is Ended.COMPLETED


async def test_b7_a_trigger_changed_during_a_run_decides_the_next_turn(board):
    pod = board.pod()
    await board.add("a")
    run, before = await pod.one(), await redis_now(board.redis)
    await board.add("a", due=500, trigger="every hour")
    await pod.complete(run, after=5)
    await check_time(board.redis, (await board.waiting())["a"], since=before, after=500)
    await board.make_due()
    run, before = await pod.one(), await redis_now(board.redis)
    await pod.complete(run, after=5)
    await check_time(board.redis, (await board.waiting())["a"], since=before, after=5)


async def test_b8_one_without_a_turn_is_done_and_a_new_trigger_revives_it(board):
    await board.add("a", due=None)
    assert (await board.entry("a")).state is ScheduleState.DONE
    assert await board.waiting() == {}
    await board.add("a", due=5, trigger="every hour")
    assert (await board.entry("a")).state is ScheduleState.WAITING


async def test_b9_removing_leaves_nothing_behind(board, redis):
    await board.add("a", "b", priority=2)
    assert await board.registry.remove(["a", "b", "c"]) == [
        ChangeReply.REMOVED,
        ChangeReply.REMOVED,
        ChangeReply.UNKNOWN,
    ]
    assert await redis.keys("*") == []
    with pytest.raises(NotFound, match="schedules list"):
        await board.entry("a")


async def test_b10_removing_what_runs_lets_it_end_or_stops_it(board, redis):
    pod = board.pod()
    await board.add("a", "b")
    runs = {run.name: run for run in await pod.acquire()}
    await board.registry.remove(["a"])
    await board.registry.remove(["b"], stop="not wanted")
    assert await pod.renew(runs["a"]) is RenewalReply.KEPT
    assert await pod.renew(runs["b"]) is RenewalReply.STOP
    assert [await pod.complete(runs[name]) for name in "ab"] == [Ended.REMOVED] * 2
    assert await redis.keys("*") == []


async def test_b11_one_registered_again_during_its_last_run_is_one_schedule(board):
    """The new life keeps the old fence, so its end is heard, and runs by its own trigger."""
    pod = board.pod()
    await board.add("a")
    run = await pod.one()
    await board.registry.remove(["a"])
    before = await redis_now(board.redis)
    assert await board.add("a", due=70) == [Registered.CREATED]
    assert await board.waiting() == {}
    assert await pod.complete(run, after=5) is Ended.COMPLETED
    await check_time(board.redis, (await board.waiting())["a"], since=before, after=70)


async def test_b12_a_removed_schedules_fence_is_never_used_again(board):
    pod = board.pod()
    await board.add("a")
    old = await pod.one()
    await board.registry.remove(["a"])
    await board.expire()
    await pod.orphans.reclaim()
    await board.add("a")
    new = await pod.one()
    assert new.fence > old.fence
    assert await pod.complete(old) is Ended.STALE


async def test_b13_a_paused_schedule_keeps_its_turn_and_its_reason(board):
    await board.add("a", due=60)
    turn = (await board.waiting())["a"]
    assert await board.registry.pause(["a", "x"], "maintenance") == [ChangeReply.PAUSED, ChangeReply.UNKNOWN]
    assert await board.registry.pause(["a"], "again") == [ChangeReply.ALREADY]
    entry = await board.entry("a")
    assert (entry.state, entry.paused, entry.next_at) == (ScheduleState.PAUSED, "maintenance", turn)
    assert await board.registry.resume(["a"]) == [ChangeReply.RESUMED]
    assert await board.registry.resume(["a"]) == [ChangeReply.ALREADY]
    assert await board.waiting() == {"a": turn}
    assert (await board.entry("a")).paused == ""


async def test_b14_one_paused_while_it_runs_ends_and_stays_out(board):
    pod = board.pod()
    await board.add("a")
    run = await pod.one()
    await board.registry.pause(["a"])
    assert (await board.entry("a")).state is ScheduleState.RUNNING
    before = await redis_now(board.redis)
    assert await pod.complete(run, after=60) is Ended.COMPLETED
    entry = await board.entry("a")
    assert entry.state is ScheduleState.PAUSED
    await check_time(board.redis, entry.next_at, since=before, after=60)


async def test_b15_resuming_may_give_another_turn_or_spread_them(board):
    names = [f"s{n}" for n in range(20)]
    await board.add(*names, due=-500)
    await board.registry.pause(names)
    now = await redis_now(board.redis)
    await board.registry.resume(["s0"], at={"s0": now + 90})
    await board.registry.resume(names[1:], spread_seconds=100)
    turns, after = await board.waiting(), await redis_now(board.redis)
    assert turns["s0"] == pytest.approx(now + 90, abs=0.01)
    assert all(now <= turns[name] <= after + 101 for name in names[1:])
    assert len({round(turn, 3) for turn in turns.values()}) > 15


async def test_b16_failures_in_a_row_pause_by_the_completion(board):
    pod = board.pod()
    await board.add("a")
    run = await pod.one()
    await pod.complete(run, after=60, streak=5, outcome="failed", pause_after=5)
    entry = await board.entry("a")
    assert (entry.state, entry.paused) == (ScheduleState.PAUSED, "5 failures in a row")


async def test_b16_a_resume_counts_the_failures_anew(board):
    pod, failed = board.pod(), {"outcome": "failed", "pause_after": 3}
    await board.add("a")
    await pod.complete(await pod.one(), streak=3, **failed)
    assert await board.registry.resume(["a"]) == [ChangeReply.RESUMED]
    assert (await board.entry("a")).streak == 0
    await board.make_due("a")
    run = await pod.one()
    assert (run.streak, await pod.complete(run, streak=1, **failed)) == (0, Ended.COMPLETED)
    entry = await board.entry("a")
    assert (entry.state, entry.streak) == (ScheduleState.WAITING, 1)


async def test_b17_a_trigger_runs_it_now_and_does_not_move_its_turns(board):
    pod = board.pod()
    await board.add("a", due=600)
    turn = (await board.waiting())["a"]
    assert await board.registry.trigger(["a", "x"]) == [ChangeReply.TRIGGERED, ChangeReply.UNKNOWN]
    run = await pod.one()
    assert run.triggered
    await pod.complete(run, after=5)
    entry = await board.entry("a")
    assert (entry.next_at, entry.runs, entry.triggered) == (turn, 0, False)
    assert entry.last_outcome == "succeeded"


async def test_b18_a_paused_schedule_can_be_triggered_and_is_paused_again(board):
    pod = board.pod()
    await board.add("a", due=600)
    turn = (await board.waiting())["a"]
    await board.registry.pause(["a"], "why")
    await board.registry.trigger(["a"])
    await pod.complete(await pod.one())
    entry = await board.entry("a")
    assert (entry.state, entry.next_at, entry.paused) == (ScheduleState.PAUSED, turn, "why")


async def test_b19_one_that_is_done_can_be_triggered_and_is_done_again(board):
    pod = board.pod()
    await board.add("a", due=None)
    await board.registry.trigger(["a"])
    await pod.complete(await pod.one(), after=5)
    assert (await board.entry("a")).state is ScheduleState.DONE


async def test_b20_triggering_what_runs_runs_it_once_more(board):
    pod = board.pod()
    await board.add("a")
    run = await pod.one()
    assert await board.registry.trigger(["a", "a"]) == [ChangeReply.BUFFERED] * 2
    before = await redis_now(board.redis)
    await pod.complete(run, after=60)
    again = await pod.one()
    assert again.triggered
    await pod.complete(again, after=5)
    await check_time(board.redis, (await board.waiting())["a"], since=before, after=60)


async def test_b21_a_manual_run_that_crashes_is_still_one(board):
    pod = board.pod()
    await board.add("a", due=600)
    turn = (await board.waiting())["a"]
    await board.registry.trigger(["a"])
    await pod.one()
    await board.expire()
    await pod.orphans.reclaim()
    run = await pod.one()
    assert run.triggered
    await pod.complete(run, after=5)
    assert await board.waiting() == {"a": turn}


async def test_b22_a_holder_is_asked_to_stop(board):
    pod = board.pod()
    await board.add("a", "b", due=-5)
    await board.registry.pause(["b"])
    run = await pod.one()
    assert await board.registry.stop(["a", "b", "x"], "too long") == [
        ChangeReply.STOPPING,
        ChangeReply.IDLE,
        ChangeReply.UNKNOWN,
    ]
    assert await pod.renew(run) is RenewalReply.STOP
    await pod.complete(run, after=-1)
    assert await pod.renew(await pod.one()) is RenewalReply.KEPT


async def test_b23_what_is_missing_comes_back_and_nothing_else_moves(board, redis):
    names = [f"s{n}" for n in range(50)]
    await board.add(*names, due=600)
    await board.add("done", due=None)
    await board.registry.pause(["s3"])
    before = await board.waiting()
    await redis.zrem(board.keys.waiting, "s1", "s2")
    await redis.delete(board.keys.record("s4"))
    at = await redis_now(redis) + 5
    restored = await board.registry.repopulate(
        lambda lost: registration(lost.name, spec=lost.spec, first=at, timeout_ms=7000)
    )
    assert sorted(restored) == ["s1", "s2", "s4"]
    after = await board.waiting()
    assert after["s1"] == after["s2"] == pytest.approx(at, abs=0.001)
    assert {name: turn for name, turn in after.items() if name not in {"s1", "s2"}} == {
        name: turn for name, turn in before.items() if name not in {"s1", "s2"}
    }
    assert await redis.hget(board.keys.record("s4"), "timeout_ms") == b"7000"
    assert await board.registry.repopulate(lambda lost: pytest.fail(lost.name)) == []


async def test_b24_whoever_registers_nudges_the_schedulers(board, redis):
    async with redis.pubsub() as ear:
        await ear.subscribe(board.keys.nudge)
        await ear.get_message(timeout=5)
        for act in (
            board.add("a", due=60),
            board.registry.trigger(["a"]),
            board.registry.pause(["a"]),
            board.registry.resume(["a"]),
        ):
            await act
        heard = [(await ear.get_message(timeout=5))["data"] for _ in range(3)]
        assert heard == [b"registered", b"triggered", b"resumed"]
        await board.add("a", due=60)
        assert await ear.get_message(timeout=0.05) is None


async def test_b25_a_list_has_everybody_once_and_by_pattern(board):
    names = {f"s{n:03}" for n in range(300)}
    await board.add(*names, due=60)
    seen: list[str] = []
    cursor = ""
    while True:
        page = await board.entries.list(limit=50, cursor=cursor)
        seen += [entry.name for entry in page.entries]
        cursor = page.cursor
        if not cursor:
            break
    assert sorted(seen) == sorted(names)
    found = [name async for page in board.registry.names("s00?") for name in page]
    assert sorted(found) == [f"s00{n}" for n in range(10)]


async def test_b26_counts_say_how_many_are_where(board, redis):
    await board.add("a", "b", "c", due=60)
    await board.add("d", "e", due=-10)
    await board.pod().acquire(1)
    before = await redis_now(redis)
    counts = await board.registry.count()
    await check_time(redis, counts.now, since=before)
    assert (counts.registered, counts.waiting, counts.working, counts.due) == (5, 4, 1, 1)
    assert counts.earliest == pytest.approx((await board.waiting())["e"], abs=0.001)
    assert counts.overlapping == 0
    await redis.zadd(board.keys.waiting, {"d": 1})
    assert (await board.registry.count()).overlapping == 1


async def test_b27_the_documents_commands_tell_the_truth(board, redis):
    before = await redis_now(redis)
    await board.add("agent-name", "b", due=60)
    assert await redis.zcard("waiting") == 2
    assert await redis.zcard("working") == 0
    assert [name for name, _ in await redis.zrange("waiting", 0, 10, withscores=True)] == [
        b"agent-name",
        b"b",
    ]
    await check_time(redis, await redis.zscore("waiting", "agent-name"), since=before, after=60)


async def test_b28_a_schedule_is_stored_whole_and_read_back(board):
    schedule = Schedule(
        name="nightly",
        agent="reporter",
        trigger=Every(seconds=0.5),
        timeout_seconds=2.5,
        priority=2,
        input={"a": [1]},
    )
    assert await board.registry.register([schedule]) == [Registered.CREATED]
    assert await board.registry.register([schedule]) == [Registered.UNCHANGED]
    run = await board.pod().one()
    assert decoded(run.spec) == schedule
    assert run.deadline == pytest.approx(run.acquired_at + 2.5)
    assert (await board.entry("nightly")).priority == 2


async def test_b29_only_what_its_turns_follow_from_gives_new_turns(board):
    def schedule(**options):
        return Schedule(name="a", agent=options.pop("agent", "x"), **{"trigger": Every(seconds=60)} | options)

    await board.registry.register([schedule(starts_at=2e9)])
    for same in (schedule(starts_at=2e9, input=5), schedule(starts_at=2e9, agent="y", priority=1)):
        await board.registry.register([same])
        assert await board.waiting() == {"a": 2e9}
    for turn, other in ((2.1e9, schedule(starts_at=2.1e9)), (2.2e9, schedule(trigger=Once(at=2.2e9)))):
        await board.registry.register([other])
        assert await board.waiting() == {"a": turn}


async def test_b30_first_turns_are_spread_over_the_jitter(board):
    schedules = [Schedule(name=f"s{n}", agent="x", trigger=Every(seconds=60)) for n in range(50)]
    before = await redis_now(board.redis)
    await board.registry.register(schedules, jitter_seconds=30)
    turns = await board.waiting()
    now = await redis_now(board.redis)
    assert all(before <= turn <= now + 30 for turn in turns.values())
    assert max(turns.values()) - min(turns.values()) > 10


async def test_b31_after_a_lost_set_everything_comes_back_spread(board, redis):
    schedules = [Schedule(name=f"s{n}", agent="x", trigger=Every(seconds=60)) for n in range(700)]
    await board.registry.register(schedules)
    await redis.hset(board.keys.definitions, "unreadable", "{")
    await redis.delete(board.keys.waiting)
    before = await redis_now(redis)
    restored = await board.registry.repopulate(jitter_seconds=30)
    assert sorted(restored) == sorted(schedule.name for schedule in schedules)
    now = await redis_now(redis)
    turns = (await board.waiting()).values()
    assert len(turns) == 700
    assert all(before <= turn <= now + 30 for turn in turns)
    assert max(turns) - min(turns) > 15
