"""L: orphans and leadership: what a dead scheduler held comes back, and damage is repaired and counted."""

from __future__ import annotations

import itertools

import pytest

from holdfast.leases.lease import RenewalReply
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.orphans import Orphans, cleanup_leadership
from holdfast.schedules.replies import Ended, Found
from holdfast.schedules.schedule import Schedule, encoded
from holdfast.schedules.trigger import Every
from tests.support.schedules.manual_scheduler import Board, check_time, redis_now, registration
from tests.support.waiting import until


@pytest.fixture
def board(redis):
    return Board(redis)


async def test_l1_what_is_not_renewed_comes_back_at_its_original_turn(board):
    await board.add("a", due=-7)
    turn = (await board.waiting())["a"]
    run = await board.pod("dead").one()
    await board.expire()
    (back,) = await board.pod("alive").orphans.reclaim()
    assert (back.name, back.owner, back.removed) == ("a", "dead", False)
    assert await board.waiting() == {"a": turn}
    assert (await board.working(), await board.leased()) == ({}, set())
    entry = await board.entry("a")
    assert entry.fence > run.fence
    assert (entry.owner, entry.reclaimed, entry.runs) == ("", 1, 0)


async def test_l2_it_takes_a_lease_ttl_not_a_deadline(board):
    await board.add("a", timeout_ms=86_400_000)
    await board.pod("dead", ttl_ms=150).one()
    other = board.pod("alive")
    await until(other.orphans.reclaim)
    assert (await other.one()).name == "a"


async def test_l3_what_is_renewed_is_never_reclaimed_however_long_it_takes(board):
    await board.add("a", timeout_ms=1)
    pod = board.pod(ttl_ms=60_000)
    run = await pod.one()
    for _ in range(5):
        await board.redis.zincrby(board.keys.leases, -30_000, "a")  # half of its ttl passes
        assert await board.pod("other").orphans.reclaim() == []
        assert (await board.pod("other").orphans.sweep()).found == {}
        assert await pod.renew(run) is RenewalReply.KEPT


async def test_l4_a_holder_that_wakes_up_late_is_told_and_refused(board):
    await board.add("a")
    pod = board.pod("late")
    run = await pod.one()
    await board.expire()
    await board.pod("other").orphans.reclaim()
    assert await pod.renew(run) is RenewalReply.LOST
    assert await pod.give_back(run) is Ended.STALE
    assert await pod.complete(run) is Ended.STALE


async def test_l5_one_removed_during_its_run_is_not_brought_back(board, redis):
    await board.add("a")
    await board.pod("dead").one()
    await board.registry.remove(["a"])
    await board.expire()
    (back,) = await board.pod().orphans.reclaim()
    assert back.removed
    assert await redis.keys("*") == []


async def test_l6_one_paused_during_its_run_comes_back_paused(board):
    await board.add("a")
    await board.pod("dead").one()
    await board.registry.pause(["a"])
    await board.expire()
    await board.pod().orphans.reclaim()
    assert (await board.entry("a")).state is ScheduleState.PAUSED
    await board.registry.resume(["a"])
    assert (await board.pod().one()).name == "a"


async def test_l7_reclaiming_is_done_in_pages(board):
    await board.add(*(f"s{n}" for n in range(25)))
    await board.pod("dead").acquire()
    await board.expire()
    orphans = board.pod().orphans
    assert [len(await orphans.reclaim(10)) for _ in range(4)] == [10, 10, 5, 0]


async def test_l8_one_leads_and_get_tells_who(redis, board):
    first = cleanup_leadership(board.keys, owner="pod-1", ttl_ms=60_000)
    second = cleanup_leadership(board.keys, owner="pod-2", ttl_ms=60_000)
    term = await first.campaign(redis)
    assert term is not None
    assert await second.campaign(redis) is None
    assert (await redis.get("cleanup-leader")).decode().split() == ["pod-1", str(term.fence)]
    assert 0 < await redis.pttl("cleanup-leader") <= 60_000
    assert await first.renew(redis, [term]) == [RenewalReply.KEPT]
    assert await first.resign(redis, term) is True
    later = await second.campaign(redis)
    assert later is not None
    assert later.fence > term.fence


async def test_l9_a_former_leader_can_neither_renew_nor_resign(redis, board):
    old = cleanup_leadership(board.keys, owner="pod-1", ttl_ms=20)
    term = await old.campaign(redis)
    new = cleanup_leadership(board.keys, owner="pod-2", ttl_ms=60_000)
    later = await until(lambda: new.campaign(redis), lambda later: later is not None)
    assert await old.renew(redis, [term]) == [RenewalReply.LOST]
    assert await old.resign(redis, term) is False
    assert await new.renew(redis, [later]) == [RenewalReply.KEPT]


async def test_l10_the_same_pods_former_term_is_over_too(redis, board):
    pod = cleanup_leadership(board.keys, owner="pod", ttl_ms=60_000)
    first = await pod.campaign(redis)
    await pod.resign(redis, first)
    second = await pod.campaign(redis)
    assert await pod.renew(redis, [first]) == [RenewalReply.LOST]
    assert await pod.renew(redis, [second]) == [RenewalReply.KEPT]


async def test_l11_entries_that_are_only_digits_are_removed_and_counted(redis, board):
    await redis.zadd(board.keys.waiting, {"1769000000": 9e9, "17": 9e9, "agent-17": 9e9})
    await redis.zadd(board.keys.working, {"42": 9e9})
    swept = await board.pod().orphans.sweep()
    assert swept.found == {Found.NUMERIC: 3}
    assert await board.waiting() == {"agent-17": 9e9}


async def test_l12_digits_stay_where_the_setting_says_so(redis, board):
    await redis.zadd(board.keys.waiting, {"17": 9e9})
    assert (await Orphans(redis, board.keys, remove_numeric=False).sweep()).found == {}


async def test_l13_a_schedule_that_is_registered_may_be_named_by_digits(board):
    await board.add("17", due=60)
    assert (await board.pod().orphans.sweep()).found == {}


async def test_l14_entries_without_a_definition_go_when_they_are_old_enough(redis, board):
    now = await redis_now(redis)
    await redis.zadd(board.keys.waiting, {"old": now - 700, "fresh": now - 10})
    await redis.zadd(board.keys.working, {"crashed": now - 700, "recent": now - 10})
    assert (await board.pod().orphans.sweep()).found == {Found.INVALID: 2}
    assert (list(await board.waiting()), list(await board.working())) == (["fresh"], ["recent"])


async def test_l15_one_that_runs_without_a_lease_is_returned(redis, board):
    await board.add("a", due=-9)
    turn = (await board.waiting())["a"]
    run = await board.pod().one()
    await redis.zrem(board.keys.leases, "a")
    assert (await board.pod().orphans.sweep()).found == {Found.RETURNED: 1}
    assert await board.waiting() == {"a": turn}
    assert await board.pod().complete(run) is Ended.STALE


async def test_l16_overlapping_sets_are_parted_in_favour_of_a_living_holder(redis, board):
    await board.add("held", "waits")
    pod = board.pod()
    await pod.acquire()
    await redis.zadd(board.keys.waiting, {"held": 5, "waits": 5})
    await redis.zrem(board.keys.leases, "waits")
    assert (await pod.orphans.sweep()).found == {Found.OVERLAP: 2}
    assert (list(await board.working()), list(await board.waiting())) == (["held"], ["waits"])


async def test_l17_scores_that_are_no_time_become_now(redis, board):
    await board.add("never", "always", due=60)
    await redis.zadd(board.keys.waiting, {"never": "inf", "always": "-inf"})
    before = await redis_now(redis)
    assert (await board.pod().orphans.sweep()).found == {Found.UNSCORED: 2}
    turns = await board.waiting()
    assert set(turns) == {"never", "always"}
    for turn in turns.values():
        await check_time(redis, turn, since=before)


async def test_l18_a_damaged_record_of_what_runs_is_thrown_away_and_the_schedule_lives_on(redis, board):
    await board.add("a")
    await board.pod("dead").one()
    await redis.set(board.keys.record("a"), "overwritten")
    assert (await board.pod().orphans.sweep()).found == {Found.DAMAGED: 1}
    await board.expire()
    assert [back.name for back in await board.pod().orphans.reclaim()] == ["a"]
    assert (await board.pod().one()).name == "a"


async def test_l19_a_sweep_reaches_the_last_page_past_foreign_ones(redis, board):
    await board.add(*(f"s{n:04}" for n in range(1000)), due=-700)
    await board.pod().acquire(500)
    now = await redis_now(redis)
    await redis.zadd(board.keys.working, {f"x{n}": now - 700 for n in range(30)})
    await redis.zadd(board.keys.waiting, {f"y{n}": now - 600.5 for n in range(30)})
    swept = await Orphans(redis, board.keys, page=50).sweep()
    assert swept.found == {Found.INVALID: 60}
    assert (swept.looked_at, swept.whole) == (1060, True)


async def test_l20_a_sweep_over_its_budget_stops_between_pages_and_says_so(redis, board):
    await board.add(*(f"s{n}" for n in range(100)), due=60)
    ticks = iter(range(100))
    orphans = Orphans(redis, board.keys, page=10, monotonic=lambda: float(next(ticks)))
    swept = await orphans.sweep(budget_seconds=4)
    assert not swept.whole
    assert 0 < swept.looked_at < 100


@pytest.mark.parametrize("budget", [2, 1e-9])
async def test_l22_the_next_sweep_goes_on_where_the_budget_ended_the_last(redis, board, budget):
    """Fails if every pass, or the first one of every scheduler, begins at the head: the tail of a long set would hardly be reached."""
    await board.add(*(f"s{n}" for n in range(100)), due=60)
    await redis.zadd(board.keys.waiting, {"12345": await redis_now(redis) + 600})
    clock = itertools.count()
    passes = [
        await Orphans(redis, board.keys, page=10, monotonic=lambda: float(next(clock))).sweep(
            budget_seconds=budget
        )
        for _ in range(20)
    ]
    last = next(n for n, swept in enumerate(passes) if swept.whole)
    assert sum(swept.looked_at for swept in passes[: last + 1]) == 101
    assert passes[last].found == {Found.NUMERIC: 1}
    assert not passes[last + 1].whole


async def test_l23_the_position_of_a_sweep_that_ended_early_is_kept_for_a_while(redis, board):
    await board.add(*(f"s{n}" for n in range(25)), due=60)
    clock = itertools.count()
    orphans = Orphans(
        redis, board.keys, page=10, position_ttl_ms=60_000, monotonic=lambda: float(next(clock))
    )
    await orphans.sweep(budget_seconds=2)
    assert await redis.get(board.keys.sweep) == b"waiting 10"
    assert 0 < await redis.pttl(board.keys.sweep) <= 60_000
    assert (await orphans.sweep()).looked_at == 15
    assert not await redis.exists(board.keys.sweep)


@pytest.mark.parametrize("position", ["", "elsewhere 7", "waiting -1", ["waiting", "3"]])
async def test_l24_a_sweep_whose_position_was_overwritten_begins_at_the_head(redis, board, position):
    await board.add(*(f"s{n}" for n in range(5)), due=60)
    await (
        redis.rpush(board.keys.sweep, *position)
        if isinstance(position, list)
        else redis.set(board.keys.sweep, position)
    )
    swept = await board.pod().orphans.sweep()
    assert (swept.looked_at, swept.whole) == (5, True)
    assert not await redis.exists(board.keys.sweep)


async def test_r11_a_completion_that_failed_does_not_wait_for_the_orphan_threshold(board):
    """Redis was away when it ended: its lease runs out like a dead holder's, long before threshold and deadline."""
    await board.add("a", timeout_ms=3_600_000)
    pod = board.pod(ttl_ms=100)
    await pod.one()
    await until(pod.orphans.reclaim)
    assert (await board.pod("other").one()).name == "a"


async def test_r12_a_leader_does_not_delete_schedules_that_it_does_not_know(board, redis):
    """They are another pod's, or another version's: only what Redis has no definition of is invalid."""
    await board.add("of-another-pod", "running-there", due=-5000)
    await redis.zadd(board.keys.waiting, {"running-there": 1})
    await board.pod("another").one()
    leader = board.pod("leader")
    assert (await leader.orphans.sweep()).found == {}
    assert list(await board.waiting()) == ["of-another-pod"]
    assert list(await board.working()) == ["running-there"]
    assert [entry.name for entry in (await board.entries.list()).entries] != []


async def test_r16_a_crash_in_the_middle_of_a_run_does_not_end_the_schedule(board):
    """The next turn is not a promise of the current one: it comes from the lease's end."""
    await board.add("a")
    for _ in range(3):
        await board.pod("crashes").one()
        await board.expire()
        await board.pod("other").orphans.reclaim()
    assert list(await board.waiting()) == ["a"]
    assert (await board.entry("a")).reclaimed == 3
    pod = board.pod()
    await pod.complete(await pod.one(), after=60)
    assert (await board.entry("a")).reclaimed == 0


UNREADABLE = b"\xff\xfe-report"


async def _add_unreadable(board) -> None:
    await board.redis.hset(board.keys.definitions, UNREADABLE, registration("x").spec)
    await board.redis.zadd(board.keys.waiting, {UNREADABLE: 1.0})


async def test_l19_a_name_that_is_no_text_is_discarded_once_and_told(board):
    """The mistake: it is acquired under the name that it is read as, can't be kept, and comes back every ttl."""
    await board.add("sound")
    await _add_unreadable(board)
    found = await board.pod().acquirer.acquire(10)
    assert [run.name for run in found.schedules] == ["sound"]
    assert found.unreadable == [repr(UNREADABLE)]
    assert (await board.pod().acquirer.acquire(10)).unreadable == []
    assert await board.redis.hkeys(board.keys.definitions) == [b"sound"]
    assert UNREADABLE not in await board.redis.zrange(board.keys.waiting, 0, -1)
    assert set(await board.working()) == {"sound"}


async def test_l20_a_sweep_discards_it_too(board):
    await board.add("sound")
    await _add_unreadable(board)
    await board.redis.zadd(board.keys.working, {b"\xfa": 1.0})
    await board.redis.zadd(board.keys.leases, {b"\xfa": 1.0})
    swept = await board.pod().orphans.sweep()
    assert swept.found == {Found.UNREADABLE: 2}
    assert (await board.waiting()).keys() == {"sound"}
    assert (await board.working(), await board.leased()) == ({}, set())
    assert (await board.pod().orphans.sweep()).found == {}


async def test_l21_what_is_no_name_is_not_registered_again_as_another(board):
    sound = encoded(Schedule(name="x", agent="work", trigger=Every(seconds=60)))
    await board.redis.hset(board.keys.definitions, UNREADABLE, sound)
    assert await board.registry.repopulate() == []
    assert await board.waiting() == {}
