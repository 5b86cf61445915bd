"""O: a running scheduler says how it is, in its log and in its gauges."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import re
import time
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ResponseError

from holdfast import App
from holdfast.config import LogSettings
from holdfast.redis.members import Members
from holdfast.reliability.breaker import BreakerState
from holdfast.schedules.acquisition import Acquisition
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.explain import explain
from holdfast.schedules.registry import ScheduleRegistry
from holdfast.schedules.replies import BATCH, Ended
from holdfast.schedules.report import _PAGES, Filtered, KnownSchedules, backlog_of
from holdfast.schedules.schedule import Schedule, decoded
from holdfast.schedules.selection import Patterns
from holdfast.schedules.trigger import Every, Once
from holdfast.telemetry.logs import configure
from tests.support.schedules.schedulers import stage_of
from tests.support.waiting import until

LINE = re.compile(
    r"Scheduler health \| health=(HEALTHY|DEGRADED) \| \[agents registered=(\d+) active=futures=\d+ scripts=\d+\] "
    r"\[backlog ready=(\d+) oldest_overdue=(\d+)s capacity_per_cycle=(\d+)\] \[permits (\d+)/(\d+) \([\d.]+%\)\] "
    r"\[cleanup zombies_cleaned=\d+ orphans_cleaned=\d+\] queue_depth=\d+"
)


def hourly() -> App:
    app = App("test")

    @app.schedule(every=3600)
    async def work() -> None: ...

    return app


def said(logs: list[dict]) -> list[tuple[re.Match[str], dict]]:
    return [(found, line) for line in logs if (found := LINE.fullmatch(line["event"]))]


async def test_o7_every_period_a_line_says_how_the_scheduler_is(stage, log_lines):
    await stage.start(hourly(), health_summary_period_seconds=0.05, permits=7)

    def at_rest() -> list[tuple[re.Match[str], dict]]:
        """The lines with its schedule, and with no turn and no look that has a permit."""
        return [one for one in said(log_lines()) if one[0].group(2, 3, 5, 6) == ("1", "0", "7", "7")]

    found, line = (await until(at_rest))[0]
    assert (found[1], line["level"], line["problems"]) == ("HEALTHY", "info", [])
    assert found[7] == "7"


@contextlib.asynccontextmanager
async def full(app: App) -> AsyncIterator[None]:
    """Let the one permit of a scheduler be taken by a turn that does not end before this block."""
    free = asyncio.Event()

    @app.schedule(every=3600)
    async def hold() -> None:
        await free.wait()

    yield
    free.set()


async def test_o8_a_degraded_one_warns_and_says_what_is_wrong(stage, log_lines):
    app = hourly()
    async with full(app):
        running = await stage.start(app, health_summary_period_seconds=0.05, permits=1)
        await until(lambda: running.scheduler.permits.free == 0 and len(running.scheduler.running))
        late = Schedule(name="late", agent="work", trigger=Once(at=time.time() - 7200))
        await stage.board.registry.register([late])
        await until(lambda: any(found[1] == "DEGRADED" for found, _ in said(log_lines())))
        found, line = next(one for one in said(log_lines()) if one[0][1] == "DEGRADED")
        assert line["level"] == "warning"
        assert "overdue for 7" in line["problems"][0]
        assert int(found[4]) >= 7200
        assert running.count("schedule_degraded") == 1


@pytest.mark.parametrize("left", ["disabled", "without an agent"])
async def test_o11_what_is_not_run_here_is_no_backlog_and_makes_nobody_degraded(stage, log_lines, left):
    """Fails if schedules that are taken out of the code, or excluded by a pattern, count as overdue."""
    away = {"name": "off", "agent": "work"} if left == "disabled" else {"name": "gone", "agent": "nobody"}
    late = [
        Schedule(**away, trigger=Every(seconds=1)),
        Schedule(**{**away, "name": f"{away['name']}-2"}, trigger=Once(at=time.time() - 7200)),
    ]
    await stage.board.registry.register(late)
    running = await stage.start(
        hourly(), health_summary_period_seconds=0.05, interval_ms=20, agent={"disabled_pattern": "off.*"}
    )
    await until(lambda: running.count("schedule_due_elsewhere") == 2)
    await stage.entry("work", runs=1)  # its own first turn is a backlog until it is run
    lines = len(said(log_lines())) + 1  # the next one may have been measured before that
    await until(lambda: len(said(log_lines())) > lines + 5)
    assert {found[1] for found, _ in said(log_lines())[lines:]} == {"HEALTHY"}
    assert {(found[3], found[4]) for found, _ in said(log_lines())[lines:]} == {("0", "0")}
    assert (running.count("schedule_due"), running.count("schedule_degraded")) == (0, 0)
    for signal in ("capacity_skew", "zero_progress"):
        assert running.count("schedule_signals", kind=signal) == 0
    warned = [line for line in log_lines() if line["event"].startswith("most of the schedules that are due")]
    assert len(warned) == (left == "disabled")


async def test_o17_turns_of_what_is_not_run_here_are_no_backlog_either(board):
    """Such a turn has a name of its own, and may be there before its definition is read."""
    gone = Schedule(name="gone", agent="nobody", trigger=Every(seconds=3600))
    here = Schedule(name="here", agent="work", trigger=Every(seconds=3600))
    await board.registry.register([gone, here])
    known = KnownSchedules(board.registry, {"work"})
    await known.refresh()
    now = (await board.registry.count()).now
    for name in ("gone#1", f"gone@{now:.3f}", "here#1"):
        await board.redis.zadd(board.keys.waiting, {name: now - 10})
    await board.redis.zadd(board.keys.waiting, {"here": now + 60, "gone": now + 60})
    found = await backlog_of(board.registry, await board.registry.count(), lambda *_: True, known)
    assert (found.due, found.elsewhere, set(found.without_agent.values())) == (1, 2, {"nobody"})
    await board.redis.delete(board.keys.waiting)


async def test_o25_behind_any_number_of_others_its_own_are_seen(board):
    """Fails if a scheduler whose own schedules are overdue behind thousands of excluded ones calls itself well."""
    known, now = KnownSchedules(board.registry, {"work"}), time.time()
    others = {f"off-{n}": now - 7200 for n in range((_PAGES + 1) * BATCH)}
    await board.redis.zadd(board.keys.waiting, {**others, "mine": now - 60})
    counts = await board.registry.count()
    found = await backlog_of(board.registry, counts, lambda name, _: name == "mine", known)
    assert (found.due, found.elsewhere, found.earliest) == (1, len(others), pytest.approx(now - 60))
    await board.redis.delete(board.keys.waiting)


async def test_o26_of_schedules_that_are_not_due_only_the_first_pages_are_read(board, monkeypatch):
    known, now, read = KnownSchedules(board.registry, {"work"}), time.time(), []
    await board.redis.zadd(board.keys.waiting, {f"off-{n}": now + 7200 for n in range(20 * BATCH)})
    waiting = board.registry.waiting

    async def counted(start: int, size: int) -> list[tuple[str, float]]:
        read.append(start)
        return await waiting(start, size)

    monkeypatch.setattr(board.registry, "waiting", counted)
    found = await backlog_of(board.registry, await board.registry.count(), lambda *_: False, known)
    assert (found.due, found.elsewhere, found.earliest) == (0, 0, None)
    assert len(read) == _PAGES + 1
    await board.redis.delete(board.keys.waiting)


async def test_o12_schedules_made_at_run_time_count(stage):
    """Fails if only the schedules of the code tell how late is too late."""
    app = App("test")
    async with full(app):
        running = await stage.start(app, health_summary_period_seconds=0.05, permits=1)
        await until(lambda: len(running.scheduler.running) == 1)
        made = Schedule(name="made", agent="hold", trigger=Every(seconds=0.2))
        await stage.board.registry.register([made])
        await until(lambda: running.count("schedule_degraded") == 1)
        assert running.count("schedule_oldest_overdue_seconds") > 0.2


async def test_o13_while_redis_is_away_it_is_degraded_and_says_so(
    redis, patient_settings, fault_proxy, log_lines
):
    app = App("test")

    @app.schedule(every=1)
    async def work() -> None: ...

    async with stage_of(redis, patient_settings) as stage:
        running = await stage.start(app, health_summary_period_seconds=0.05)
        await stage.entry("work", runs=1)
        await until(lambda: running.count("schedule_registered") == 1)
        fault_proxy.refuse()
        await until(lambda: running.count("schedule_degraded") == 1)
        await until(lambda: running.count("schedule_oldest_overdue_seconds") > 1)
        # It may have been late before, on a busy machine: that is another line.
        found, line = await until(
            lambda: next((one for one in said(log_lines()) if "Redis has not answered" in str(one[1])), None)
        )
        assert (found[1], found[2], line["level"]) == ("DEGRADED", "1", "warning")
        assert math.isnan(running.count("schedule_due")), "nobody knows it"
        fault_proxy.heal()
        await until(lambda: running.count("schedule_degraded") == 0)
        await until(lambda: running.count("schedule_due") >= 0)


async def test_o18_what_ran_when_redis_went_away_is_overdue_a_period_later(
    redis, patient_settings, fault_proxy
):
    """Fails if nothing is overdue for ever because nothing waited when Redis was last asked."""
    app, free = App("test"), asyncio.Event()

    @app.schedule(every=1)
    async def work() -> None:
        await free.wait()

    async with stage_of(redis, patient_settings) as stage:
        running = await stage.start(app, health_summary_period_seconds=0.05)
        await until(lambda: running.count("schedule_working") == 1)
        fault_proxy.refuse()
        await until(lambda: running.count("schedule_oldest_overdue_seconds") > 1)
        free.set()
        fault_proxy.heal()


async def test_o24_gauges_are_of_whole_samples(stage, monkeypatch):
    """Fails if a gauge is set before Redis has answered all of a sample: then nothing is overdue while it is away."""
    app, free, asked = App("test"), asyncio.Event(), []

    @app.schedule(every=1)
    async def work() -> None:
        await free.wait()

    async def away(_: ScheduleRegistry, names: list[str]) -> set[str]:
        asked.append(names)
        raise Disconnected("away")

    monkeypatch.setattr(ScheduleRegistry, "active", away)
    running = await stage.start(app, health_summary_period_seconds=0.05)
    await until(lambda: len(running.scheduler.running) == 1)
    before = len(asked)
    await until(lambda: len(asked) > before + 1)
    assert running.count("schedule_working") == running.count("schedule_registered") == 0
    monkeypatch.undo()
    await until(lambda: running.count("schedule_working") == 1)
    free.set()


async def test_o19_the_shortest_period_is_computed_once_for_the_same_definitions_and_shards(board):
    await board.registry.register([Schedule(name="one", agent="work", trigger=Every(seconds=60))])
    known, asked = KnownSchedules(board.registry, {"work"}), []

    def accepts(name: str) -> bool:
        asked.append(name)
        return True

    await known.refresh()
    shards = object()
    assert [await known.shortest(accepts, shards) for _ in range(3)] == [60, 60, 60]
    assert asked == ["one"]
    assert await known.shortest(lambda _: False, object()) is None
    await board.registry.register([Schedule(name="two", agent="work", trigger=Every(seconds=5))])
    await known.refresh()
    assert await known.shortest(accepts, shards) == 5


async def test_o23_the_shortest_period_is_that_of_schedules_with_turns_to_come(board):
    """Fails if a paused or finished schedule decides how late is too late."""
    names = {"hourly": 3600, "paused": 1, "failing": 2, "last": 3}
    every = [Schedule(name=name, agent="work", trigger=Every(seconds=s)) for name, s in names.items()]
    await board.registry.register(every)
    known, pod = KnownSchedules(board.registry, {"work"}), board.pod()

    async def shortest() -> float | None:
        await known.refresh()
        return await known.shortest(lambda _: True)

    assert await shortest() == 1
    await board.registry.pause(["paused"])
    assert await shortest() == 2
    await board.make_due("failing")
    failing = await pod.one()
    assert await pod.complete(failing, outcome="failed", streak=1, pause_after=1) is Ended.PAUSED
    assert await shortest() == 3
    await board.make_due("last")
    await pod.complete(await pod.one(), after=None)
    assert (await board.entry("last")).state is ScheduleState.DONE
    assert await shortest() == 3600
    await board.registry.resume(["paused"])
    assert await shortest() == 1


async def test_o24_the_turn_of_an_overlap_that_pauses_its_schedule_is_noticed_too(board):
    work = Schedule(name="work", agent="work", trigger=Every(seconds=1), overlap="allow")
    await board.registry.register([work])
    before = await board.registry.standing()
    await board.redis.hset(board.keys.definitions, "work#1", b"{}")
    await board.redis.zadd(board.keys.waiting, {"work#1": 1.0})
    await board.redis.zrem(board.keys.waiting, "work")
    pod = board.pod()
    await pod.complete(await pod.one(), outcome="failed", streak=1, pause_after=1)
    assert (await board.entry("work")).paused
    assert await board.registry.standing() != before


@pytest.mark.parametrize("sharding", ["none", "rendezvous"])
async def test_o14_watchdogs_look_at_what_is_run_here_also_with_shards(stage, sharding):
    """Nothing can be acquired although something is due and permits are free: somebody must bark."""
    running = await stage.start(hourly(), interval_ms=20, sharding=sharding)
    await stage.entry("work", runs=1)
    await until(lambda: sharding == "none" or running.scheduler.shards is not None)

    async def nothing(limit: int, *_: object) -> Acquisition:
        return Acquisition([], 0.0, time.time(), None, backlog=5, due=5)

    running.scheduler._acquirer.acquire = nothing
    await until(lambda: running.count("schedule_signals", kind="zero_progress") == 1)
    await until(lambda: running.count("schedule_signals", kind="capacity_skew") == 1)


async def test_o15_looks_that_an_open_breaker_prevents_are_counted(stage):
    running = await stage.start(
        hourly(), interval_ms=20, health_summary_period_seconds=0.05, breaker={"cooldown_ms": 3_600_000}
    )
    breaker = running.scheduler.breakers.acquisition
    while breaker.state is BreakerState.CLOSED:
        # An error of Redis, not its absence: the breaker stays open though Redis answers.
        with contextlib.suppress(ResponseError), breaker.guard():
            raise ResponseError("a broken script")
    await until(
        lambda: running.count("schedule_breaker_events_total", kind="acquisition", reason="blocked") > 2
    )


async def test_o20_permits_that_nothing_runs_with_are_suspected_while_schedules_wait(stage):
    """Fails if only a look tells what is due: without a free permit there is none."""
    running = await stage.start(hourly(), permits=1, interval_ms=20, health_summary_period_seconds=0.05)
    await stage.entry("work", runs=1)
    await until(lambda: not running.scheduler.running)
    permits = running.scheduler.permits
    await until(lambda: permits.take(1), what="the permit, which a look takes for a moment")
    late = Schedule(name="late", agent="work", trigger=Once(at=time.time() - 60))
    await stage.board.registry.register([late])
    await until(lambda: running.count("schedule_signals", kind="permit_leak_suspect") == 1)
    permits.give(1)
    await until(lambda: running.count("schedule_signals", kind="permit_leak_suspect") == 0)


async def test_o21_an_error_that_redis_answers_with_is_no_silence(stage, log_lines):
    running = await stage.start(hourly(), health_summary_period_seconds=0.05)
    await stage.entry("work", runs=1)
    await stage.board.redis.set(stage.board.keys.waiting, "overwritten")
    found, line = await until(
        lambda: next((one for one in said(log_lines()) if "WRONGTYPE" in str(one[1]["problems"])), None)
    )
    assert (found[1], line["level"]) == ("DEGRADED", "warning")
    assert "Redis refuses to count schedules" in line["problems"][0]
    assert not any("has not answered" in str(line["problems"]) for _, line in said(log_lines()))
    assert running.count("schedule_degraded") == 1
    await stage.board.redis.delete(stage.board.keys.waiting)


def test_o22_a_scheduler_that_excludes_most_of_what_is_due_warns_once(log_lines):
    filtered = Filtered()
    for here, excluded in [(5, 6), (5, 6), (6, 6), (5, 6), (0, 6)]:
        filtered.look(here, excluded)
    assert log_lines() == []
    for _ in range(3):
        filtered.look(5, 6)
    (line,) = log_lines()
    assert (line["level"], line["excluded"], line["here"]) == ("warning", 6, 5)
    assert "disabled-pattern" in line["advice"]


@pytest.mark.parametrize("period", [0.0, -1.0])
async def test_o9_without_a_period_nothing_is_said_but_the_gauges_are_set(stage, period, log_lines):
    running = await stage.start(hourly(), health_summary_period_seconds=period)
    await until(lambda: running.count("schedule_capacity") > 0)
    assert said(log_lines()) == []


async def test_o10_an_open_breaker_is_told_in_the_members_record_and_barked_at_and_explained(stage):
    board = stage.board
    await board.registry.register([Schedule(name="due", agent="work", trigger=Once(at=1.0))])
    entry = await board.entry("due")
    await board.redis.set(board.keys.waiting, "overwritten")
    running = await stage.start(
        hourly(), "pod", interval_ms=20, breaker={"failure_threshold": 3, "cooldown_ms": 3_600_000}
    )
    members = Members(prefix="", heartbeat_seconds=1.0)
    found = await until(
        lambda: members.find(board.redis, "scheduler", "pod"),
        lambda found: found and found.fields["breakers"],
    )
    assert found.fields["breakers"] == "acquisition=open"
    why = explain(
        entry, decoded(entry.spec), now=time.time(), patterns=Patterns(), schedulers={"pod": found.fields}
    )
    assert why == "it is due, but a circuit breaker keeps it from being acquired (pod: acquisition=open)"
    await until(lambda: running.count("schedule_signals", kind="redis_stall") == 1)
    await board.redis.delete(board.keys.waiting)


async def test_o16_with_the_level_debug_the_log_has_every_look_and_every_end(stage, log_lines):
    assert log_lines() == []  # and it puts the loggers back
    stream = io.StringIO()
    configure(LogSettings(format="json", level="DEBUG"), stream)
    await stage.start(hourly())
    await stage.entry("work", runs=1)
    lines = await until(
        lambda: [json.loads(line) for line in stream.getvalue().splitlines()],
        lambda lines: (
            {"due schedules acquired", "turn ends reported", "schedules registered"}
            <= {line["event"] for line in lines}
        ),
    )
    looks = [line for line in lines if line["event"] == "due schedules acquired"]
    assert (looks[0]["level"], max(line["acquired"] for line in looks)) == ("debug", 1)
