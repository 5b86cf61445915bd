"""C: acquisition takes what is due, no more than asked for, in order; and completion ends it once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest

from holdfast import App
from holdfast.leases.lease import RenewalReply
from holdfast.schedules.completion import Completion
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.replies import Ended
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every, Once
from tests.support.schedules.manual_scheduler import check_time, redis_now
from tests.support.waiting import stays, until


async def test_c1_only_what_is_due_is_acquired(board):
    await board.add("early", due=-5)
    await board.add("late", due=30)
    assert [run.name for run in await board.pod().acquire()] == ["early"]
    assert list(await board.waiting()) == ["late"]


async def test_c2_never_more_than_the_free_permits(board):
    await board.add(*(f"s{n}" for n in range(10)))
    pod = board.pod()
    assert [len(await pod.acquire(limit)) for limit in (0, -3, 4, 100, 1)] == [0, 0, 4, 6, 0]


async def test_c3_the_most_overdue_first_and_equal_ones_by_name(board):
    await board.add("c", "a", "b", due=-10)
    await board.add("z", due=-20)
    assert [run.name for run in await board.pod().acquire()] == ["z", "a", "b", "c"]


async def test_c4_it_moves_to_working_with_its_deadline_and_a_lease(board, redis):
    await board.add("a", timeout_ms=90_500)
    turn = (await board.waiting())["a"]
    run = await board.pod(ttl_ms=30_000).one()
    assert await board.waiting() == {}
    assert await board.working() == {"a": pytest.approx(run.acquired_at + 90.5)}
    assert (run.ready, run.deadline) == (turn, pytest.approx(run.acquired_at + 90.5))
    assert await redis.zscore(board.keys.leases, "a") == pytest.approx(run.acquired_at * 1000 + 30_000, abs=2)
    entry = await board.entry("a")
    assert (entry.state, entry.owner, entry.fence) == (ScheduleState.RUNNING, "pod", run.fence)


async def test_c5_the_times_are_redis_times(board):
    await board.add("a")
    before = await redis_now(board.redis)
    run = await board.pod().one()
    await check_time(board.redis, run.acquired_at, since=before)
    assert run.acquired_at != int(run.acquired_at)


async def test_c6_a_batch_is_what_single_calls_are(board):
    """Order, fences, deadlines, records and sets: the batch changes nothing but the number of calls."""

    async def outcome(limits):
        await board.redis.flushall()
        for n in range(6):
            await board.add(f"s{n}", due=-1 - 60 * n, timeout_ms=1000 * n + 1000)
        pod = board.pod()
        runs = [run for limit in limits for run in await pod.acquire(limit)]
        ends = [Completion(run.name, run.fence, run.acquired_at + 60) for run in runs[:4]]
        words = [
            word
            for part in ([ends] if len(limits) == 1 else [[end] for end in ends])
            for word in await pod.completer.complete(part)
        ]
        entries = [await board.entry(f"s{n}") for n in range(6)]
        return (
            [(run.name, round(run.deadline - run.acquired_at, 3), run.streak, run.runs) for run in runs],
            words,
            [(entry.state, entry.runs, entry.owner) for entry in entries],
        )

    assert await outcome([6]) == await outcome([1] * 6)


async def test_c7_fractions_of_a_second_count(board):
    await board.add("a", due=0.3)
    turn = (await board.waiting())["a"]
    pod = board.pod()
    early = await pod.acquire()  # only if this machine was so slow that it is due
    await until(lambda: redis_now(board.redis), lambda now: now >= turn)
    (run,) = early or await pod.acquire()
    assert run.acquired_at >= turn


async def test_c8_the_answer_says_when_to_look_again(board):
    await board.add("a", "b", due=-3)
    await board.add("c", due=40)
    turns = await board.waiting()
    first = await board.pod().acquirer.acquire(1)
    assert (first.backlog, first.earliest) == (1, pytest.approx(turns["c"], abs=0.001))
    rest = await board.pod().acquirer.acquire(10)
    assert (rest.backlog, rest.earliest) == (0, pytest.approx(turns["c"], abs=0.001))
    await board.registry.remove(["c"])
    assert (await board.pod().acquirer.acquire(10)).earliest is None


async def test_c8_what_becomes_due_between_the_look_and_the_taking_is_looked_for_at_once(board, redis):
    """The look did not find it and it is not to come either: it would wait for the scheduler's longest sleep."""
    await board.add("a", due=-3)
    await board.add("b", due=0.2)
    turns, acquirer = await board.waiting(), board.pod().acquirer
    look = await acquirer.look(10, lambda *_: True)
    assert look.names == ["a"]
    await until(lambda: redis_now(redis), lambda now: now > turns["b"])
    taken = await acquirer.take(10, look)
    assert taken.earliest == pytest.approx(turns["b"], abs=0.001)
    assert [run.name for run in taken.schedules] == ["a"]


async def test_c9_completing_gives_the_next_turn_and_keeps_the_account(board):
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    assert await pod.complete(
        run, after=60, streak=2, outcome="failed", error="E" * 5000, duration_ms=12.5
    ) is (Ended.COMPLETED)
    entry = await board.entry("a")
    assert (entry.state, entry.streak, entry.runs, entry.owner) == (ScheduleState.WAITING, 2, 1, "")
    assert (entry.last_outcome, entry.last_duration_ms, len(entry.last_error)) == ("failed", 12.5, 1000)
    assert entry.last_start == pytest.approx(run.acquired_at)
    assert await board.working() == {}
    assert await board.leased() == set()


async def test_c10_the_streak_survives_and_comes_with_the_next_run(board):
    await board.add("a")
    await board.pod("first").complete(await board.pod("first").one(), after=-1, streak=4)
    run = await board.pod("second").one()
    assert (run.streak, run.runs) == (4, 1)


async def test_c11_the_last_turn_leaves_it_done(board):
    await board.add("a")
    pod = board.pod()
    await pod.complete(await pod.one(), after=None)
    assert (await board.entry("a")).state is ScheduleState.DONE
    assert await pod.acquire() == []


async def test_c12_a_completion_sent_again_says_already(board):
    """Its reply was lost: whoever sends it again must not take it for stale, nor move the turn."""
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    await pod.complete(run, after=60)
    before = await board.waiting()
    assert await pod.complete(run, after=5) is Ended.ALREADY
    assert await board.waiting() == before
    assert (await board.entry("a")).runs == 1


async def test_c13_a_stale_completion_changes_nothing(board, redis):
    await board.add("a")
    old, new = board.pod("old"), board.pod("new")
    lost = await old.one()
    await board.expire()
    await new.orphans.reclaim()
    held = await new.one()
    before = await redis.hgetall(board.keys.record("a"))
    assert await old.complete(lost, after=5) is Ended.STALE
    assert await redis.hgetall(board.keys.record("a")) == before
    assert await board.waiting() == {}
    assert await new.renew(held) is RenewalReply.KEPT
    assert await new.complete(held) is Ended.COMPLETED


async def test_c14_one_batch_has_every_kind_of_end(board):
    await board.add("a", "b", "c")
    pod, other = board.pod(), board.pod("other")
    runs = {run.name: run for run in await pod.acquire()}
    await board.registry.remove(["b"])
    await board.expire("c")
    await pod.orphans.reclaim()
    await other.acquire()
    ends = [Completion(name, runs[name].fence, 9e9) for name in "aabc"] + [Completion("never", 1, 9e9)]
    assert await pod.completer.complete(ends) == [
        Ended.COMPLETED,
        Ended.ALREADY,
        Ended.REMOVED,
        Ended.STALE,
        Ended.REMOVED,
    ]


async def test_c15_entries_without_a_definition_never_run_and_never_block(board, redis):
    """Numbers that took a name's place, or leftovers: a thousand of them at the head hide nobody."""
    await redis.zadd(board.keys.waiting, {str(n): 1 for n in range(1200)})
    await board.add("a")
    got = await board.pod().acquirer.acquire(10)
    assert [run.name for run in got.schedules] == ["a"]
    assert got.dropped == 1200
    assert await board.waiting() == {}


async def test_c16_what_is_held_is_not_acquired_though_it_stands_in_both_sets(board, redis):
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    await redis.zadd(board.keys.waiting, {"a": 1})
    assert await board.pod("other").acquire() == []
    assert await board.waiting() == {}
    assert await pod.complete(run) is Ended.COMPLETED


async def test_c17_an_endless_score_is_a_turn_now(board, redis):
    await board.add("a")
    await redis.zadd(board.keys.waiting, {"a": "-inf"})
    run = await board.pod().one()
    assert run.ready == run.acquired_at


async def test_c18_a_paused_one_that_somebody_put_back_does_not_run(board, redis):
    await board.add("a")
    await board.registry.pause(["a"])
    await redis.zadd(board.keys.waiting, {"a": 5})
    assert await board.pod().acquire() == []
    assert (await board.entry("a")).state is ScheduleState.PAUSED


async def test_c19_urgent_ones_go_first_within_what_a_class_is_worth(board):
    await board.add("normal", due=-30)
    await board.add("urgent", due=-1, priority=4)
    await board.add("lazy", due=-40, priority=6)
    runs = await board.pod(priority_seconds=60).acquire()
    assert [run.name for run in runs] == ["urgent", "normal", "lazy"]


async def test_c20_nothing_starves_behind_urgent_ones(board):
    """Ageing: who has waited for longer than its class costs goes before those who come now."""
    await board.add("lazy", due=-241, priority=9)
    await board.add("normal", due=-1)
    await board.add("urgent", due=-1, priority=0)
    await board.add("old", due=-400)
    runs = await board.pod(priority_seconds=60).acquire()
    assert [run.name for run in runs] == ["old", "urgent", "lazy", "normal"]


async def test_c21_an_urgent_one_is_found_behind_thousands(board):
    await board.add(*(f"s{n}" for n in range(3000)), due=-2)
    await board.add("urgent", due=-1, priority=1)
    assert (await board.pod().one()).name == "urgent"
    assert (await board.pod().acquire(1, accept=lambda name, _: name != "s1"))[0].name != "s1"


async def test_c22_a_priority_taken_back_is_normal_again(board):
    await board.add("b", due=-5, priority=0)
    await board.add("b", due=-5, spec=b"{}")
    await board.add("a", due=-60)
    assert [run.name for run in await board.pod().acquire()] == ["a", "b"]


async def test_c23_a_filter_takes_only_what_it_accepts(board):
    await board.add(*(f"s{n}" for n in range(20)))
    runs = await board.pod().acquire(100, accept=lambda name, _: int(name[1:]) % 2 == 0)
    assert sorted(int(run.name[1:]) for run in runs) == list(range(0, 20, 2))
    assert len(await board.waiting()) == 10


@pytest.mark.parametrize("accept", [None, lambda *_: True], ids=["all", "chosen"])
async def test_c25_a_thousand_patient_ones_at_the_head_do_not_go_before_normal_ones(board, accept):
    """Four classes are worth 240 s: those that are 100 s overdue come after normal ones of 50 s."""
    await board.add(*(f"patient{n}" for n in range(1200)), due=-100, priority=9)
    await board.add("oldest", due=-500, priority=9)
    normal = [f"normal{n}" for n in range(5)]
    await board.add(*normal, due=-50)
    pod = board.pod(priority_seconds=60)
    runs = [run.name for _ in range(3) for run in await pod.acquire(2, accept=accept)]
    assert runs == ["oldest", *normal]


@pytest.mark.parametrize("left", ["disabled", "without an agent"])
async def test_c26_a_due_schedule_that_is_not_run_here_makes_no_other_late(stage, left):
    """Fails if a scheduler that leaves something due only looks again after its interval, here a minute."""
    app, ran = App("test"), []

    async def work() -> None:
        ran.append(1)

    app.register("work", work)
    now = await redis_now(stage.board.redis)
    away = {"name": "off", "agent": "work"} if left == "disabled" else {"name": "gone", "agent": "nobody"}
    await stage.board.registry.register(
        [
            Schedule(**away, trigger=Once(at=now - 60)),
            Schedule(name="soon", agent="work", trigger=Once(at=now + 4)),
        ]
    )
    await stage.start(app, interval_ms=60_000, refresh_period_seconds=3600, agent={"disabled_pattern": "off"})
    await until(lambda: ran)
    assert away["name"] in await stage.board.waiting()


async def test_c24_many_pods_get_everything_once(board):
    await board.add(*(f"s{n}" for n in range(400)))
    pods = [board.pod(f"pod{n}") for n in range(8)]
    got = await asyncio.gather(*(pod.acquire(random.randint(20, 60)) for pod in pods for _ in range(4)))
    names = [run.name for runs in got for run in runs]
    assert len(names) == len(set(names)) == 400


async def test_r2_what_was_seen_due_is_asked_again_when_it_is_taken(board):
    """Scan-then-acquire runs a schedule early or twice: between the look and the taking it ran elsewhere."""
    await board.add("ran", "runs")
    slow, quick = board.pod("slow"), board.pod("quick")
    seen = await slow.acquirer.look(10, lambda *_: True)
    runs = {run.name: run for run in await quick.acquire()}
    await quick.complete(runs["ran"], after=600)
    assert sorted(seen.names) == ["ran", "runs"]
    assert (await slow.acquirer.take(10, seen)).schedules == []
    assert await quick.renew(runs["runs"]) is RenewalReply.KEPT


async def test_r3_a_second_holder_in_the_same_second_is_another_holder(board):
    """A whole-second deadline, or the owner's name, is no token: only the fence tells two runs apart."""
    await board.add("a")
    pod = board.pod()

    async def two_holders():
        old = await pod.one()
        await board.expire()
        await pod.orphans.reclaim()
        new = await pod.one()
        if int(old.deadline) == int(new.deadline):
            return old, new
        await pod.give_back(new)
        return None

    old, new = await until(two_holders, what="two holders in one second")
    assert await pod.complete(old, after=600) is Ended.STALE
    assert await board.waiting() == {}
    assert await pod.complete(new) is Ended.COMPLETED


async def test_r4_a_late_completion_does_not_bring_back_what_was_removed(board, redis):
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    await board.registry.remove(["a"])
    assert await pod.complete(run) is Ended.REMOVED
    assert await redis.keys("*") == []


async def test_c28_what_has_no_agent_here_is_tried_again_only_after_it_was_defined_anew(stage):
    """Fails if each refresh acquires and gives back all of them: the others would be late meanwhile."""
    app, ran = App("test"), []

    @app.schedule(every=0.05)
    async def work() -> None:
        ran.append(1)

    @app.agent
    async def mine() -> None:
        ran.append("mine")

    gone = [Schedule(name=f"gone-{n}", agent="nobody", trigger=Every(seconds=3600)) for n in range(20)]
    await stage.board.registry.register(gone)
    running = await stage.start(app, interval_ms=20, refresh_period_seconds=0.05)
    await until(lambda: running.count("schedule_given_back_total") == 20)
    await stays(lambda: running.count("schedule_given_back_total") == 20, seconds=1.0)
    await stage.board.registry.register([msgspec.structs.replace(gone[3], agent="mine")])
    await stage.entry("gone-3", runs=1)
    assert running.count("schedule_given_back_total") == 20


async def test_r5_foreign_entries_at_the_head_do_not_starve_a_pod(board):
    await board.add(*(f"foreign{n}" for n in range(1300)), due=-60)
    await board.add("ours", due=-1)
    runs = await board.pod().acquire(10, accept=lambda name, _: name == "ours")
    assert [run.name for run in runs] == ["ours"]


async def test_r5b_more_foreign_entries_than_one_look_may_scan_only_take_another_look(board):
    await board.add(*(f"foreign{n}" for n in range(4000)), due=-60)
    await board.add("ours", due=-1)
    pod = board.pod(scan_pages=2)
    got = [await pod.acquire(10, accept=lambda name, _: name == "ours") for _ in range(5)]
    assert [run.name for runs in got for run in runs] == ["ours"]


async def test_r6_a_pod_that_was_slower_gets_the_next_ones_instead_of_none(board):
    """Every pod reads the same head: what another has taken meanwhile must not be a wasted attempt."""
    await board.add(*(f"s{n}" for n in range(100)))
    slow, quick = board.pod("slow"), board.pod("quick")
    seen = await slow.acquirer.look(20, lambda *_: True)
    assert len(await quick.acquire(20, accept=lambda *_: True)) == 20
    assert len((await slow.acquirer.take(20, seen)).schedules) == 20


async def test_c27_a_scheduler_names_others_only_where_its_own_leave_permits_free(board):
    """Fails if after an outage, when all are anybody's, all schedulers ask for the same head."""
    await board.add(*(f"s{n:03}" for n in range(100)))
    even, odd = board.pod("even"), board.pod("odd")

    def owned_by(rest: int) -> Callable[[str], bool]:
        return lambda name: int(name[1:]) % 2 == rest

    seen = [
        await pod.acquirer.look(20, lambda *_: True, owned_by(rest)) for pod, rest in ((even, 0), (odd, 1))
    ]
    assert not set(seen[0].names) & set(seen[1].names)
    few = (await even.acquirer.look(20, lambda *_: True, lambda name: name in {"s090", "s091"})).names
    assert (few[:2], few[2:4], len(few)) == (["s090", "s091"], ["s000", "s001"], 2 + 18 * 4)


async def test_r6b_no_attempt_is_wasted_while_there_is_work(board):
    await board.add(*(f"s{n}" for n in range(600)))
    pods = [board.pod(f"pod{n}") for n in range(4)]
    got = await asyncio.gather(*(pod.acquire(50) for _ in range(3) for pod in pods))
    assert [len(runs) for runs in got] == [50] * 12
