"""A run's path: the same id in two queues, and ids that end like a path of ours."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from holdfast import App, GiveUp
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store


@pytest.fixture
async def running(system, api):
    system.settings = msgspec.structs.replace(
        system.settings, queues={"media": system.settings.queue.renamed("media")}
    )
    return await api()


@pytest.fixture
async def client(running) -> httpx.AsyncClient:
    client = running.client()
    for queue in ("agent-queue", "media"):
        body = {"agent_id": "echo", "correlation_id": "same", "queue": queue, "input": queue}
        assert (await client.post("/execute", json=body)).status_code == 202
    return client


async def test_the_queue_says_which_of_two_runs_is_meant(client):
    assert (await client.get("/runs/same")).json()["queue"] == "agent-queue"
    for queue in ("agent-queue", "media"):
        of = {"queue": queue}
        assert (await client.get("/runs/same", params=of)).json()["input"] == queue
        assert (await client.get("/runs/same/result", params=of)).status_code == 202
        explained = (await client.get("/runs/same/explain", params=of)).json()["because"]
        assert repr(queue) in explained[0]
        events = await client.get("/runs/same/events", params={**of, "follow": "false"})
        assert "event: submitted" in events.text
    assert (await client.post("/runs/same/cancel", params={"queue": "media"})).json()["status"] == "cancelled"
    assert (await client.get("/runs/same", params={"queue": "media"})).json()["status"] == "cancelled"
    assert (await client.get("/runs/same", params={"queue": "agent-queue"})).json()["status"] == "queued"
    assert (await client.post("/runs/same/retry", params={"queue": "agent-queue"})).status_code == 409
    assert (await client.post("/runs/same/retry", params={"queue": "media"})).status_code == 202
    resume = await client.post("/runs/same/resume", params={"queue": "media"})
    assert "queued" in resume.json()["detail"]


async def test_a_queue_that_is_not_there_or_has_no_such_run_is_named(client):
    for path in ("/runs/same", "/runs/same/result", "/runs/same/events", "/runs/same/explain"):
        missing = await client.get(path, params={"queue": "medai"})
        assert missing.status_code == 404
        assert "did you mean 'media'?" in missing.json()["detail"]
        wrong = await client.get(path, params={"queue": "me dia"})
        assert wrong.status_code == 422
        assert wrong.headers["content-type"] == "application/problem+json"
    body = {"agent_id": "echo", "correlation_id": "only", "queue": "media"}
    await client.post("/execute", json=body)
    elsewhere = await client.get("/runs/only", params={"queue": "agent-queue"})
    assert elsewhere.status_code == 404
    assert "in queue 'agent-queue'" in elsewhere.json()["detail"]
    answer = {**body, "action": "RESUME", "queue": "agent-queue"}
    assert (await client.post("/execute", json=answer)).status_code == 404
    assert (await client.post("/execute", json={**answer, "queue": "media"})).status_code == 409


async def test_an_archived_run_is_found_in_its_queue(running, client):
    kept = [
        ArchivedRun(id="old", queue=queue, status="succeeded", finished_at=at, result=f'"{queue}"'.encode())
        for queue, at in (("agent-queue", 1.0), ("media", 2.0))
    ]
    async with await open_store(running.process._settings.database) as store:
        await store.archive(kept)
    for queue in ("agent-queue", "media"):
        assert (await client.get("/runs/old", params={"queue": queue})).json()["queue"] == queue
        result = await client.get("/runs/old/result", params={"queue": queue})
        assert result.json()["result"] == queue
    assert (await client.get("/runs/old")).json()["queue"] == "media"


async def test_dead_letters_of_one_id_are_told_apart_by_their_queue(system, client):
    app = App("fails")

    @app.agent
    async def echo(value):
        raise GiveUp("no")

    await system.worker(app, queues=("agent-queue", "media"))
    for queue in ("agent-queue", "media"):
        await client.get("/runs/same/result", params={"queue": queue, "wait": 20})
        letter = await client.get("/deadletters/same", params={"queue": queue})
        assert letter.json()["queue"] == queue
    assert (await client.delete("/deadletters/same", params={"queue": "media"})).json()["queue"] == "media"
    assert (await client.get("/deadletters/same", params={"queue": "media"})).status_code == 404
    assert (await client.get("/deadletters/same", params={"queue": "agent-queue"})).status_code == 200


@pytest.mark.parametrize("verb", ["result", "events", "explain", "resume", "cancel", "retry"])
async def test_an_id_that_ends_like_a_path_of_ours_is_read_by_its_own(client, verb):
    run_id, written = f"order/7/{verb}", f"order%2F7%2F{verb}"
    await client.post("/execute", json={"agent_id": "echo", "correlation_id": "order/7", "input": "other"})
    await client.post("/execute", json={"agent_id": "echo", "correlation_id": run_id, "input": verb})
    run = (await client.get(f"/runs/{written}")).json()
    assert (run["id"], run["input"]) == (run_id, verb)
    assert (await client.get(f"/runs/{written}/result")).json()["run_id"] == run_id
    assert (await client.get(f"/runs/{run_id}/result")).json()["run_id"] == run_id
    cancelled = await client.post(f"/runs/{written}/cancel")
    assert cancelled.json() == {"run_id": run_id, "status": "cancelled"}
    assert (await client.get("/runs/order/7")).json()["status"] == "queued"
