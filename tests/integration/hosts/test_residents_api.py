"""``/residents`` and ``/hosts`` over real HTTP, with a real host behind them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from holdfast.client.client import Client
from holdfast.config import ApiSettings, DatabaseSettings, RedisSettings
from holdfast.hosts.factory import members_of
from holdfast.redis.members import Member
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi, key_line
from tests.support.hosts.host_processes import Cluster, agent, cluster_of
from tests.support.processes import forked
from tests.support.redis.valkey_process import free_port
from tests.support.schedules.schedule_requests import problem
from tests.support.waiting import until

APP = str(Path(__file__).with_name("residents.py")) + ":app"
KEYS = (
    key_line("boss"),
    key_line("acme", "acme"),
    key_line("umbrella", "umbrella"),
    key_line("acme-reader", "acme", "read"),
    key_line("acme-sender", "acme", "read+submit"),
)


@pytest.fixture
async def cluster(redis, redis_settings, tmp_path) -> AsyncIterator[Cluster]:
    async with cluster_of(redis_settings) as cluster:
        yield cluster


@pytest.fixture
async def api(cluster: Cluster, tmp_path) -> AsyncIterator[Any]:
    started: list[RunningApi] = []

    async def start(*keys: str, redis: RedisSettings | None = None) -> RunningApi:
        settings = msgspec.structs.replace(
            cluster.settings,
            redis=redis or cluster.settings.redis,
            api=ApiSettings(port=0, linger_seconds=0.0, janitor=False, relay=False, keys=keys),
            database=DatabaseSettings(path=str(tmp_path / "state.sqlite")),
        )
        started.append(await RunningApi(ApiProcess(settings)).ready())
        return started[-1]

    yield start
    for running in started:
        await running.close()


async def hosts(cluster: Cluster, tmp_path: Path, *names: str) -> None:
    database = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite"), "MAX_ATTEMPTS": "2"}
    await cluster.start(*names, app=APP, **database)


def path(agent_id: str, verb: str = "") -> str:
    return f"/residents/{quote(agent_id, safe='')}{verb}"


async def say(client: httpx.AsyncClient, agent_id: str, message: Any, wait: float = 60, **more: Any) -> Any:
    answer = await client.post(
        path(agent_id, "/messages"), params={"wait": wait}, json={"message": message}, timeout=90, **more
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_resident_from_its_start_to_its_end(cluster, api, tmp_path):
    await hosts(cluster, tmp_path, "a", "b")
    client = (await api()).client()
    wanted = {"id": "front/clerk", "resident": "Clerk", "input": "good day", "needs": {"labels": ["clerk"]}}
    made = await client.post("/residents", json=wanted)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == "/residents/front%2Fclerk"
    first = made.json()
    assert (first["name"], first["status"], first["input"]) == ("Clerk", "running", "good day")
    assert (first["mailbox"]["queue"], first["needs"]["labels"]) == ("mailbox:front.2Fclerk", ["clerk"])
    again = await client.post("/residents", json=wanted)
    assert (again.status_code, again.json()["pid"]) == (200, first["pid"])
    for other in ({"input": "else"}, {"resident": "sick"}, {"needs": {}}):
        assert "is taken" in problem(await client.post("/residents", json={**wanted, **other}), 409)

    told = await say(client, "front/clerk", {"name": "Ada"})
    assert (told["status"], told["result"]["said"], told["id"]) == (
        "succeeded",
        "good day Ada",
        "front/clerk",
    )
    failed = await say(client, "front/clerk", {"fails": True})
    assert (failed["status"], "result" in failed) == ("failed", False)
    assert "no such form" in failed["error"]["message"]
    queued = await client.post(path("front/clerk", "/messages"), json={"message": {"name": "Bob"}})
    assert (queued.status_code, queued.json()["queue"]) == (202, "mailbox:front.2Fclerk")
    run = f"/runs/{queued.json()['run_id']}"
    ended = await client.get(f"{run}/result", params={"queue": "mailbox:front.2Fclerk", "wait": 30})
    assert ended.json()["result"]["said"] == "good day Bob"
    letters = (await client.get("/deadletters", params={"queue": "mailbox:front.2Fclerk"})).json()["letters"]
    assert [letter["run_id"] for letter in letters] == [failed["run_id"]]
    problem(await client.get(run), 404)  # without its queue, only configured ones are looked through

    read = (await client.get("/residents/front/clerk")).json()
    assert (read["id"], read["mailbox"]["dead"]) == ("front/clerk", 1)
    target = "a" if first["host"] == "b" else "b"
    problem(await client.post(path("front/clerk", "/move"), json={"host": "nowhere"}), 404)
    assert (await client.get(path("front/clerk"))).json()["pid"] == first["pid"]  # nothing was stopped
    moved = (await client.post(path("front/clerk", "/move"), json={"host": target})).json()
    assert (moved["host"], moved["fence"] > first["fence"]) == (target, True)
    back = (await client.post(path("front/clerk", "/move"))).json()
    assert back["host"] == first["host"]
    assert (await say(client, "front/clerk", {"name": "Cid"}))["result"]["seen"] == 3

    was = await client.delete(path("front/clerk"))
    assert (was.status_code, was.json()["host"], was.json()["status"]) == (200, first["host"], "stopped")
    for method, verb, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/move", {}),
        ("POST", "/messages", {"message": 1}),
    ):
        answer = await client.request(method, path("front/clerk", verb), json=body)
        assert "there is no resident 'front/clerk'" in problem(answer, 404)


async def test_commands_print_the_bytes_that_the_api_returns(cluster, api, tmp_path):
    await hosts(cluster, tmp_path, "a")
    client = (await api()).client()

    async def printed(*words: str) -> bytes:
        command = [sys.executable, "-m", "holdfast", "residents", *words, "--json"]
        environ = {**os.environ, "REDIS_URL": cluster.settings.redis.url}
        done = await asyncio.to_thread(
            forked.run, command, stdout=subprocess.PIPE, env=environ, check=True, timeout=60
        )
        return done.stdout

    async def read() -> bytes:
        return msgspec.json.format((await client.get("/residents/clerk")).content, indent=2) + b"\n"

    begun = await printed("start", "Clerk", "clerk", '"good day"', "--needs", '{"labels": ["clerk"]}')
    assert begun == await read()
    assert await printed("move", "clerk") == await read()
    shown = await read()
    assert await printed("stop", "clerk") == shown.replace(b'"running"', b'"stopped"')


async def test_the_same_key_is_the_same_message(cluster, api, tmp_path):
    await hosts(cluster, tmp_path, "a")
    client = (await api()).client()
    await client.post("/residents", json={"id": "clerk", "resident": "Clerk"})
    key = {"headers": {"Idempotency-Key": "once"}}
    first = await say(client, "clerk", {"name": "Ada"}, **key)
    second = await say(client, "clerk", {"name": "Ada"}, wait=0, **key)
    assert first == second
    assert (await say(client, "clerk", {"name": "Bob"}))["result"]["seen"] == 2
    problem(
        await client.post("/residents/clerk/messages", json={}, headers={"Idempotency-Key": "x" * 200}), 422
    )


async def test_agents_are_listed_by_pages_and_by_what_they_are(cluster, api, tmp_path):
    await hosts(cluster, tmp_path, "a", "b")
    await asyncio.gather(*(cluster.engine.run(agent(f"idle-{n}")) for n in range(7)))
    client = (await api()).client()
    await client.post("/residents", json={"id": "clerk", "resident": "Clerk"})
    every = (await client.get("/residents")).json()
    assert (len(every["residents"]), every["cursor"]) == (8, "")
    paged, cursor = list[str](), ""
    while True:
        page = (await client.get("/residents", params={"limit": 3, "cursor": cursor})).json()
        paged += [each["id"] for each in page["residents"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert paged == [each["id"] for each in every["residents"]]
    assert paged[-1] == "clerk"  # oldest first
    (clerk,) = (await client.get("/residents", params={"name": "Clerk"})).json()["residents"]
    assert (clerk["id"], clerk["entry"]) == ("clerk", "resident")
    on = {name: (await client.get("/residents", params={"host": name})).json()["residents"] for name in "ab"}
    assert len(on["a"]) + len(on["b"]) == 8
    assert (await client.get("/residents", params={"status": "crashed"})).json()["residents"] == []
    for wrong in ({"cursor": "nonsense"}, {"status": "asleep"}, {"limit": 0}):
        problem(await client.get("/residents", params=wrong), 422)

    found = (await client.get("/hosts")).json()["hosts"]
    assert [(host["name"], host["state"], host["capacity"]) for host in found] == [
        ("a", "ready", 100),
        ("b", "ready", 100),
    ]
    one = (await client.get("/hosts/a")).json()
    assert one["agent_ids"] == sorted(each["id"] for each in on["a"])
    problem(await client.get("/hosts/c"), 404)
    # A plain agent has no mailbox, and its record says nothing of an input.
    idle = (await client.get("/residents/idle-0")).json()
    assert (idle["mailbox"], idle["input"]) == (None, None)
    assert "another framework" in problem(await client.post("/residents/idle-0/messages", json={}), 409)


async def test_each_tenant_has_its_own_agents_and_each_role_goes_as_far_as_it_goes(cluster, api, tmp_path):
    await hosts(cluster, tmp_path, "a")
    running = await api(*KEYS)
    boss, acme, umbrella, reader, sender = (
        running.client(name) for name in ("boss", "acme", "umbrella", "acme-reader", "acme-sender")
    )
    clerk = {"id": "clerk", "resident": "Clerk"}
    mine = (await acme.post("/residents", json=clerk)).json()
    assert (mine["id"], mine["tenant"], mine["address"]) == ("clerk", "acme", "")
    assert (await umbrella.post("/residents", json=clerk)).status_code == 201
    assert (await boss.post("/residents", json={**clerk, "id": "spare", "tenant": "acme"})).status_code == 201
    problem(await acme.post("/residents", json={**clerk, "id": "x", "tenant": "umbrella"}), 422)
    again = await boss.post("/residents", json={**clerk, "id": "acme/clerk"})
    assert (again.status_code, again.json()["tenant"], again.json()["pid"]) == (200, "acme", mine["pid"])

    async def ids(client: httpx.AsyncClient, **query: str) -> list[str]:
        return sorted(
            each["id"] for each in (await client.get("/residents", params=query)).json()["residents"]
        )

    assert await ids(acme) == ["clerk", "spare"]
    assert await ids(umbrella) == ["clerk"]
    assert await ids(boss) == ["acme/clerk", "acme/spare", "umbrella/clerk"]
    assert await ids(boss, tenant="umbrella") == ["umbrella/clerk"]
    assert (await boss.get(path("acme/clerk"))).json()["address"]

    # Whoever sends, it is the tenant's message: one state, and its reply can be read by the tenant.
    assert (await say(sender, "clerk", {"name": "Ada"}))["result"]["seen"] == 1
    told = await say(boss, "acme/clerk", {"name": "Bob"})
    assert told["result"]["seen"] == 2
    where = {"queue": told["queue"]}
    assert (await reader.get(f"/runs/{told['run_id']}", params=where)).json()["tenant"] == "acme"
    problem(await umbrella.get(f"/runs/{told['run_id']}", params=where), 404)
    assert (await umbrella.get("/runs", params=where)).json()["runs"] == []
    problem(await umbrella.post("/execute", json={"agent_id": "receive", **where}), 404)

    for other in ("acme/clerk", "spare", "missing"):
        for method, verb, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/move", {}),
            ("POST", "/messages", {}),
        ):
            answer = await umbrella.request(method, path(other, verb), json=body)
            assert f"there is no resident {other!r}" in problem(answer, 404)
    problem(await reader.post("/residents/clerk/messages", json={}), 403)
    for client in (reader, sender):
        problem(await client.post("/residents", json=clerk), 403)
        problem(await client.delete("/residents/clerk"), 403)
        problem(await client.post("/residents/clerk/move"), 403)
    problem(await acme.post("/residents/clerk/move", json={"host": "a"}), 403)
    problem(await acme.get("/hosts"), 403)
    problem(await acme.get("/hosts/a"), 403)
    assert (await acme.delete("/residents/clerk")).status_code == 200
    assert await ids(umbrella) == ["clerk"]


async def test_what_can_not_be_done_is_said(cluster, api, tmp_path):
    running = await api(*KEYS)
    boss, acme = running.client("boss"), running.client("acme")
    clerk = {"id": "clerk", "resident": "Clerk"}
    alone = await boss.post("/residents", json=clerk)
    assert "there is no live host" in problem(alone, 503)
    assert alone.headers["retry-after"]
    assert "no host does this now" in problem(await acme.post("/residents", json=clerk), 503)
    assert (await boss.get("/residents")).json()["residents"] == []
    await hosts(cluster, tmp_path, "a")
    assert "has no resident 'Clark'" in problem(
        await boss.post("/residents", json={**clerk, "resident": "Clark"}), 422
    )
    told = problem(await acme.post("/residents", json={**clerk, "input": {"x": 1}, "resident": "sick"}), 422)
    assert "TypeError" in told
    assert 'File "' not in told  # a traceback is for operators
    for body in (b"", b"{", b"[]", b'{"id": "x"}', b'{"id": "a b", "resident": "Clerk"}', b"\xff"):
        problem(await boss.post("/residents", content=body), 422)
    assert "unknown field `nam`" in problem(await boss.post("/residents", json={**clerk, "nam": 1}), 422)
    problem(await boss.post("/residents", json={**clerk, "needs": {"cpu": -1}}), 422)
    await boss.post("/residents", json=clerk)
    problem(await boss.post("/residents/clerk/messages", content=b"not JSON"), 422)
    problem(await boss.post("/residents/clerk/messages", content=b"{}" + b" " * 3_000_000), 413)
    problem(await boss.post("/residents/clerk/messages?wait=1000", json={}), 422)
    problem(await boss.put("/residents/clerk", json={}), 405)
    # Its host is gone: messages wait, but it can't be asked to leave.
    cluster.children["a"].kill()
    sent = await boss.post("/residents/clerk/messages?wait=0.1", json={"message": {"name": "x"}})
    assert sent.status_code == 202, sent.text


async def test_a_heartbeat_that_can_not_be_read_hides_no_host(cluster, api, redis):
    """Fails if one record of another version is a defect of every list."""
    members = members_of(cluster.settings)
    for name, agents in (("good", "1"), ("odd", "many")):
        await members.announce(redis, Member("host", name, {"address": "h:1", "agents": agents}))
    client = (await api()).client()
    assert [host["name"] for host in (await client.get("/hosts")).json()["hosts"]] == ["good"]
    problem(await client.get("/hosts/odd"), 404)
    async with Client(cluster.settings.redis.url, settings=cluster.settings) as own:
        assert [host.name for host in await own.residents.hosts()] == ["good"]


async def test_redis_away_is_said(cluster, api):
    client = (await api(redis=RedisSettings(url="redis://127.0.0.1:1"))).client()
    for method, where, body in (
        ("GET", "/residents", None),
        ("GET", "/residents/x", None),
        ("POST", "/residents", {"id": "x", "resident": "Clerk"}),
        ("POST", "/residents/x/messages", {}),
        ("DELETE", "/residents/x", None),
        ("GET", "/hosts", None),
        ("GET", "/hosts/x", None),
    ):
        answer = await client.request(method, where, json=body)
        assert "Redis" in problem(answer, 503), where
        assert answer.headers["retry-after"]


async def test_without_grpc_agents_are_looked_at_and_told_but_not_started(
    cluster, api, tmp_path, monkeypatch
):
    await hosts(cluster, tmp_path, "a")
    started = (await api()).client()
    await started.post("/residents", json={"id": "clerk", "resident": "Clerk"})
    for name in ("grpc", "grpc.aio", "holdfast.hosts.remote"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    client = (await api()).client()
    assert (await client.get("/residents/clerk")).json()["status"] == "running"
    assert (await say(client, "clerk", {"name": "Ada"}))["result"]["seen"] == 1
    assert len((await client.get("/hosts")).json()["hosts"]) == 1
    for method, where, body in (
        ("POST", "/residents", {"id": "x", "resident": "Clerk"}),
        ("POST", "/residents/clerk/move", {}),
        ("DELETE", "/residents/clerk", None),
    ):
        assert "holdfast[hosts]" in problem(await client.request(method, where, json=body), 501)


@pytest.mark.parametrize("agent_id", ["x/messages", "x/move", "o/g/a%20b", "ä", "a?b#c"])
async def test_every_id_has_a_path_of_its_own(cluster, api, tmp_path, agent_id):
    await hosts(cluster, tmp_path, "a")
    client = (await api()).client()
    made = await client.post("/residents", json={"id": agent_id, "resident": "Clerk"})
    assert made.status_code == 201, made.text
    assert (await client.get(made.headers["location"])).json()["id"] == agent_id
    assert (await say(client, agent_id, {"name": "Ada"}))["id"] == agent_id
    assert (await client.delete(path(agent_id))).status_code == 200


async def test_what_residents_count_and_use_is_among_their_hosts_metrics(cluster, api, tmp_path):
    port = free_port()
    database = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite"), "MAX_ATTEMPTS": "2"}
    await cluster.start("a", app=APP, METRICS_PORT=str(port), **database)
    client = (await api()).client()
    await client.post("/residents", json={"id": "clerk", "resident": "Clerk"})
    problem(await client.post("/residents", json={"id": "x", "resident": "Clark"}), 422)
    await say(client, "clerk", {"name": "Ada"})
    await say(client, "clerk", {"fails": True})
    wanted = [
        'holdfast_host_messages_total{agent="Clerk",status="succeeded"} 1.0',
        'holdfast_host_messages_total{agent="Clerk",status="failed"} 1.0',
        'holdfast_host_message_retries_total{agent="Clerk"} 1.0',
        'holdfast_host_guild_agents{guild_id="",status="running"} 1.0',
        'holdfast_host_create_seconds_count{guild_id=""} 1.0',
        'holdfast_host_create_errors_total{guild_id="",status="INVALID_ARGUMENT"} 1.0',
        'holdfast_host_agent_memory_bytes{agent_id="clerk",guild_id=""}',
        'holdfast_host_agent_cpu_seconds{agent_id="clerk",guild_id=""}',
    ]

    async def shown() -> str:
        async with httpx.AsyncClient(trust_env=False) as scraper:
            return (await scraper.get(f"http://127.0.0.1:{port}/metrics")).text

    await until(shown, lambda text: all(line in text for line in wanted), seconds=60)
    await client.delete("/residents/clerk")  # what it was doing it tells before it ends, and its series end
    await until(shown, lambda found: 'agent_id="clerk"' not in found, seconds=60)
    assert 'holdfast_host_lookups_total{status="found"}' in (await client.get("/metrics")).text
