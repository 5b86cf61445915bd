"""``/schedules`` over real HTTP: made, read, changed, paused, triggered, refused, and each tenant for itself."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from apiserver import key_line
from schedulehand import Board, redis_now
from scheduling import RunningScheduler, scheduling

from holdfast import App
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every

KEYS = (
    key_line("boss"),
    key_line("acme", "acme"),
    key_line("umbrella", "umbrella"),
    key_line("acme-reader", "acme", "read"),
    key_line("acme-sender", "acme", "read+submit"),
)


def wanted(name: str = "nightly", **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"name": name, "agent": "report", "every": "1h"}
    return {key: value for key, value in {**given, **fields}.items() if value is not ...}


async def made(client: httpx.AsyncClient, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    answer = await client.post("/schedules", json=wanted(name, **fields))
    assert answer.status_code == 201, answer.text
    return answer.json()


def problem(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()["detail"]


async def names(client: httpx.AsyncClient, **query: Any) -> list[str]:
    return [each["name"] for each in (await client.get("/schedules", params=query)).json()["schedules"]]


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
    assert moved["trigger"] == {"kind": "once", "at": 2_100_000_000}
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
        async with asyncio.timeout(15):
            while sorted(await names(client)) != ["nightly", "silent"]:
                await asyncio.sleep(0.01)
        view = (await client.get("/schedules/silent")).json()
        assert (view["state"], view["paused"]) == ("paused", "not yet")
    finally:
        await scheduler.stop()


# -- refused


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"every": ..., "cron": "61 * * * *"}, "61"),
        ({"every": ..., "cron": "not a cron"}, "cron"),
        ({"every": ..., "cron": "0 0 30 2 *"}, "0 0 30 2 *"),
        ({"every": ..., "cron": ""}, "expression"),
        ({"every": ..., "cron": "* * * * *", "tz": "Mars/Olympus"}, "Mars/Olympus"),
        ({"every": ..., "cron": "* * * * *", "tz": "../../etc/passwd"}, "zone"),
        ({"every": -5}, "every"),
        ({"every": "-5s"}, "every"),
        ({"every": 0}, "seconds"),
        ({"every": "soon"}, "soon"),
        ({"every": True}, "every"),
        ({"every": "1000000d"}, "seconds"),
        ({"every": ...}, "one of every, cron and at"),
        ({"cron": "* * * * *"}, "every and cron"),
        ({"every": ..., "at": "tomorrow"}, "tomorrow"),
        ({"every": ..., "at": "2030-01-01T00:00:00"}, "time zone"),
        ({"every": ..., "at": -1}, "at"),
        ({"every": ..., "at": 1e300}, "at"),
        ({"starts_at": 20, "ends_at": 10}, "ends_at"),
        ({"starts_at": "9999999-01-01"}, "starts_at"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "-1s"}, "timeout"),
        ({"priority": 10}, "priority"),
        ({"misfire": "panic"}, "misfire"),
        ({"overlap": "twice"}, "overlap"),
        ({"max_runs": -1}, "max_runs"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"colour": "red"}, "colour"),
        ({"source": "code"}, "source"),
        ({"tenant": "a b"}, "tenant"),
        ({"agent": ""}, "agent"),
        ({"agent": ...}, "agent"),
        ({"target": "a b"}, "queue"),
    ],
)
async def test_what_can_t_be_accepted_is_refused_with_its_field(client, board, fields, said):
    assert said in problem(await client.post("/schedules", json=wanted(**fields)), 422)
    assert await board.waiting() == {}


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "ä",
        "a\n",
        "a\0b",
        "*",
        "a#1",
        "a@b",
        "-a",
        "/a",
        "../a",
        "17",
        "1.5",
        "x" * 201,
        "a?b",
        "a%",
    ],
)
async def test_names_that_are_none_are_refused(client, board, name):
    problem(await client.post("/schedules", json=wanted(name)), 422)
    assert await board.waiting() == {}


@pytest.mark.parametrize("body", [b"", b"[]", b"nul", b'{"name": "a"', b'{"name":"\xff"}', b"[" * 100_000])
async def test_bodies_that_are_none_are_refused(client, body):
    problem(await client.post("/schedules", content=body), 422)
    problem(await client.post("/schedules/pause", content=body), 422)


async def test_odd_names_have_paths_of_their_own(client):
    for name in ("a/next", "a", "pause", "a/b/c", "a:b.c-d_e", "a/trigger", "x" * 200):
        view = await made(client, name)
        path = f"/schedules/{quote(name, safe='')}"
        assert (await client.get(path)).json()["name"] == view["name"] == name
        assert (await client.get(f"{path}/next")).json()["name"] == name
        assert (await client.post(f"{path}/pause")).json()["state"] == "paused"
    assert (await client.get("/schedules/a/next")).json().keys() == {"name", "times"}
    assert (await client.get("/schedules/a/b/c")).json()["name"] == "a/b/c"
    assert (await client.delete("/schedules/a%2Fnext")).status_code == 200
    assert (await client.get("/schedules/a")).status_code == 200


async def test_a_body_that_is_too_large_is_refused(api):
    client = (await api(max_body_bytes=2000)).client()
    assert "max_body_bytes" in problem(await client.post("/schedules", json=wanted(input="x" * 3000)), 413)


async def test_an_unknown_agent_or_queue_is_refused_where_they_are_known(api):
    app = App("desk")

    @app.agent
    async def report() -> None: ...

    client = (await api(app)).client()
    assert "did you mean 'report'" in problem(
        await client.post("/schedules", json=wanted(agent="reprt")), 404
    )
    problem(await client.post("/schedules", json=wanted(target="nowhere")), 404)
    await made(client, target="agent-queue")
    problem(await client.patch("/schedules/nightly", json={"agent": "nobody"}), 404)
    problem(await client.patch("/schedules/nightly", json={"target": "nowhere"}), 404)
    assert (await client.get("/schedules/nightly")).json()["agent"] == "report"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"every": "1h", "cron": "* * * * *"}, "every and cron"),
        ({"every": -1}, "every"),
        ({"tz": "UTC"}, "tz"),
        ({"cron": "* * * * *", "tz": "Nowhere/Land"}, "Nowhere/Land"),
        ({"name": "other"}, "name"),
        ({"tenant": "other"}, "tenant"),
        ({"timeout": None}, "timeout"),
        ({"ends_at": 1, "starts_at": 2}, "ends_at"),
    ],
)
async def test_a_wrong_change_changes_nothing(client, change, said):
    before = await made(client)
    assert said in problem(await client.patch("/schedules/nightly", json=change), 422)
    assert (await client.get("/schedules/nightly")).json() == before


async def test_what_the_code_declares_is_changed_in_the_code_and_only_steered_here(client, board):
    await board.registry.register([Schedule(name="coded", agent="report", trigger=Every(seconds=60))])
    assert "in the code" in problem(await client.patch("/schedules/coded", json={"every": 1}), 409)
    assert "in the code" in problem(await client.post("/schedules", json=wanted("coded")), 409)
    view = (await client.post("/schedules/coded/pause", json={"reason": "loud"})).json()
    assert (view["source"], view["state"], view["paused"]) == ("code", "paused", "loud")
    assert (await client.post("/schedules/coded/resume")).json()["state"] == "waiting"
    assert (await client.post("/schedules/coded/trigger")).status_code == 202


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


# -- tenants and roles


async def test_each_tenant_has_its_own_schedules_of_the_same_names(api, board):
    running = await api(keys=KEYS)
    boss, acme, umbrella = (running.client(name) for name in ("boss", "acme", "umbrella"))
    first = await made(acme, input="acme's")
    assert (first["name"], first["tenant"]) == ("nightly", "acme")
    assert (await acme.post("/schedules", json=wanted(input="acme's"))).status_code == 200
    await made(umbrella, input="umbrella's")
    await made(boss, "daily", tenant="acme")
    await made(boss, "nobodys")
    assert await names(acme) == ["daily", "nightly"]
    assert await names(umbrella) == ["nightly"]
    assert await names(boss) == ["acme/daily", "acme/nightly", "nobodys", "umbrella/nightly"]
    assert await names(boss, tenant="umbrella") == ["umbrella/nightly"]
    assert (await acme.get("/schedules/nightly")).json()["input"] == "acme's"
    assert (await boss.get("/schedules/umbrella/nightly")).json()["input"] == "umbrella's"
    problem(await acme.post("/schedules", json=wanted("x", tenant="umbrella")), 422)


@pytest.mark.parametrize("tenant", ["-dash", ".dot", "_", "7", "1.2"])
async def test_every_tenant_that_a_key_may_have_may_have_schedules(api, board, tenant):
    client = (await api(keys=(key_line("them", tenant), key_line("boss")))).client("them")
    assert (await made(client))["tenant"] == tenant
    assert await names(client) == ["nightly"]
    assert (await client.post("/schedules/pause", json={"pattern": "*"})).json()["matched"] == 1
    problem(await client.post("/schedules", json=wanted("x" * 200)), 422)


async def test_another_tenants_schedule_does_not_exist(api, board):
    running = await api(keys=KEYS)
    boss, acme, umbrella = (running.client(name) for name in ("boss", "acme", "umbrella"))
    await made(umbrella, starts_at=2_000_000_000)
    await made(boss, "nobodys")
    missing = problem(await acme.get("/schedules/missing"), 404)
    calls = [
        ("GET", "", None),
        ("GET", "/next", None),
        ("GET", "/explain", None),
        ("POST", "/trigger", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/backfill", {"start": 1, "end": 2}),
        ("PATCH", "", {"input": 1}),
        ("DELETE", "", None),
    ]
    for name in ("nightly", "umbrella/nightly", "nobodys"):
        for method, verb, json in calls:
            answer = await acme.request(method, f"/schedules/{quote(name, safe='')}{verb}", json=json)
            assert problem(answer, 404) == missing.replace("missing", name)
    for pattern in ("*", "../*", "umbrella/*", "*/nightly"):
        done = (await acme.post("/schedules/pause", json={"pattern": pattern})).json()
        assert done["matched"] == 0
        assert await names(acme, pattern=pattern) == []
    assert (await umbrella.get("/schedules/nightly")).json()["state"] == "waiting"


async def test_a_name_in_front_does_not_make_it_the_tenants(api, board):
    """What the code declares is nobody's, also if its name begins like a tenant's."""
    await board.registry.register([Schedule(name="acme/coded", agent="report", trigger=Every(seconds=60))])
    acme = (await api(keys=KEYS)).client("acme")
    assert await names(acme) == []
    problem(await acme.get("/schedules/coded"), 404)
    problem(await acme.post("/schedules/coded/pause"), 404)
    problem(await acme.delete("/schedules/coded"), 404)
    assert (await acme.post("/schedules/pause", json={"pattern": "*"})).json()["matched"] == 0
    problem(await acme.post("/schedules", json=wanted("coded")), 409)


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


async def test_roles_say_who_may_do_what(api):
    running = await api(keys=KEYS)
    acme, reader, sender = (running.client(name) for name in ("acme", "acme-reader", "acme-sender"))
    await made(acme)
    assert (await reader.get("/schedules/nightly/next")).status_code == 200
    problem(await reader.post("/schedules/nightly/trigger"), 403)
    assert (await sender.post("/schedules/nightly/trigger")).status_code == 202
    for method, path in (
        ("POST", "/schedules"),
        ("PATCH", "/schedules/nightly"),
        ("DELETE", "/schedules/nightly"),
        ("POST", "/schedules/nightly/pause"),
        ("POST", "/schedules/resume"),
    ):
        assert "operate" in problem(await sender.request(method, path, json={}), 403)


async def test_the_runs_of_a_tenants_schedule_are_that_tenants(api, system):
    running = await api(keys=KEYS)
    acme, umbrella = running.client("acme"), running.client("umbrella")
    await made(acme, every="1h", target="agent-queue")
    settings = msgspec.structs.replace(system.settings, redis=scheduling(system.settings.redis))
    scheduler = await RunningScheduler(settings, App("none")).ready()
    try:
        async with asyncio.timeout(15):
            while not (runs := (await acme.get("/runs")).json()["runs"]):
                await asyncio.sleep(0.01)
    finally:
        await scheduler.stop()
    assert runs[0]["tenant"] == "acme"
    assert (await umbrella.get("/runs")).json()["runs"] == []
