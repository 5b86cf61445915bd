"""O: a running scheduler says how it is, in its log and in its gauges."""

from __future__ import annotations

import re
import time

import pytest

from holdfast import App
from holdfast.redis.members import Members
from holdfast.schedules.explain import explain
from holdfast.schedules.patterns import Patterns
from holdfast.schedules.schedule import Schedule, decoded
from holdfast.schedules.trigger import Once
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


async def test_o8_a_degraded_one_warns_and_says_what_is_wrong(stage, log_lines):
    late = Schedule(name="late", agent="nobody", trigger=Once(at=time.time() - 7200))
    await stage.board.registry.register([late])
    running = await stage.start(hourly(), health_summary_period_seconds=0.05)
    await until(lambda: any(found[1] == "DEGRADED" for found, _ in said(log_lines())))
    found, line = next(one for one in said(log_lines()) if one[0][1] == "DEGRADED")
    assert line["level"] == "warning"
    assert "overdue for 7" in line["problems"][0]
    assert int(found[4]) >= 7200
    assert running.count("schedule_degraded") == 1


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
