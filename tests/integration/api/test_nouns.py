"""Runs, queues, dead letters, members and health, as operators and programs read and change them."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from holdfast import App, Context, GiveUp
from holdfast.config import BreakerSettings, DatabaseSettings, QueueSettings, SenderSettings
from holdfast.redis.scripts import load
from holdfast.runs.queue import RunQueue
from holdfast.services.api import ApiProcess
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store
from tests.support.api.server import key_line
from tests.support.events.relays import announce_relay
from tests.support.runs.manual_worker import Hand, next_ms
from tests.support.waiting import until


def agents() -> App:
    app = App("api-tests")

    @app.agent
    async def echo(value):
        return value

    @app.agent
    async def fails(value):
        raise GiveUp("not this")

    @app.agent
    async def sleeps(ctx: Context, value):
        await asyncio.Event().wait()

    return app


async def submit(client, run_id: str, agent: str = "echo", **more) -> str:
    answer = await client.post("/execute", json={"agent_id": agent, "correlation_id": run_id, **more})
    assert answer.status_code == 202, answer.text
    return run_id


# -- runs


async def test_runs_are_listed_page_by_page_newest_first(client):
    for number in range(7):
        await submit(client, f"r{number}", "even" if number % 2 == 0 else "odd", thread_id=f"t{number % 3}")
    seen, cursor = [], ""
    while True:
        page = (await client.get("/runs", params={"limit": 3, "cursor": cursor})).json()
        seen += [run["id"] for run in page["runs"]]
        assert len(page["runs"]) <= 3
        cursor = page["cursor"]
        if not cursor:
            break
    assert seen == [f"r{number}" for number in reversed(range(7))]
    odd = (await client.get("/runs", params={"agent": "odd"})).json()["runs"]
    assert [run["id"] for run in odd] == ["r5", "r3", "r1"]
    assert "input" not in odd[0]
    threads = (await client.get("/runs", params={"thread_id": "t1"})).json()["runs"]
    assert [run["id"] for run in threads] == ["r4", "r1"]
    assert (await client.get("/runs", params={"status": "running"})).json() == {"runs": [], "cursor": ""}
    for bad in ({"cursor": "x"}, {"cursor": "eyJ4IjoieSJ9"}, {"limit": 0}, {"limit": 201}, {"status": "odd"}):
        assert (await client.get("/runs", params=bad)).status_code == 422, bad
    told = (await client.get("/runs", params={"status": "odd"})).json()["detail"]
    assert told.startswith("query.status: Input should be 'queued', 'delayed', ")
    assert told.endswith("got 'odd'")
    assert (await client.get("/runs", params={"queue": "other"})).status_code == 404


async def test_runs_of_several_queues_are_one_list(system, api):
    other = QueueSettings(name="other", group="other-group")
    system.settings = msgspec.structs.replace(system.settings, queues={"other": other})
    client = (await api()).client()
    for number in range(6):
        await submit(client, f"r{number}", queue="other" if number % 2 else "agent-queue")
        await next_ms(system.queue)  # submit times are whole milliseconds, and the list is by them
    seen, cursor = [], ""
    while True:
        page = (await client.get("/runs", params={"limit": 4, "cursor": cursor})).json()
        seen += [run["id"] for run in page["runs"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert seen == ["r5", "r4", "r3", "r2", "r1", "r0"]
    only = (await client.get("/runs", params={"queue": "other"})).json()["runs"]
    assert [run["id"] for run in only] == ["r5", "r3", "r1"]
    assert (await client.get("/runs/r1")).json()["queue"] == "other"
    assert [queue["name"] for queue in (await client.get("/queues")).json()["queues"]] == [
        "agent-queue",
        "other",
    ]


async def test_archived_runs_of_a_thread_are_found_behind_any_number_of_others(system, api):
    """Fails if the thread is looked for in the page that SQL gave: that has only runs of others."""
    running = await api(keys=(key_line("boss"), key_line("acme", "acme")))
    kept = [
        ArchivedRun(
            id=f"{tenant}-{at}",
            queue="agent-queue",
            thread_id="t" if at < 2 else "other",
            tenant=tenant,
            status="succeeded",
            submitted_at=1.0,
            finished_at=10.0 + at,
        )
        for tenant in ("acme", "bolt")
        for at in range(30)
    ]
    async with await open_store(running.process._settings.database) as store:
        await store.archive(kept)
    boss, acme = running.client("boss"), running.client("acme")
    page = (await boss.get("/runs", params={"thread_id": "t", "limit": 5})).json()
    shown = {run["id"] for run in page["runs"]}
    assert (shown, page["cursor"]) == ({"acme-0", "acme-1", "bolt-0", "bolt-1"}, "")
    page = (await acme.get("/runs", params={"thread_id": "t", "limit": 5})).json()
    assert ([run["id"] for run in page["runs"]], page["cursor"]) == (["acme-1", "acme-0"], "")
    page = (await acme.get("/runs", params={"tenant": "bolt"})).json()
    assert page == {"runs": [], "cursor": ""}


async def test_a_run_of_the_same_id_hides_no_archived_one(system, api):
    """Fails if the id alone is compared: whoever submits it again hides another tenant's run, or an earlier one."""
    running = await api(keys=(key_line("boss"), key_line("acme", "acme"), key_line("bolt", "bolt")))
    acme, bolt = running.client("acme"), running.client("bolt")
    await submit(acme, "same")
    await submit(bolt, "both")
    same, both = [(await system.queue.get(run_id)).submitted_at for run_id in ("same", "both")]
    kept = [
        ArchivedRun(
            id=run_id,
            queue="agent-queue",
            tenant=tenant,
            status="succeeded",
            submitted_at=submitted_at,
            finished_at=submitted_at,
        )
        for run_id, tenant, submitted_at in (
            ("same", "bolt", same),  # of another tenant
            ("same", "acme", 1.5),  # an earlier one
            ("both", "bolt", both),  # this very run: it is listed once
        )
    ]
    async with await open_store(running.process._settings.database) as store:
        await store.archive(kept)

    async def listed(client) -> list[tuple[str, str, bool]]:
        runs = (await client.get("/runs")).json()["runs"]
        return [(run["id"], run["tenant"], run["archived"]) for run in runs]

    assert await listed(bolt) == [("both", "bolt", False), ("same", "bolt", True)]
    assert await listed(acme) == [("same", "acme", False), ("same", "acme", True)]


async def test_archived_runs_end_the_list_and_are_read_like_others(system, api):
    running = await api()
    client = running.client()
    await submit(client, "live")
    from holdfast.store.open import open_store

    database = running.process._settings.database
    kept = [
        ArchivedRun(
            id=f"old{number}",
            queue="agent-queue",
            agent="echo",
            status="failed" if number else "succeeded",
            submitted_at=1.0,
            finished_at=10.0 - number,
            input=b'{"n":1}',
            result=b"" if number else b'"done"',
            error=b'{"kind":"ValueError","message":"no"}' if number else b"",
        )
        for number in range(3)
    ]
    began = (await system.queue.get("live")).submitted_at
    live = ArchivedRun(id="live", queue="agent-queue", status="failed", submitted_at=began, finished_at=99.0)
    async with await open_store(database) as store:
        await store.archive([*kept, live])
    seen, cursor = [], ""
    while True:
        page = (await client.get("/runs", params={"limit": 2, "cursor": cursor})).json()
        seen += [(run["id"], run["archived"]) for run in page["runs"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert seen == [("live", False), ("old0", True), ("old1", True), ("old2", True)]
    run = (await client.get("/runs/old0")).json()
    assert (run["status"], run["input"], run["result"]) == ("succeeded", {"n": 1}, "done")
    assert (await client.get("/runs/old0/result")).json()["result"] == "done"
    assert (await client.get("/runs/old1/result")).json()["error"]["kind"] == "ValueError"
    for last in ({}, {"Last-Event-ID": "1-0"}):
        expired = await client.get("/runs/old0/events", headers=last)
        assert (expired.status_code, expired.headers["content-type"]) == (410, "application/problem+json")
        assert expired.json()["type"] == "urn:holdfast:problem:events-expired"
        assert "only its record is in the archive" in expired.json()["detail"]
    for path, said in (
        ("old1/retry", "submit its input again"),
        ("old0/retry", "has already succeeded: only failed"),
        ("old0/cancel", "has already ended: succeeded"),
        ("old1/resume", "has already failed: only an interrupted run takes an answer"),
    ):
        refused = await client.post(f"/runs/{path}")
        assert (refused.status_code, said in refused.json()["detail"]) == (409, True), refused.text
    resume = {"agent_id": "echo", "action": "RESUME", "correlation_id": "old0"}
    assert (await client.post("/execute", json=resume)).status_code == 409
    because = (await client.get("/runs/old1/explain")).json()
    assert (because["run_id"], because["status"]) == ("old1", "failed")
    assert "its last error: ValueError: no" in because["because"]
    assert "only its record is in the archive" in because["because"][-1]
    assert "it succeeded after" in (await client.get("/runs/old0/explain")).json()["because"][0]
    failed = (await client.get("/runs", params={"status": "failed"})).json()["runs"]
    assert [run["id"] for run in failed] == ["old1", "old2"]


async def test_a_failed_run_tells_why_and_is_retried(system, client):
    await system.worker(agents())
    await submit(client, "a", "fails")
    ended = await client.get("/runs/a/result", params={"wait": 20})
    assert ended.status_code == 200
    assert ended.json()["status"] == "failed"
    assert ended.json()["error"]["message"] == "GiveUp: not this"
    explained = (await client.get("/runs/a/explain")).json()
    assert "given up after 1 attempt" in explained["because"][0]
    assert (await client.post("/runs/a/retry")).json() == {"run_id": "a", "status": "queued"}
    await until_status(client, "a", "failed")
    assert (await client.post("/runs/a/cancel")).status_code == 409


async def until_status(client, run_id: str, status: str) -> None:
    await until(lambda: client.get(f"/runs/{run_id}"), lambda found: found.json()["status"] == status)


async def test_runs_are_cancelled_waiting_or_running(system, client):
    await submit(client, "a", "sleeps")
    explained = (await client.get("/runs/a/explain")).json()["because"]
    assert "no worker serves queue 'agent-queue'" in explained[0]
    assert (await client.post("/runs/a/cancel", json={"reason": "why not"})).json()["status"] == "cancelled"
    result = (await client.get("/runs/a/result")).json()
    assert result == {
        "run_id": "a",
        "status": "cancelled",
        "error": {"kind": "Cancelled", "message": "why not", "traceback": ""},
    }
    await system.worker(agents(), name="w")
    await submit(client, "b", "sleeps")
    await until_status(client, "b", "running")
    assert "running on w for " in (await client.get("/runs/b/explain")).json()["because"][0]
    assert (await client.post("/runs/b/cancel")).json() == {"run_id": "b", "status": "requested"}
    await until_status(client, "b", "cancelled")
    assert (await client.post("/runs/b/cancel", content=b"[1]")).status_code == 422
    assert (await client.post("/runs/missing/cancel")).status_code == 404


async def test_a_running_run_whose_lease_is_not_renewed_is_explained_by_that(system, client):
    ttl_ms = int(system.settings.lease.ttl_seconds * 1000)
    await submit(client, "a", "sleeps")
    await Hand(system.queue, "w2").claim_one()  # claims and never renews

    async def explained_after(idle_ms: int) -> list[str]:
        run, group = await system.queue.get("a"), system.queue.settings.group
        entry = await system.queue.redis.xclaim(
            run.lane, group, "w2", 0, [run.entry], idle=idle_ms, justid=True
        )
        assert entry == [run.entry.encode()]
        return (await client.get("/runs/a/explain")).json()["because"]

    assert (await explained_after(0))[0].startswith("running on w2 for ")
    late = await explained_after(ttl_ms * 2 // 3)
    sentence = r"w2 has not renewed its lease for \d+ s; another worker takes the run when it ends, in \d+ s"
    assert re.fullmatch(sentence, late[0])
    assert not any("running on" in each or "no sign of life" in each for each in late)
    over = await explained_after(ttl_ms + 5000)
    sentence = r"w2 has not renewed its lease for \d+ s, and it has ended: another worker takes the run"
    assert re.fullmatch(sentence, over[0])


async def test_a_running_run_is_explained_by_a_database_that_does_not_answer(system, api, start_postgres):
    database = start_postgres()
    settings = DatabaseSettings(url=database.url)
    async with await open_store(settings, migrate=True):
        pass
    system.settings = msgspec.structs.replace(system.settings, database=settings)
    client = (await api()).client()
    await submit(client, "a", "sleeps")
    await Hand(system.queue, "w").claim_one()
    answered = (await client.get("/runs/a/explain")).json()["because"]
    assert not any("database" in each for each in answered)
    database.kill()
    *_, last = (await client.get("/runs/a/explain")).json()["because"]
    assert re.fullmatch(r"the database can't be used from here \(.+\): until it answers, .+ wait", last)


async def test_waiting_ends_with_the_time_and_the_run_goes_on(client):
    await submit(client, "a")
    waited = await client.get("/runs/a/result", params={"wait": 0.05})
    assert (waited.status_code, waited.headers["retry-after"]) == (202, "1")
    assert waited.json() == {"run_id": "a", "status": "queued"}
    for bad in ("61", "-1", "x", "nan", "inf"):
        assert (await client.get("/runs/a/result", params={"wait": bad})).status_code == 422, bad


async def test_waiting_goes_on_while_a_run_waits_for_an_answer(system, client):
    app = App("asks")

    @app.agent
    async def asks(ctx: Context, value):
        return await ctx.interrupt(value)

    await system.worker(app)
    await submit(client, "a", "asks")
    await until_status(client, "a", "interrupted")
    # An interrupted run has not ended: the time is used up, and then its question is told.
    unanswered = await client.get("/runs/a/result", params={"wait": 0.05})
    assert (unanswered.status_code, unanswered.json()["status"]) == (202, "interrupted")
    waiting = asyncio.create_task(client.get("/runs/a/result", params={"wait": 20}))
    done, _ = await asyncio.wait((waiting,), timeout=0.3)
    assert not done
    await client.post("/runs/a/resume", json={"value": "yes"})
    ended = await waiting
    assert (ended.status_code, ended.json()["result"]) == (200, "yes")


# -- queues, dead letters, members


async def test_a_queue_counts_the_workers_that_live_and_no_ghosts(system, client):
    group = system.queue.settings.group
    for ghost in ("killed-1", "killed-2"):
        await system.queue.redis.xgroup_createconsumer(system.queue.keys.stream, group, ghost)
    assert (await client.get("/queues/agent-queue")).json()["workers"] == 0
    await system.worker(agents(), "first")
    assert (await client.get("/queues/agent-queue")).json()["workers"] == 1
    assert [queue["workers"] for queue in (await client.get("/queues")).json()["queues"]] == [1]
    assert (await client.post("/queues/agent-queue/resume")).json()["workers"] == 1
    assert (await system.queue.depth()).consumers == 3


async def test_a_queue_is_paused_drained_and_opened(system, client):
    await submit(client, "a")
    queue = (await client.get("/queues/agent-queue")).json()
    assert (queue["depth"], queue["undelivered"], queue["mode"]) == (1, 1, "open")
    paused = (await client.post("/queues/agent-queue/pause", json={"reason": "upgrade"})).json()
    assert (paused["mode"], paused["reason"]) == ("paused", "upgrade")
    assert "is paused (upgrade)" in (await client.get("/runs/a/explain")).json()["because"][0]
    assert (await client.post("/queues/agent-queue/drain")).json()["mode"] == "draining"
    assert (await client.post("/queues/agent-queue/resume")).json()["mode"] == "open"
    assert (await system.queue.gate()).mode == "open"
    missing = await client.post("/queues/agent-quue/pause")
    assert missing.status_code == 404
    assert "did you mean" in missing.json()["detail"]


async def test_dead_letters_are_listed_replayed_and_dropped(system, client):
    await system.worker(agents())
    for run_id in ("a", "b", "c"):
        await submit(client, run_id, "fails", input={"id": run_id})
        await system.ended(run_id)
    page = (await client.get("/deadletters", params={"limit": 2})).json()
    rest = (await client.get("/deadletters", params={"limit": 2, "cursor": page["cursor"]})).json()
    letters = page["letters"] + rest["letters"]
    assert [letter["run_id"] for letter in letters] == ["c", "b", "a"]
    assert rest["cursor"] == ""
    assert letters[0]["input"] == {"id": "c"}
    by_run, by_id = await client.get("/deadletters/a"), await client.get(f"/deadletters/{letters[2]['id']}")
    assert by_run.json() == by_id.json() == letters[2]
    assert (await client.delete("/deadletters/a")).json()["run_id"] == "a"
    assert (await client.get("/deadletters/a")).status_code == 404
    assert (await client.post("/deadletters/b/replay")).json() == {"run_id": "b", "status": "queued"}
    await system.ended("b")
    assert (await client.get("/deadletters", params={"agent": "echo"})).json()["letters"] == []
    assert (await client.get("/deadletters", params={"cursor": "x"})).status_code == 422


async def test_undelivered_events_are_listed_and_delivered_again(system, client):
    keys = system.queue.keys
    for run_id in ("a", "b"):
        await submit(client, run_id)
        for sequence in ("1", "2"):
            fields = {"run_id": run_id, "event_id": f"{sequence}-1", "sequence": sequence, "type": "said"}
            why = {"sink": "eventapi", "error": "the receiver answered 422 (3 times)", "data": '{"n":1}'}
            await system.queue.redis.xadd(keys.undelivered, {**fields, **why})
    page = (await client.get("/relay/undelivered", params={"limit": 3})).json()
    rest = (await client.get("/relay/undelivered", params={"limit": 3, "cursor": page["cursor"]})).json()
    events = page["events"] + rest["events"]
    assert [(each["run_id"], each["sequence"]) for each in events] == [("b", 2), ("b", 1), ("a", 2), ("a", 1)]
    assert rest["cursor"] == ""
    assert (events[0]["queue"], events[0]["data"], events[0]["redelivering"]) == (
        "agent-queue",
        {"n": 1},
        False,
    )
    assert len((await client.get("/relay/undelivered", params={"run_id": "a"})).json()["events"]) == 2
    assert (await client.get("/relay/undelivered", params={"sink": "webhook"})).json()["events"] == []
    assert (await client.get("/relay/undelivered", params={"sink": "nowhere"})).status_code == 422
    unsaid = await client.post("/relay/undelivered/redeliver")
    assert (unsaid.status_code, "all=true" in unsaid.json()["detail"]) == (422, True)
    unserved = (await client.post("/relay/undelivered/redeliver", params={"run_id": "a"})).json()
    assert (unserved["queued"], len(unserved["refused"])) == (0, 2)
    await announce_relay(system.queue.redis, "eventapi")
    for _ in range(2):
        asked = await client.post("/relay/undelivered/redeliver", params={"run_id": "a"})
        assert (asked.status_code, asked.json()) == (202, {"queued": 2, "refused": {}})
    assert await system.queue.redis.zcard(keys.redeliveries("eventapi", "a")) == 2
    assert (await client.post("/relay/undelivered/redeliver", params={"all": "true"})).json()["queued"] == 4
    everything = (await client.get("/relay/undelivered")).json()["events"]
    assert all(each["redelivering"] for each in everything)


async def test_members_are_seen(system, api):
    client = (await api(janitor=True, relay=True)).client()
    await system.worker(agents(), name="w")

    async def kinds() -> set[str]:
        return {each["kind"] for each in (await client.get("/members")).json()["members"]}

    await until(kinds, lambda found: found == {"api", "worker", "janitor", "relay"})


# -- health


async def test_health_and_metrics(api):
    running = await api()
    client = running.client()
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}
    redis = (await client.get("/internal/health/redis")).json()
    assert redis["status"] == "ok"
    assert redis["ping_ms"] > 0
    assert redis["queues"] == [{"queue": "agent-queue", "group": "agent-queue-group", "present": True}]
    await submit(client, "a")
    metrics = (await client.get("/metrics")).text
    assert 'holdfast_http_requests_total{kind="/execute",status="202"} 1.0' in metrics
    assert 'holdfast_runs_submitted_total{agent="echo",queue="agent-queue"} 1.0' in metrics


async def test_a_missing_group_is_told(system, client):
    async def health_without_the_group():  # the api makes it again with its heartbeat
        await system.queue.redis.delete(system.queue.keys.stream)
        return await client.get("/internal/health/redis")

    answer = await until(health_without_the_group, lambda answer: answer.status_code == 503)
    assert answer.json()["status"] == "group missing"
    await system.queue.ensure()


async def test_a_fresh_system_without_any_worker_has_its_groups_before_the_api_is_ready(
    system, api, monkeypatch
):
    await system.queue.redis.flushall()
    ensure, processes = RunQueue.ensure, list[ApiProcess]()
    begin, ready_at_first = ApiProcess.run, list[bool]()

    async def watched_run(process):
        processes.append(process)
        await begin(process)

    async def watched_ensure(queue):
        ready_at_first.append(processes[0].ready)
        await ensure(queue)

    monkeypatch.setattr(ApiProcess, "run", watched_run)
    monkeypatch.setattr(RunQueue, "ensure", watched_ensure)
    client = (await api()).client()
    assert ready_at_first[0] is False
    answer = await until(
        lambda: client.get("/internal/health/redis"), lambda answer: answer.status_code == 200
    )
    assert answer.json()["queues"][0]["present"]


async def test_a_redis_that_is_away_is_told_with_when_to_come_back(api, fault_proxy, proxied_settings):
    client = (await api(redis=proxied_settings)).client()
    fault_proxy.refuse()
    for method, path, body in (
        ("POST", "/execute", {"agent_id": "echo"}),
        ("GET", "/runs", None),
        ("GET", "/runs/a", None),
        ("GET", "/runs/a/events", None),
        ("GET", "/queues", None),
        ("GET", "/members", None),
        ("GET", "/deadletters", None),
        ("GET", "/internal/health/redis", None),
    ):
        answer = await client.request(method, path, json=body)
        assert answer.status_code == 503, path
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["type"] == "urn:holdfast:problem:redis-unavailable"
    assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/readyz")).status_code == 200
    fault_proxy.heal()

    async def works() -> bool:
        return (await client.post("/execute", json={"agent_id": "echo"})).status_code == 202

    # the breaker of the sender opens again by itself
    await until(works)


async def test_a_redis_that_does_not_answer_is_not_asked_by_every_request(
    system, api, fault_proxy, proxied_settings
):
    """Fails if the API submits without its breaker: each request would be held up by tries of its own."""
    system.settings = msgspec.structs.replace(
        system.settings, sender=SenderSettings(max_retries=3, retry_delay_seconds=0.01)
    )
    breaker = BreakerSettings(failure_threshold=6, window_seconds=3600, cooldown_seconds=3600)
    running = await api(redis=msgspec.structs.replace(proxied_settings, breaker=breaker))
    client, metrics = running.client(), running.process.metrics.registry
    fault_proxy.drop_replies(f"EVALSHA {load('holdfast.runs', 'submit').sha}", times=100)
    answers = [await client.post("/execute", json={"agent_id": "echo"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [503] * 4
    assert fault_proxy.dropped == 6, "four tries of the first, two of the second"
    assert int(answers[0].headers["retry-after"]) < 60
    assert all(3000 < int(answer.headers["retry-after"]) <= 3600 for answer in answers[1:])
    assert metrics.get_sample_value("holdfast_redis_breaker_state", {"queue": "agent-queue"}) == 2


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("GET", "/nowhere", 404, "openapi.json"),
        ("GET", "/runs/", 422, "run_id"),
        ("PUT", "/runs", 405, "GET"),
        ("GET", "/execute", 405, "POST"),
        ("GET", "/runs/%00", 422, "run_id"),
        ("GET", "/runs/a%20b", 422, "run_id"),
        ("GET", "/queues/a%2Fb", 404, ""),
        ("GET", "/runs?limit=many", 422, "limit"),
    ],
)
async def test_every_error_is_a_problem(client, method, path, status, told):
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["status"], problem["request_id"]) == (status, answer.headers["x-request-id"])
    assert problem["type"].startswith("urn:holdfast:problem:")
    assert told in problem["detail"]


async def test_a_defect_of_ours_is_a_problem_too_and_tells_nothing_secret(api, monkeypatch, log_lines):
    running = await api()
    client = running.client()

    async def broken(*_args):
        raise RuntimeError("index 7 of hunter2 is broken")

    from holdfast.runs.queue import RunQueue

    monkeypatch.setattr(RunQueue, "gate", broken)
    answer = await client.get("/queues")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text
    assert answer.json()["request_id"] in answer.json()["detail"]
    # The log has the whole truth, under the same id.
    (logged,) = [line for line in log_lines() if line["event"] == "request failed"]
    assert answer.json()["request_id"] == logged["request_id"]
    assert "RuntimeError: index 7 of hunter2 is broken" in str(logged)


async def test_the_span_of_a_request_has_its_status_and_that_of_a_defect_the_exception(
    api, monkeypatch, spans
):
    from opentelemetry.trace import SpanKind, StatusCode

    client = (await api()).client()

    async def broken(*_args):
        raise RuntimeError("broken")

    from holdfast.runs.queue import RunQueue

    monkeypatch.setattr(RunQueue, "gate", broken)
    for path in ("/queues", "/runs/nobody", "/healthz", "/nowhere"):
        await client.get(path)
    seen = await until(spans.get_finished_spans, lambda ended: len(ended) >= 3)
    assert len(seen) == 3, "one for each request, and none for a probe"
    found = {span.name: span for span in seen}
    assert {span.kind for span in found.values()} == {SpanKind.SERVER}
    assert {name: span.attributes["http.response.status_code"] for name, span in found.items()} == {
        "GET /queues": 500,
        "GET /runs/{run_id:path}": 404,
        "GET": 404,
    }
    failed = {name for name, span in found.items() if span.status.status_code is StatusCode.ERROR}
    assert failed == {"GET /queues"}, "what the caller asks wrongly is no error of the server"
    (recorded,) = [event for span in found.values() for event in span.events]
    assert recorded.attributes["exception.message"] == "broken"
    assert "RuntimeError" in recorded.attributes["exception.stacktrace"]
