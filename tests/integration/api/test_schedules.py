"""``/schedules`` over real HTTP: made, read, changed, paused, triggered and listed."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import datetime

import msgspec
import pytest

from holdfast import App
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from tests.support.schedules.manual_scheduler import Board, redis_now
from tests.support.schedules.schedule_requests import made, names, problem, wanted
from tests.support.schedules.schedulers import RunningScheduler, scheduling
from tests.support.waiting import until


@pytest.fixture
def board(redis) -> Board:
    return Board(redis)


# -- made, read, changed, removed


async def test_a_schedule_is_made_read_changed_and_removed(client, board):
    answer = await client.post(
        "/schedules",
        json={
            "name": "nightly",
            "agent": "report",
            "cron": "30 3 * * *",
            "tz": "Europe/Berlin",
            "timeout": "90s",
            "error_interval": 5,
            "input": {"day": "yesterday"},
            "starts_at": "2030-01-31T07:00:00+01:00",
            "metadata": {"team": "sales"},
            "misfire": "skip",
            "priority": 2,
        },
    )
    assert answer.status_code == 201
    assert answer.headers["location"] == "/schedules/nightly"
    view = answer.json()
    assert view["trigger"] == {"kind": "cron", "expression": "30 3 * * *", "zone": "Europe/Berlin"}
    assert (view["timeout_seconds"], view["error_seconds"], view["priority"]) == (90, 5, 2)
    assert (view["starts_at"], view["source"], view["state"]) == (1896069600, "api", "waiting")
    assert (view["starts_at_iso"][:19], view["ends_at_iso"]) == ("2030-01-31T06:00:00", "")
    assert (await client.get("/schedules/nightly")).json() == view

    changed = await client.patch("/schedules/nightly", json={"tz": "UTC", "input": None, "timeout": 60})
    assert changed.status_code == 200
    view = changed.json()
    assert view["trigger"] == {"kind": "cron", "expression": "30 3 * * *", "zone": "UTC"}
    assert (view["input"], view["timeout_seconds"], view["metadata"]) == (None, 60, {"team": "sales"})

    removed = await client.delete("/schedules/nightly")
    assert removed.json()["name"] == "nightly"
    assert "nightly" in problem(await client.get("/schedules/nightly"), 404)
    problem(await client.delete("/schedules/nightly"), 404)
    assert await board.waiting() == {}


async def test_the_same_again_is_the_same_and_another_one_is_refused(client):
    await made(client)
    again = await client.post("/schedules", json=wanted())
    assert again.status_code == 200
    assert "already" in problem(await client.post("/schedules", json=wanted(every="2h")), 409)


async def test_a_change_keeps_the_turn_unless_the_trigger_changes(client):
    first = (await made(client, every="1h", starts_at=2_000_000_000))["next_at"]
    other = (await client.patch("/schedules/nightly", json={"input": 1})).json()
    assert (other["next_at"], other["input"]) == (first, 1)
    moved = (await client.patch("/schedules/nightly", json={"at": 2_100_000_000})).json()
    assert moved["next_at"] == 2_100_000_000
    iso = "2036-07-18T13:20:00.000+00:00"
    assert moved["trigger"] == {"kind": "once", "at": 2_100_000_000, "at_iso": iso}
    assert moved["revision"] > other["revision"]


async def test_what_was_made_survives_a_flush_and_comes_back_with_a_scheduler(api, system, redis, board):
    running = await api()
    client = running.client()
    await made(client, starts_at=2_000_000_000)
    await made(client, "silent", paused=True, reason="not yet")
    await redis.execute_command("FLUSHALL", "SYNC")
    settings = msgspec.structs.replace(
        system.settings,
        redis=scheduling(system.settings.redis),
        database=running.process._settings.database,
    )
    scheduler = await RunningScheduler(settings, App("none")).ready()
    try:
        await until(lambda: names(client), lambda found: sorted(found) == ["nightly", "silent"])
        view = (await client.get("/schedules/silent")).json()
        assert (view["state"], view["paused"]) == ("paused", "not yet")
    finally:
        await scheduler.stop()


# -- pausing, triggering, looking


async def test_one_is_paused_with_its_reason_and_resumed(client, board):
    turn = (await made(client, starts_at=2_000_000_000))["next_at"]
    paused = (await client.post("/schedules/nightly/pause", json={"reason": "the database moves"})).json()
    assert (paused["state"], paused["paused"]) == ("paused", "the database moves")
    assert paused["paused_since"] == pytest.approx(await redis_now(board.redis), abs=30)
    again = (await client.post("/schedules/nightly/pause", json={"reason": "another"})).json()
    assert (again["paused"], again["paused_since"]) == ("the database moves", paused["paused_since"])
    resumed = (await client.post("/schedules/nightly/resume")).json()
    assert (resumed["state"], resumed["next_at"], resumed["paused"]) == ("waiting", turn, "")
    for verb in ("pause", "resume", "trigger"):
        problem(await client.post(f"/schedules/nobody/{verb}"), 404)
    problem(await client.post("/schedules/nightly/pause", json={"reasn": 1}), 422)


async def test_many_are_paused_and_resumed_by_a_pattern(client):
    for name in ("nightly-a", "nightly-b", "daily"):
        await made(client, name)
    await client.post("/schedules/nightly-a/pause")
    done = (await client.post("/schedules/pause", json={"pattern": "nightly-*", "reason": "all"})).json()
    assert done == {"matched": 2, "changed": 1, "names": ["nightly-b"]}
    assert await names(client, state="paused") == ["nightly-a", "nightly-b"]
    done = (await client.post("/schedules/resume", json={"pattern": "*"})).json()
    assert (done["matched"], done["changed"]) == (3, 2)
    none = (await client.post("/schedules/resume", json={"pattern": "[z"})).json()
    assert none == {"matched": 0, "changed": 0, "names": []}


async def test_a_triggered_one_is_due_now_and_keeps_its_turn(client, board):
    await made(client, starts_at=2_000_000_000)
    answer = await client.post("/schedules/nightly/trigger")
    assert (answer.status_code, answer.json()) == (202, {"name": "nightly", "status": "triggered"})
    run = await board.pod().one()
    assert run.triggered
    again = await client.post("/schedules/nightly/trigger")
    assert again.json()["status"] == "buffered"
    assert (await client.get("/schedules/nightly")).json()["state"] == "running"


async def test_the_next_turns_and_the_reason_why_it_waits(client):
    await made(client, every="1h", starts_at=2_000_000_000, max_runs=3)
    times = (await client.get("/schedules/nightly/next", params={"count": 10})).json()["times"]
    assert times == [2_000_000_000, 2_000_003_600, 2_000_007_200]
    for count in ("0", "1001", "x"):
        problem(await client.get("/schedules/nightly/next", params={"count": count}), 422)
    why = (await client.get("/schedules/nightly/explain")).json()
    assert why["state"] == "waiting"
    assert "not due" in why["because"][0]
    await client.post("/schedules/nightly/pause", json={"reason": "enough"})
    assert "enough" in (await client.get("/schedules/nightly/explain")).json()["because"][0]
    problem(await client.get("/schedules/nobody/next"), 404)
    problem(await client.get("/schedules/nobody/explain"), 404)


async def test_a_backfill_runs_each_turn_of_a_window_once(client, system, board):
    await made(client, cron="0 * * * *", every=..., target="agent-queue")
    window = {"start": "2024-01-01T00:00:00Z", "end": "2024-01-01T03:00:00Z"}
    plan = (await client.post("/schedules/nightly/backfill", json={**window, "dry_run": True})).json()
    assert [turn["status"] for turn in plan["turns"]] == ["planned"] * 3
    assert (await client.get("/runs")).json()["runs"] == []
    for status in ("placed", "already"):
        answer = await client.post("/schedules/nightly/backfill", json=window)
        assert answer.status_code == 202
        assert [turn["status"] for turn in answer.json()["turns"]] == [status] * 3
    assert len((await client.get("/runs")).json()["runs"]) == 3
    problem(await client.post("/schedules/nightly/backfill", json={**window, "limit": 2}), 422)
    problem(await client.post("/schedules/nightly/backfill", json={**window, "end": 0}), 422)
    problem(await client.post("/schedules/nobody/backfill", json=window), 404)


async def test_a_backfill_into_a_full_queue_says_so_and_when_to_come_back(system, api):
    small = msgspec.structs.replace(system.settings.queue, max_depth=1)
    system.settings = msgspec.structs.replace(system.settings, queue=small)
    client = (await api()).client()
    await made(client, cron="0 * * * *", every=..., target="agent-queue")
    window = {"start": "2024-01-01T00:00:00Z", "end": "2024-01-01T03:00:00Z", "at_once": 3}
    answer = await client.post("/schedules/nightly/backfill", json=window)
    assert "max_depth" in problem(answer, 429)
    assert int(answer.headers["retry-after"]) > 0


# -- lists


async def test_lists_have_filters(client, board):
    await board.registry.register([Schedule(name="coded", agent="other", trigger=Every(seconds=60))])
    await made(client, "a1")
    await made(client, "a2", paused=True)
    assert await names(client) == ["a1", "a2", "coded"]
    assert await names(client, pattern="a*") == ["a1", "a2"]
    assert await names(client, state="paused") == ["a2"]
    assert await names(client, agent="other") == ["coded"]
    assert await names(client, source="api", state="waiting") == ["a1"]
    assert await names(client, tenant="acme") == []
    for query in ({"state": "asleep"}, {"limit": 0}, {"limit": 201}, {"cursor": "x"}, {"cursor": "e30"}):
        problem(await client.get("/schedules", params=query), 422)


@pytest.mark.parametrize("count", [25, 700])
async def test_pages_bring_every_schedule_once(client, board, count):
    """A small hash comes as one batch, a large one in many."""
    await board.registry.register(
        [Schedule(name=f"s{n:04}", agent="report", trigger=Every(seconds=60)) for n in range(count)]
    )
    found: list[str] = []
    cursor, pages = "", 0
    while True:
        page = (await client.get("/schedules", params={"limit": 10, "cursor": cursor})).json()
        assert len(page["schedules"]) <= 10
        found += [each["name"] for each in page["schedules"]]
        cursor, pages = page["cursor"], pages + 1
        if not cursor:
            break
    assert sorted(found) == [f"s{n:04}" for n in range(count)]
    assert pages >= count // 10


async def test_a_definition_that_can_t_be_read_is_shown_and_can_be_removed(client, board, redis):
    await board.add("broken")
    view = (await client.get("/schedules/broken")).json()
    assert (view["state"], view["trigger"], view["agent"]) == ("waiting", None, "")
    assert (await client.get("/schedules/broken/next")).json()["times"] == []
    assert "can't be read" in (await client.get("/schedules/broken/explain")).json()["because"][0]
    assert (await client.delete("/schedules/broken")).status_code == 200


async def test_one_that_the_code_declares_is_not_removed_but_by_force(client, board):
    """The mistake: 200, and it is back at the next refresh."""
    await board.registry.register([Schedule(name="coded", agent="report", trigger=Every(seconds=60))])
    said = problem(await client.delete("/schedules/coded"), 409)
    assert "declared in the code" in said
    assert "pause it" in said
    assert await names(client) == ["coded"]
    assert (await client.delete("/schedules/coded?force=true")).json()["name"] == "coded"
    assert await names(client) == []


async def test_the_last_error_is_told_with_its_time(client, board):
    await made(client, every="1s")
    await board.make_due()
    pod = board.pod()
    await pod.complete(await pod.one(), after=-1, outcome="failed", error="ValueError: no", streak=1)
    await pod.complete(await pod.one())
    view = (await client.get("/schedules/nightly")).json()
    assert (view["last_outcome"], view["last_error"]) == ("succeeded", "ValueError: no")
    assert 0 < view["last_error_at"] <= view["last_end"]


async def test_past_turns_are_read_with_their_times_as_text(client, board):
    await made(client, every="1s")
    assert (await client.get("/schedules/nightly/turns")).json() == {"name": "nightly", "turns": []}
    await board.make_due()
    pod = board.pod()
    runs = [await pod.one()]
    await pod.complete(runs[0], after=-1)
    runs.append(await pod.one())
    await pod.complete(runs[1])
    last, first = (await client.get("/schedules/nightly/turns")).json()["turns"]
    assert [first["fence"], last["fence"]] == [run.fence for run in runs]
    assert (first["outcome"], first["owner"], first["attempt"]) == ("succeeded", "pod", 1)
    for field in ("planned_at", "started_at", "ended_at"):
        read = datetime.fromisoformat(first[f"{field}_iso"]).timestamp()
        assert read == pytest.approx(first[field], abs=0.001)
    assert (await client.get("/schedules/nightly/turns?limit=1")).json()["turns"] == [last]
    for limit in (0, 1001):
        problem(await client.get("/schedules/nightly/turns", params={"limit": limit}), 422)
    problem(await client.get("/schedules/nobody/turns"), 404)


async def test_while_the_database_is_away_nothing_is_half_made(api, board, tmp_path):
    client = (await api()).client()
    await made(client, "before")
    with contextlib.closing(sqlite3.connect(tmp_path / "holdfast.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # somebody else writes, and does not come to an end
        answer = await client.post("/schedules", json=wanted())
        problem(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1
        problem(await client.post("/schedules/before/pause"), 503)
    assert await names(client, state="waiting") == ["before"]
    await made(client)
