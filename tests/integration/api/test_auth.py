"""Who may call what: keys, roles, tenants, and this machine alone where there are no keys."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from holdfast import App, Context, GiveUp
from holdfast.api import auth
from holdfast.api.auth import Denied, Keyring, check_exposure, new_key
from holdfast.config import ApiSettings
from holdfast.errors import ConfigError, InputError
from holdfast.operations.caller import OPERATOR
from holdfast.runs.run import Submission
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store
from tests.support.api.server import key_line
from tests.support.events.relays import announce_relay

KEYS = (
    key_line("boss"),
    key_line("acme", "acme", "read+submit"),
    key_line("acme-ops", "acme", "read+operate"),
    key_line("other", "other", "read+submit"),
    key_line("viewer", "*", "read"),
)

ROUTES = [
    ("POST", "/execute", "submit"),
    ("POST", "/execute/batch", "submit"),
    ("GET", "/runs", "read"),
    ("GET", "/runs/a", "read"),
    ("GET", "/runs/a/events", "read"),
    ("GET", "/runs/a/result", "read"),
    ("GET", "/runs/a/explain", "read"),
    ("POST", "/runs/a/resume", "submit"),
    ("POST", "/runs/a/cancel", "submit"),
    ("POST", "/runs/a/retry", "submit"),
    ("GET", "/queues", "read"),
    ("GET", "/queues/agent-queue", "read"),
    ("POST", "/queues/agent-queue/pause", "operate"),
    ("POST", "/queues/agent-queue/drain", "operate"),
    ("POST", "/queues/agent-queue/resume", "operate"),
    ("GET", "/deadletters", "read"),
    ("GET", "/deadletters/a", "read"),
    ("POST", "/deadletters/a/replay", "operate"),
    ("DELETE", "/deadletters/a", "operate"),
    ("GET", "/relay/undelivered", "operate"),
    ("POST", "/relay/undelivered/redeliver", "operate"),
    ("GET", "/agents", "read"),
    ("GET", "/agents/agent-queue", "read"),
    ("GET", "/residents", "read"),
    ("POST", "/residents", "operate"),
    ("GET", "/residents/agent-queue", "read"),
    ("DELETE", "/residents/agent-queue", "operate"),
    ("POST", "/residents/agent-queue/messages", "submit"),
    ("POST", "/residents/agent-queue/move", "operate"),
    ("GET", "/hosts", "read"),
    ("GET", "/hosts/agent-queue", "read"),
    ("GET", "/schedules", "read"),
    ("POST", "/schedules", "operate"),
    ("POST", "/schedules/pause", "operate"),
    ("POST", "/schedules/resume", "operate"),
    ("GET", "/schedules/agent-queue", "read"),
    ("PATCH", "/schedules/agent-queue", "operate"),
    ("DELETE", "/schedules/agent-queue", "operate"),
    ("GET", "/schedules/agent-queue/next", "read"),
    ("GET", "/schedules/agent-queue/turns", "read"),
    ("GET", "/schedules/agent-queue/explain", "read"),
    ("POST", "/schedules/agent-queue/trigger", "submit"),
    ("POST", "/schedules/agent-queue/pause", "operate"),
    ("POST", "/schedules/agent-queue/resume", "operate"),
    ("POST", "/schedules/agent-queue/backfill", "operate"),
    ("GET", "/members", "read"),
    ("GET", "/internal/scaling/agent-queue", "read"),
    ("GET", "/internal/health/redis", "read"),
    ("GET", "/metrics", "read"),
]


async def test_every_route_asks_for_a_key_and_a_role(api):
    running = await api(keys=(*KEYS, key_line("s", "*", "submit"), key_line("o", "*", "operate")))
    described = (await running.client().get("/openapi.json")).json()["paths"]
    listed = {
        (method.upper(), path.format(run_id="a", name="agent-queue", ref="a", resident_id="agent-queue"))
        for path, methods in described.items()
        for method in methods
    }
    assert listed == {(method, path) for method, path, _ in ROUTES} | {
        ("GET", "/healthz"),
        ("GET", "/readyz"),
    }
    holders = {"read": "viewer", "submit": "s", "operate": "o"}
    for method, path, role in ROUTES:
        nobody = await running.client().request(method, path)
        assert nobody.status_code == 401, path
        assert nobody.headers["www-authenticate"].startswith("Bearer")
        wrong = await running.client("forged").request(method, path)
        assert wrong.status_code == 401, path
        for held, name in holders.items():
            if held != role:
                denied = await running.client(name).request(method, path)
                assert denied.status_code == 403, (path, held)
                assert f"needs the role {role}" in denied.json()["detail"]
    for public in ("/healthz", "/readyz", "/openapi.json"):
        assert (await running.client().get(public)).status_code == 200


async def test_another_tenants_run_does_not_exist(system, api):
    running = await api(keys=KEYS)
    acme, other, boss = running.client("acme"), running.client("other"), running.client("boss")
    wanted = {"agent_id": "echo", "correlation_id": "a", "thread_id": "t"}
    accepted = await acme.post("/execute", json=wanted)
    assert accepted.json()["thread_id"] == "t"
    run = (await acme.get("/runs/a")).json()
    assert (run["tenant"], run["thread_id"]) == ("acme", "t")
    missing = await other.get("/runs/b")
    for method, path, _ in ROUTES:
        if path.startswith("/runs/a"):
            answer = await other.request(method, path)
            assert answer.status_code == 404, path
            assert answer.json()["detail"] == missing.json()["detail"].replace("'b'", "'a'")
    assert (await other.get("/runs")).json()["runs"] == []
    assert [run["id"] for run in (await acme.get("/runs")).json()["runs"]] == ["a"]
    assert [run["id"] for run in (await boss.get("/runs?tenant=acme&thread_id=t")).json()["runs"]] == ["a"]
    assert (await boss.get("/runs?tenant=other")).json()["runs"] == []
    assert (await boss.get("/runs/a")).status_code == 200

    taken = await other.post("/execute", json={"agent_id": "echo", "correlation_id": "a"})
    assert taken.status_code == 409
    assert "thread" not in taken.text
    claimed = await other.post("/execute", json={"agent_id": "echo", "tenant": "acme"})
    assert claimed.status_code == 422
    # The same thread, key and limit of two tenants are two.
    pushy = {"agent_id": "echo", "thread_id": "t", "multitask": "rollback", "correlation_id": "b"}
    assert (await other.post("/execute", json=pushy)).status_code == 202
    assert (await acme.get("/runs/a")).json()["status"] == "queued"
    key = {"Idempotency-Key": "k"}
    first = await acme.post("/execute", json={"agent_id": "echo"}, headers=key)
    second = await other.post("/execute", json={"agent_id": "echo"}, headers=key)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["run_id"] != second.json()["run_id"]


async def test_a_conversation_is_one_whichever_door_its_messages_come_in_by(system, api):
    """Fails if only the API scopes names by tenant: over Redis the thread, the key and the limit are others."""
    acme = (await api(keys=KEYS)).client("acme")
    names = {"thread_id": "t", "concurrency_key": "limit"}
    asked = {"agent_id": "echo", "correlation_id": "first", **names}
    assert (await acme.post("/execute", json=asked, headers={"Idempotency-Key": "k"})).status_code == 202
    ticket = await system.queue.submit(
        Submission(agent="echo", tenant="acme", idempotency_key="k", thread_id="t")
    )
    assert (ticket.run_id, ticket.fresh) == ("first", False)
    await system.submit("echo", run_id="second", tenant="acme", **names)
    shown = (await acme.get("/runs/second")).json()
    assert (shown["thread_id"], shown["parked"]) == ("t", "thread:t")
    assert "waits for thread:t," in (await acme.get("/runs/second/explain")).json()["because"][0]
    await system.submit("echo", run_id="third", tenant="acme", idempotency_key="back")
    back = await acme.post("/execute", json={"agent_id": "echo"}, headers={"Idempotency-Key": "back"})
    assert (back.status_code, back.json()["run_id"]) == (200, "third")


async def test_an_agent_is_told_the_thread_by_the_name_its_caller_gave(system, api):
    app = App("tells")

    @app.agent
    async def tells(ctx: Context, value):
        return ctx.thread_id

    await system.worker(app)
    acme = (await api(keys=KEYS)).client("acme")
    await acme.post("/execute", json={"agent_id": "tells", "correlation_id": "a", "thread_id": "t"})
    assert (await system.ended("a")).result == "t"


async def test_what_concerns_every_tenant_needs_a_key_of_every_tenant(api):
    running = await api(keys=KEYS)
    client = running.client("acme-ops")
    for method, path in (
        ("POST", "/queues/agent-queue/pause"),
        ("GET", "/members"),
        ("GET", "/metrics"),
        ("GET", "/internal/health/redis"),
    ):
        answer = await client.request(method, path)
        assert answer.status_code == 403
        assert "concerns every tenant" in answer.json()["detail"]
    assert (await client.get("/queues/agent-queue")).status_code == 200


async def test_dead_letters_belong_to_their_tenant(system, api):
    running = await api(keys=(*KEYS, key_line("other-ops", "other", "read+operate")))
    acme, other = running.client("acme-ops"), running.client("other-ops")
    app = failing()
    await system.worker(app)
    await running.client("acme").post("/execute", json={"agent_id": "fails", "correlation_id": "a"})
    await system.ended("a")
    assert (await other.get("/deadletters")).json()["letters"] == []
    for method, path in (
        ("GET", "/deadletters/a"),
        ("POST", "/deadletters/a/replay"),
        ("DELETE", "/deadletters/a"),
    ):
        assert (await other.request(method, path)).status_code == 404
    assert [letter["run_id"] for letter in (await acme.get("/deadletters")).json()["letters"]] == ["a"]
    # Also when its run has left Redis: the letter says itself whose it is.
    await system.queue.redis.delete(system.queue.keys.run("a"), system.queue.keys.feed("a"))
    (letter,) = (await acme.get("/deadletters")).json()["letters"]
    assert (letter["run_id"], letter["tenant"]) == ("a", "acme")
    assert (await other.get("/deadletters")).json()["letters"] == []
    assert (await acme.delete("/deadletters/a")).status_code == 200


async def test_undelivered_events_belong_to_their_tenant(system, api):
    running = await api(keys=(*KEYS, key_line("other-ops", "other", "read+operate")))
    acme, other = running.client("acme-ops"), running.client("other-ops")
    origin = '{"run_id":"a","queue":"agent-queue","tenant":"acme"}'
    fields = {"run_id": "a", "event_id": "1-1", "sequence": "1", "type": "said", "sink": "eventapi"}
    await system.queue.redis.xadd(
        system.queue.keys.undelivered, {**fields, "error": "no", "data": "1", "origin": origin}
    )
    await announce_relay(system.queue.redis, "eventapi")
    assert (await other.get("/relay/undelivered")).json()["events"] == []
    again = "/relay/undelivered/redeliver?all=true"
    assert (await other.post(again)).json() == {"queued": 0, "refused": {}}
    assert [event["run_id"] for event in (await acme.get("/relay/undelivered")).json()["events"]] == ["a"]
    assert (await acme.post(again)).json() == {"queued": 1, "refused": {}}


async def test_only_operators_see_a_traceback(system, api):
    """It shows paths and code of the operator; its type and message are the tenant's to see."""
    running = await api(keys=KEYS)
    await system.worker(failing())
    start = {"agent_id": "fails", "correlation_id": "a", "tenant": "acme"}
    await running.client("boss").post("/execute", json=start)
    run = await system.ended("a")
    fault = b'{"kind":"invalid","message":"GiveUp: no","traceback":"Traceback (most recent call last)"}'
    async with await open_store(running.process._settings.database) as store:
        old = ArchivedRun(id="old", queue="agent-queue", tenant="acme", status="failed", error=fault)
        await store.archive([old])
    assert "Traceback" in run.error.traceback
    reads = (
        "/runs",
        "/runs/a",
        "/runs/a/result",
        "/deadletters",
        "/deadletters/a",
        "/runs/old",
        "/runs/old/result",
    )
    for name in ("acme", "acme-ops", "viewer", "boss"):
        client = running.client(name)
        for path in reads:
            text = (await client.get(path)).text
            assert '"kind":"invalid","message":"GiveUp: no"' in text, path
            assert ("Traceback" in text) is (name == "boss"), (name, path)
        for path in ("/runs/a/explain", "/runs/old/explain"):
            text = (await client.get(path)).text
            assert "invalid: GiveUp: no" in text
            assert "Traceback" not in text
        for accept in ("text/event-stream", "application/x-ndjson"):
            text = (await client.get("/runs/a/events", headers={"Accept": accept})).text
            assert '"error":{"kind":"invalid","message":"GiveUp: no"}' in text
            assert "Traceback" not in text
    acme = running.client("acme")
    again = await acme.post("/execute/batch", json={"runs": [start]})
    assert (again.json()["runs"][0]["code"], "Traceback" in again.text) == (200, False)
    assert "Traceback" not in (await running.client("acme-ops").delete("/deadletters/a")).text


def failing():
    app = App("fails")

    @app.agent
    async def fails(value):
        raise GiveUp("no")

    return app


# -- without keys


def scope(client, server=("127.0.0.1", 80)):
    return {"client": client, "server": server}


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_without_keys_this_machine_is_served(peer):
    ring = Keyring(ApiSettings())
    assert ring.caller(scope((peer, 1)), {b"host": b"localhost:80"}) is OPERATOR


@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "8.8.8.8", "nonsense"])
def test_without_keys_others_are_told_how_to_be_let_in(peer):
    headers = {b"host": b"localhost", b"x-forwarded-for": b"127.0.0.1", b"forwarded": b"for=127.0.0.1"}
    with pytest.raises(Denied) as denied:
        Keyring(ApiSettings()).caller(scope((peer, 1)), headers)
    assert denied.value.status_code == 403
    assert peer in denied.value.detail
    assert "not X-Forwarded-For" in denied.value.detail
    assert "HOLDFAST_API_KEYS" in denied.value.detail
    assert Keyring(ApiSettings(open=True)).caller(scope((peer, 1)), headers) is OPERATOR


def test_a_connection_that_has_gone_is_not_taken_for_a_unix_socket():
    ring = Keyring(ApiSettings())
    assert ring.caller(scope(None, ("/run/api.sock", None)), {}) is OPERATOR
    with pytest.raises(Denied):
        ring.caller(scope(None), {})


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": b"evil.example:80"},
        {b"host": b"localhost.evil.example"},
        {b"host": b"localhost", b"origin": b"https://evil.example"},
        {b"host": b"localhost", b"origin": b"null"},
        {b"host": b"localhost", b"origin": b"http://[bad"},
    ],
)
def test_without_keys_no_web_page_speaks_through_a_browser(headers):
    with pytest.raises(Denied):
        Keyring(ApiSettings()).caller(scope(("127.0.0.1", 1)), headers)


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:8080", b"[::1]:80", b"api.localhost:1"])
def test_local_names_are_local(host):
    headers = {b"host": host, b"origin": b"http://localhost:3000"}
    assert Keyring(ApiSettings()).caller(scope(("127.0.0.1", 1)), headers)


async def test_a_forwarded_header_changes_nobody(api):
    running = await api()
    answer = await running.client().get("/runs", headers={"X-Forwarded-For": "10.0.0.1"})
    assert answer.status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_an_api_without_keys_does_not_listen_to_others(host):
    with pytest.raises(ConfigError, match="HOLDFAST_API_OPEN"):
        check_exposure(ApiSettings(host=host))
    check_exposure(ApiSettings(host=host, open=True))
    check_exposure(ApiSettings(host=host, keys=(key_line("a"),)))
    check_exposure(ApiSettings(host="localhost"))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (("a",), "name:tenant:roles:hash"),
        (("a:*:read:zz",), "not the key itself"),
        ((f"a:*:write:{'0' * 64}",), "read+submit+operate"),
        ((f"a::read:{'0' * 64}",), "tenant"),
        ((f"a b:*:read:{'0' * 64}",), "name"),
        ((key_line("a"), key_line("a")), "two keys"),
    ],
)
def test_a_bad_key_stops_the_start_without_being_shown(keys, told):
    with pytest.raises(ConfigError) as refused:
        Keyring(ApiSettings(keys=keys))
    assert told in str(refused.value)
    assert "zz" not in str(refused.value)
    assert "zz" not in repr(ApiSettings(keys=keys))


def test_open_and_keys_contradict():
    with pytest.raises(ConfigError, match=r"api\.open"):
        Keyring(ApiSettings(keys=KEYS, open=True))


async def test_a_new_key_opens_the_api_and_its_line_does_not(api):
    key, line = new_key("ci", tenant="acme", roles="read")
    assert key not in line
    assert new_key("ci", tenant="acme", roles="read")[0] != key
    running = await api(keys=(line,))
    for given, status in ((key, 200), (line, 401), (line.rpartition(":")[2], 401), (f" {key}", 200)):
        answer = await running.client().get("/runs", headers={"Authorization": f"bearer {given}"})
        assert answer.status_code == status
    with pytest.raises(InputError, match="roles"):
        new_key("ci", tenant="*", roles="root")


async def test_every_key_is_compared_in_constant_time(monkeypatch):
    seen = []
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda a, b: seen.append(a) or a == b)
    Keyring(ApiSettings(keys=KEYS)).caller({}, {b"authorization": b"Bearer boss-secret"})
    assert len(seen) == len(KEYS)


async def test_requests_carry_an_id_into_the_answer(api):
    client = (await api()).client()
    named = await client.get("/runs/x", headers={"X-Request-Id": "trace-7"})
    assert named.headers["x-request-id"] == named.json()["request_id"] == "trace-7"
    odd = await client.get("/runs/x", headers={"X-Request-Id": "a b"})
    assert odd.headers["x-request-id"] != "a b"
    many = await asyncio.gather(*(client.get("/healthz") for _ in range(5)))
    assert len({answer.headers["x-request-id"] for answer in many}) == 5
    assert isinstance(many[0], httpx.Response)
