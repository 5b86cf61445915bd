"""``/schedules`` over real HTTP: what can't be accepted is refused, and says why."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from holdfast import App
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Every
from tests.support.schedules.manual_scheduler import Board
from tests.support.schedules.schedule_requests import made, problem, wanted


@pytest.fixture
def board(redis) -> Board:
    return Board(redis)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"every": ..., "cron": "61 * * * *"}, "61"),
        ({"every": ..., "cron": "not a cron"}, "cron"),
        ({"every": ..., "cron": "0 0 30 2 *"}, "0 0 30 2 *"),
        ({"every": ..., "cron": ""}, "cron: "),
        ({"every": ..., "cron": "* * * * *", "tz": "Mars/Olympus"}, "Mars/Olympus"),
        ({"every": ..., "cron": "* * * * *", "tz": "../../etc/passwd"}, "tz: "),
        ({"every": -5}, "every"),
        ({"every": "-5s"}, "every"),
        ({"every": 0}, "every: "),
        ({"every": "soon"}, "soon"),
        ({"every": True}, "every"),
        ({"every": "1000000d"}, "every: "),
        ({"every": ...}, "give exactly one of every, cron and at"),
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
    assert (await client.get("/schedules/a/next")).json().keys() == {"name", "times", "times_iso"}
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
