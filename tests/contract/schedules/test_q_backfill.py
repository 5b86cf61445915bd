"""Q: past turns are run once, a few at once, in the target's queue or in the scheduler."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import App, Context
from holdfast.errors import InputError, NotFound
from holdfast.runs.run import Status, Ticket
from holdfast.schedules import fire_times
from holdfast.schedules.backfill import MOST_TURNS, Backfill, turns_between
from holdfast.schedules.completion import Completer, Completion
from holdfast.schedules.redis_errors import counting_discarded
from holdfast.schedules.registry import ScheduleRegistry
from holdfast.schedules.replies import ChangeReply, Ended
from holdfast.schedules.schedule import Schedule, decoded
from holdfast.schedules.submission import run_request
from holdfast.schedules.trigger import Cron, Every, Once
from holdfast.schedules.wallclock import next_fire
from holdfast.telemetry.metrics import Metrics
from tests.support.schedules.manual_scheduler import Board, redis_now
from tests.support.waiting import until

DAY = 86400.0
MIDNIGHT = 1_775_001_600.0  # 2026-04-01T00:00Z
HOURLY = Schedule(name="hourly", agent="work", trigger=Cron(expression="0 * * * *"))


async def hourly(redis, **options) -> Schedule:
    """One whose own next turn is half an hour away, whenever the test runs."""
    minute = int(await redis_now(redis) // 60 + 30) % 60
    return Schedule(agent="work", trigger=Cron(expression=f"{minute} * * * *"), **options)


def fill(board: Board, submit=None) -> Backfill:
    return Backfill(board.redis, board.keys, submit)


def words(filled) -> list[str]:
    return [one.word for one in filled]


# -- which turns


def test_q20_the_turns_of_a_window_end_before_it_does_and_none_is_to_come():
    turns = turns_between(HOURLY, MIDNIGHT, MIDNIGHT + 3 * 3600, now=MIDNIGHT + DAY, limit=100)
    assert [(one.turn, one.at - MIDNIGHT) for one in turns] == [
        (f"hourly@{MIDNIGHT:.3f}", 0),
        (f"hourly@{MIDNIGHT + 3600:.3f}", 3600),
        (f"hourly@{MIDNIGHT + 7200:.3f}", 7200),
    ]
    assert len(turns_between(HOURLY, MIDNIGHT, MIDNIGHT + DAY, now=MIDNIGHT + 5400, limit=100)) == 2
    assert turns_between(HOURLY, MIDNIGHT, MIDNIGHT + DAY, now=MIDNIGHT - 1, limit=100) == []


def test_q21_however_a_window_is_cut_each_turn_has_one_name():
    every = Schedule(name="s", agent="a", trigger=Every(seconds=7.5))
    whole = turns_between(every, MIDNIGHT, MIDNIGHT + 600, now=MIDNIGHT + DAY, limit=100)
    cut = [
        one
        for start in range(0, 600, 50)
        for one in turns_between(
            every, MIDNIGHT + start, MIDNIGHT + start + 50, now=MIDNIGHT + DAY, limit=100
        )
    ]
    assert cut == whole
    assert len({one.turn for one in whole}) == 80


def test_q22_more_turns_than_the_limit_are_refused():
    with pytest.raises(InputError, match="holds more turns of 'hourly' than the limit of 10"):
        turns_between(HOURLY, MIDNIGHT, MIDNIGHT + DAY, now=MIDNIGHT + DAY, limit=10)
    with pytest.raises(InputError, match="must end after it begins"):
        turns_between(HOURLY, MIDNIGHT, MIDNIGHT, now=MIDNIGHT + DAY, limit=10)
    assert len(turns_between(HOURLY, MIDNIGHT, MIDNIGHT + DAY, now=MIDNIGHT + DAY, limit=24)) == 24


@pytest.fixture
def computed(monkeypatch) -> list[threading.Thread]:
    """The threads that computed turns of cron expressions, a turn each."""
    threads: list[threading.Thread] = []

    def counting(expression: str, zone: str, after: float) -> float | None:
        threads.append(threading.current_thread())
        return next_fire(expression, zone, after)

    monkeypatch.setattr(fire_times, "next_fire", counting)
    return threads


@pytest.mark.parametrize(("limit", "most"), [(-1, 0), (0, 0), (1, 1), (100, 100), (1_000_000, MOST_TURNS)])
def test_q22_no_more_turns_are_computed_than_show_that_there_are_too_many(computed, limit, most):
    """Fails if a window of fifty years is counted to its end, or far beyond what its limit allows."""
    with pytest.raises(InputError, match=f"than the limit of {most}:"):
        turns_between(HOURLY, 0, MIDNIGHT, now=MIDNIGHT, limit=limit)
    assert len(computed) == most + 1


def test_q22_turns_to_come_are_not_computed(computed):
    turns = turns_between(HOURLY, MIDNIGHT, MIDNIGHT * 2, now=MIDNIGHT + 3600, limit=MOST_TURNS)
    assert [one.at - MIDNIGHT for one in turns] == [0, 3600]
    assert len(computed) == 3


async def test_q22_turns_are_computed_beside_the_event_loop(board, computed):
    """Fails if everybody else waits meanwhile, as requests to the API did for seconds."""
    await board.registry.register([HOURLY])
    computed.clear()
    assert len(await fill(board).plan("hourly", MIDNIGHT - DAY, MIDNIGHT)) == 24
    assert computed
    assert threading.current_thread() not in computed


# -- with a target


async def test_q23_with_a_target_each_turn_is_submitted_under_the_key_of_that_turn(board):
    target = Schedule(
        name="hourly", agent="work", trigger=HOURLY.trigger, target="q", priority=9, metadata={"a": "b"}
    )
    await board.registry.register([target])
    sent: dict[str, dict] = {}
    now, most, four = 0, 0, asyncio.Event()

    async def submit(schedule: Schedule, turn: str) -> Ticket:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        if most == 4:
            four.set()
        await four.wait()
        await asyncio.sleep(0.001)  # a fifth would meet them
        now -= 1
        fresh = turn not in sent
        sent[turn] = run_request(schedule, turn)
        return Ticket(turn, Status.QUEUED, "1-0", fresh)

    window = (MIDNIGHT - DAY, MIDNIGHT)
    filled = await fill(board, submit).run("hourly", *window, at_once=4)
    assert words(filled) == ["placed"] * 24
    assert most == 4
    assert words(await fill(board, submit).run("hourly", *window)) == ["already"] * 24
    turn = filled[0].turn
    assert sent[turn] == {
        "agent": "work",
        "input": None,
        "priority": "low",
        "tenant": "",
        "idempotency_key": f"schedule:{turn}",
        "metadata": {"a": "b", "schedule": "hourly", "turn": turn},
    }
    assert len(await board.waiting()) == 1, "its own turns stay where they are"


async def test_q24_without_a_way_to_the_target_it_says_so(board):
    await board.registry.register([Schedule(name="t", agent="a", trigger=HOURLY.trigger, target="q")])
    with pytest.raises(InputError, match="'t' submits runs to 'q'"):
        await fill(board).run("t", MIDNIGHT - 3600, MIDNIGHT)
    with pytest.raises(NotFound):
        await fill(board).run("nobody", MIDNIGHT - 3600, MIDNIGHT)


# -- in the scheduler


async def test_q25_without_a_target_so_many_at_once_take_their_turn_and_the_others_follow(board):
    await board.registry.register([await hourly(board.redis, name="hourly")])
    turn = (await board.waiting())["hourly"]
    filled = await fill(board).run("hourly", MIDNIGHT - 5 * 3600, MIDNIGHT, at_once=2)
    assert words(filled) == ["placed"] * 5
    pod, ran, on = board.pod(), [], []
    while on or not ran:
        for run in await pod.acquire():
            assert decoded(run.spec).trigger == Once(at=float(run.name.partition("@")[2]))
            assert run.acquired_at - run.ready < 60, "it does not count as overdue by its time"
            ran.append(run.name)
            on.append(run)
        assert len(on) == min(2, 5 - len(ran) + len(on))
        await pod.complete(on.pop(0), after=None)
    assert ran == [one.turn for one in filled]
    assert await board.waiting() == {"hourly": turn}


async def test_q26_a_turn_that_was_backfilled_is_not_run_again(board, redis):
    await board.registry.register([await hourly(board.redis, name="hourly")])
    window = (MIDNIGHT - 2 * 3600, MIDNIGHT)
    filled = await fill(board).run("hourly", *window)
    assert words(await fill(board).run("hourly", *window)) == ["already"] * 2, "in line and waiting"
    pod = board.pod()
    run = await pod.one()
    assert words(await fill(board).run("hourly", *window)) == ["already"] * 2, "running"
    await pod.complete(run, after=None)
    await pod.complete(await pod.one(), after=None)
    assert words(await fill(board).run("hourly", *window)) == ["already"] * 2, "ended"
    assert await pod.acquire() == []
    assert await redis.ttl(board.keys.record(filled[0].turn)) > 86400
    assert await redis.hkeys(board.keys.definitions) == [b"hourly"]
    assert words(await fill(board).run("hourly", MIDNIGHT - 3 * 3600, MIDNIGHT)) == [
        "placed",
        "already",
        "already",
    ]


async def test_q27_only_planned_changes_nothing(board, redis):
    await board.registry.register([HOURLY])
    before = sorted(await redis.keys("*"))
    assert words(await fill(board).plan("hourly", MIDNIGHT - 7200, MIDNIGHT)) == ["planned"] * 2
    assert sorted(await redis.keys("*")) == before
    assert len(await board.waiting()) == 1


async def test_q28_removing_the_schedule_ends_its_backfill_and_removing_a_turn_lets_it_go_on(board, redis):
    await board.registry.register([await hourly(board.redis, name="hourly")])
    filled = await fill(board).run("hourly", MIDNIGHT - 4 * 3600, MIDNIGHT)
    assert await board.registry.remove([filled[0].turn]) == [ChangeReply.REMOVED]
    assert filled[1].turn in await board.waiting()
    assert await board.registry.remove(["hourly"]) == [ChangeReply.REMOVED]
    assert await board.waiting() == {}
    assert await redis.keys(board.keys.record("*")) == []


async def test_q29_a_dead_schedulers_turn_of_a_backfill_comes_back(board):
    await board.registry.register([await hourly(board.redis, name="hourly")])
    await fill(board).run("hourly", MIDNIGHT - 3600, MIDNIGHT)
    pod = board.pod()
    lost = await pod.one()
    await board.expire()
    await pod.orphans.reclaim()
    again = await pod.one()
    assert (again.name, again.spec) == (lost.name, lost.spec)


async def test_q30_a_scheduler_runs_it_and_each_agent_knows_its_turn(stage):
    app, ran = App("test"), []
    now = most = 0

    async def work(ctx: Context) -> None:
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0.01)
        now -= 1
        ran.append(ctx.run_id)

    app.register("work", work)
    await stage.board.registry.register([await hourly(stage.board.redis, name="hourly")])
    await stage.start(app)
    end = await redis_now(stage.board.redis) - 3600
    filled = await fill(stage.board).run("hourly", end - 6 * 3600, end, at_once=2)
    await until(lambda: len(ran) >= len(filled))
    assert sorted(ran) == sorted(one.turn for one in filled)
    assert most <= 2


async def test_q31_a_target_gets_runs_that_name_their_turn(stage):
    queue = stage.system.queue
    target = await hourly(stage.board.redis, name="there", target=queue.name)
    await stage.board.registry.register([target])
    running = await stage.start(App("test"))
    submit = running.scheduler._context.submit
    end = await redis_now(stage.board.redis) - 3600
    filled = await fill(stage.board, submit).run("there", end - 3 * 3600, end)
    assert words(filled) == ["placed"] * 3
    assert words(await fill(stage.board, submit).run("there", end - 3 * 3600, end)) == ["already"] * 3
    runs = [await queue.get(run.id) for run in (await queue.list()).runs]
    assert sorted(run.metadata["turn"] for run in runs) == sorted(one.turn for one in filled)


# -- damage


@pytest.mark.parametrize("damaged", ["hourly#backfill", "hourly#line", "#turns"])
async def test_q51_a_key_of_a_backfill_that_was_overwritten_is_thrown_away_and_fails_nobody(board, damaged):
    """The mistake: WRONGTYPE, which is a 500 for who asks, and fails a whole batch of ends."""
    await board.registry.register([HOURLY])
    await board.add("other")
    await fill(board).run("hourly", MIDNIGHT, MIDNIGHT + 3 * 3600)
    key = board.keys.record_prefix + damaged

    async def overwrite() -> None:
        await board.redis.delete(key)
        await board.redis.set(key, "overwritten")

    await overwrite()
    again = await fill(board).run("hourly", MIDNIGHT, MIDNIGHT + 5 * 3600)
    assert words(again)[-2:] == ["placed", "placed"]
    pod = board.pod()
    runs = {run.name: run for run in await pod.acquire()}
    await overwrite()
    ends = [Completion(run.name, run.fence, None) for run in runs.values()]
    assert await pod.completer.complete(ends) == [Ended.COMPLETED] * len(runs)
    await overwrite()
    assert (await board.registry.standing()).registered >= 2, "what a reconcile asks for"
    await overwrite()
    assert await board.registry.remove(["hourly", "other"]) == [ChangeReply.REMOVED] * 2
    await board.redis.delete(key)


@pytest.mark.parametrize("damaged", ["hourly#backfill", "#turns"])
async def test_q52_what_was_thrown_away_is_told_and_counted(board, damaged, log_lines):
    """The mistake: a key that somebody else wrote there is gone, and nobody knows."""
    metrics = Metrics()
    board.registry = ScheduleRegistry(board.redis, board.keys, discarded=counting_discarded(metrics))
    pod = board.pod()
    pod.completer = Completer(board.redis, board.keys, owner=pod.owner, discarded=counting_discarded(metrics))
    await board.registry.register([HOURLY])
    await fill(board).run("hourly", MIDNIGHT, MIDNIGHT + 3 * 3600)
    key = board.keys.record_prefix + damaged

    def told() -> float | None:
        return metrics.registry.get_sample_value("holdfast_schedule_repaired_total", {"kind": "damaged"})

    run = await pod.one()
    assert told() is None, "a sound key is none of it"
    await board.redis.delete(key)
    await board.redis.set(key, "overwritten")
    assert await pod.complete(run) is Ended.COMPLETED
    assert told() == 1
    await board.redis.delete(key)
    await board.redis.set(key, "overwritten")
    assert await board.registry.remove(["hourly"]) == [ChangeReply.REMOVED]
    assert told() == 2
    assert [line["keys"] for line in log_lines() if line["level"] == "error"] == [[key], [key]]
