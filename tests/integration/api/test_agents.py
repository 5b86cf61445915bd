"""``/agents``: registered agents and who serves them; what was there before points to ``/residents``."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime

import msgspec
import pytest

from holdfast import App
from tests.support.api.server import key_line
from tests.support.processes import forked
from tests.support.schedules.schedule_requests import problem
from tests.support.waiting import until

app = App("tests")


class Ticket(msgspec.Struct):
    id: int
    created_at: datetime


@app.agent
async def sort(ticket: Ticket) -> Ticket:
    """Sort a ticket."""
    return ticket


async def test_without_a_worker_the_list_is_empty_and_says_why(client):
    answer = (await client.get("/agents")).json()
    assert answer["agents"] == []
    assert "no worker is alive: start one with `holdfast worker --app APP`" in answer["note"]
    assert "no live process has an agent 'sort'" in problem(await client.get("/agents/sort"), 404)


async def test_the_api_and_the_command_show_the_same(system, client, redis_settings):
    """Fails if a field of theirs differs, or if a time is put beside a property that is called like one."""
    await system.worker(app)
    shown = (await client.get("/agents/sort")).json()
    assert (await client.get("/agents")).json() == {"agents": [shown], "note": ""}
    assert set(shown["input_schema"]["properties"]) == {"id", "created_at"}
    command = [sys.executable, "-m", "holdfast", "agents", "show", "sort", "--json"]
    environ = {**os.environ, "REDIS_URL": redis_settings.url}
    done = forked.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert json.loads(done.stdout) == shown, done.stderr


async def test_an_api_lists_the_agents_of_its_app_while_no_worker_is_alive(api):
    client = (await api(app)).client()
    listed = await until(
        lambda: client.get("/agents"), lambda answer: bool(answer.json()["agents"]), seconds=60
    )
    (found,) = listed.json()["agents"]
    assert (found["name"], found["description"], found["workers"]) == ("sort", "Sort a ticket.", 0)
    assert listed.json()["note"] == "no worker is alive: runs of these agents wait for one"


async def test_a_catalogue_that_can_not_be_read_leaves_the_names(redis, system, client):
    await system.worker(app)
    (key,) = [key async for key in redis.scan_iter("catalogue:*")]
    await redis.set(key, "not JSON", px=60_000)
    (found,) = (await client.get("/agents")).json()["agents"]
    assert (found["name"], found["input_schema"]) == ("sort", None)


async def test_a_tenant_sees_the_agents_but_not_the_names_of_workers(system, api):
    await system.worker(app)
    running = await api(keys=(key_line("boss"), key_line("acme", "acme", "read")))
    (whole,) = (await running.client("boss").get("/agents")).json()["agents"]
    (own,) = (await running.client("acme").get("/agents")).json()["agents"]
    assert len(whole["served_by"]) == 1
    assert own == {**whole, "served_by": []}
    assert (await running.client("acme").get("/agents/sort")).json() == own


@pytest.mark.parametrize(
    ("method", "path", "new"),
    [
        ("POST", "/agents", "/residents"),
        ("POST", "/agents/clerk-1/messages?wait=1", "/residents/clerk-1/messages"),
        ("POST", "/agents/o%2Fg%2Fa/move", "/residents/o%2Fg%2Fa/move"),
        ("DELETE", "/agents/clerk-1", "/residents/clerk-1"),
        ("GET", "/agents?status=crashed", "/residents"),
        ("GET", "/agents?name=Clerk", "/residents"),
        ("GET", "/agents?limit=5", "/residents"),
    ],
)
async def test_what_was_asked_of_residents_here_is_answered_with_their_path(client, method, path, new):
    answer = await client.request(method, path)
    assert f"use {method} {new}" in problem(answer, 410)
    assert answer.json()["detail"].endswith(new)
    assert answer.json()["type"] == "urn:holdfast:problem:moved"
    assert "residents: `holdfast residents show" in problem(await client.get("/agents/clerk-1"), 404)
