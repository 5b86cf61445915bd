"""``/schedules`` over real HTTP: each tenant for itself, and each role as far as it goes."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from holdfast import App
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from tests.support.api.server import key_line
from tests.support.schedules.manual_scheduler import Board
from tests.support.schedules.schedule_requests import made, names, problem, wanted
from tests.support.schedules.schedulers import RunningScheduler, scheduling
from tests.support.waiting import until

KEYS = (
    key_line("boss"),
    key_line("acme", "acme"),
    key_line("umbrella", "umbrella"),
    key_line("acme-reader", "acme", "read"),
    key_line("acme-sender", "acme", "read+submit"),
)


@pytest.fixture
def board(redis) -> Board:
    return Board(redis)


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
        ("GET", "/turns", None),
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

        async def listed() -> list[dict[str, Any]]:
            return (await acme.get("/runs")).json()["runs"]

        runs = await until(listed)
    finally:
        await scheduler.stop()
    assert runs[0]["tenant"] == "acme"
    (turn,) = (await acme.get("/schedules/nightly/turns")).json()["turns"]
    assert (turn["outcome"], turn["queue"], turn["run_id"]) == ("submitted", "agent-queue", runs[0]["id"])
    assert turn["turn"].startswith("nightly@"), "its name without the tenant"
    assert (await umbrella.get("/runs")).json()["runs"] == []
