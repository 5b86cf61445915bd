"""Runs that wait in a queue without a worker are reported; the api stays ready, since it can still be asked."""

from __future__ import annotations

from tests.support.runs.sample_runs import agents
from tests.support.waiting import until


async def readiness(client):
    answer = await client.get("/readyz")
    return answer.status_code, answer.json()


async def test_runs_that_no_worker_serves_are_reported_and_logged_once_until_a_worker_comes(
    api, system, log_lines
):
    client = (await api(unserved_seconds=0.2)).client()
    await system.submit("echo", {})
    reported = (200, {"status": "ready", "unserved": ["agent-queue"]})
    await until(lambda: readiness(client), lambda found: found == reported)
    await system.worker(agents(), name="w")
    await until(lambda: readiness(client), lambda found: found == (200, {"status": "ready"}))
    lines = [line for line in log_lines() if line.get("queue") == "agent-queue"]
    warnings = [line for line in lines if line["event"] == "runs wait in a queue that no worker serves"]
    assert [(line["level"], line["waiting"]) for line in warnings] == [("warning", 1)]
    assert [line["event"] for line in lines if "no longer" in line["event"]] == [
        "runs no longer wait in a queue without a worker"
    ]
