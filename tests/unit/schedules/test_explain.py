"""Why a schedule does not run now: each reason, in its order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.config import ScheduledAgentSettings
from holdfast.redis.members import Member
from holdfast.schedules.entries import Entry, ScheduleState
from holdfast.schedules.explain import explain
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.selection import Patterns, Shards
from holdfast.schedules.submission import served_queues
from holdfast.schedules.trigger import Every

SCHEDULE = Schedule(name="report", agent="work", trigger=Every(seconds=60))
ABLE = {"agents": "other,work", "capacity": "2", "load": "1"}


def entry(state: ScheduleState = ScheduleState.WAITING, **fields: Any) -> Entry:
    empty = dict.fromkeys(Entry.__struct_fields__)
    known = {"name": "report", "owner": "", "paused": "", "fence": 7, "state": state, "next_at": 90.0}
    return Entry(**empty | known | fields)


def why(found: Entry, schedulers: dict[str, dict[str, str]] | None = None, **options: Any) -> str:
    patterns = Patterns.of(ScheduledAgentSettings(**options.pop("agent", {})))
    live = {"pod": ABLE} if schedulers is None else schedulers
    return explain(found, SCHEDULE, now=100.0, patterns=patterns, schedulers=live, **options)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            entry(ScheduleState.RUNNING, owner="pod", acquired_at=95.0),
            "runs since 5.0 s, in pod under fence 7",
        ),
        (entry(ScheduleState.PAUSED, paused="too loud"), "paused: too loud"),
        (entry(ScheduleState.DONE), "no turn is left"),
        (entry(ScheduleState.MISSING), "lost its place"),
        (entry(next_at=130.0), "not due: its next turn is in 30s"),
        (entry(), "pod should take it at once"),
    ],
)
def test_by_where_it_is(found, said):
    assert said in why(found)


@pytest.mark.parametrize(
    ("schedulers", "options", "said"),
    [
        ({}, {}, "no live scheduler runs schedules"),
        ({"pod": {"agents": "other"}}, {}, "no live scheduler has the agent 'work'"),
        ({"pod": ABLE | {"load": "2"}}, {}, "no permit is free in pod"),
        ({"pod": ABLE | {"capacity": "0", "load": "900"}}, {}, "pod should take it"),
        (
            {"pod": ABLE | {"breakers": "redis=open"}},
            {},
            "a circuit breaker keeps it from being acquired (pod: redis=open)",
        ),
        ({"pod": ABLE | {"breakers": "redis=open"}, "other": ABLE}, {}, "due: other should take it"),
        (
            {"a": ABLE | {"load": "2"}, "b": ABLE | {"breakers": "acquisition=half_open"}},
            {},
            "(b: acquisition=half_open)",
        ),
        ({"pod": ABLE | {"breakers": ""}}, {}, "pod should take it at once"),
        ({"pod": ABLE}, {"agent": {"disabled_pattern": "rep.*"}}, "redis.agent.disabled-pattern keeps it"),
    ],
)
def test_by_who_could_run_it(schedulers, options, said):
    assert said in why(entry(), schedulers, **options)


@pytest.mark.parametrize(
    ("schedulers", "options", "said"),
    [
        (
            {"pod": {"agents": "other"}},
            {},
            "has the agent 'work': deploy it, or end the schedule by `holdfast schedules remove report --force`",
        ),
        ({}, {}, "no live scheduler runs schedules"),
        ({"pod": ABLE}, {"agent": {"disabled_pattern": "rep.*"}}, "redis.agent.disabled-pattern keeps it"),
    ],
)
def test_what_will_keep_it_is_said_before_it_is_due(schedulers, options, said):
    told = why(entry(next_at=130.0), schedulers, **options)
    assert told.startswith("it is not due: its next turn is in 30s; and then ")
    assert said in told


def test_one_that_was_made_at_run_time_is_removed_without_force():
    made = msgspec.structs.replace(SCHEDULE, source="api")
    said = explain(entry(), made, now=100.0, patterns=Patterns(), schedulers={"pod": {"agents": ""}})
    assert said.endswith("`holdfast schedules remove report`")


@pytest.mark.parametrize("due", [90.0, 130.0])
def test_a_target_that_nobody_serves_is_told(due):
    there = msgspec.structs.replace(SCHEDULE, target="medya")

    def told(queues: set[str] | None) -> str:
        return explain(
            entry(next_at=due),
            there,
            now=100.0,
            patterns=Patterns(),
            schedulers={"pod": ABLE},
            queues=queues,
        )

    said = "nobody serves queue 'medya' by these settings; known are default, media"
    assert said in told({"media", "default"})
    assert "nobody serves" not in told({"media", "medya"})
    assert "nobody serves" not in told(None)


def test_a_queue_is_served_by_the_settings_or_by_a_live_worker():
    members = [
        Member("worker", "w", {"queues": "media,default"}),
        Member("api", "a", {"queues": "other"}),
        Member("worker", "old", {}),
    ]
    assert served_queues(["default"], members) == {"default", "media"}


def test_with_shards_only_its_owner_counts():
    owner = Shards("a", ["b", "c"]).owner("report")
    assert f"due: {owner} should" in why(entry(), dict.fromkeys("abc", ABLE), sharded=True)


def test_a_target_needs_no_agent_here():
    there = msgspec.structs.replace(SCHEDULE, target="agent-queue")
    said = explain(entry(), there, now=100.0, patterns=Patterns(), schedulers={"pod": {"agents": ""}})
    assert "pod should take it" in said
