"""Runs that wait in a queue without a worker are reported; the api stays ready, since it can still be asked."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from holdfast.redis.keys import QueueKeys
from tests.support.runs.sample_runs import agents
from tests.support.waiting import until

REPORTS = QueueKeys.of("reports")


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


@pytest.fixture
async def damaged(system, redis):
    """Damage keys of a second queue, ``reports``; the api makes a pass over its queues ten times a second."""
    settings = system.settings
    system.settings = msgspec.structs.replace(
        settings,
        queues={"reports": msgspec.structs.replace(settings.queue, name="reports")},
        worker=msgspec.structs.replace(settings.worker, heartbeat_seconds=0.1),
    )
    yield partial(redis.set, value="neither a stream nor a sorted set")
    await redis.delete(REPORTS.delayed, REPORTS.stream)


def warnings(log_lines, event):
    return [
        (line["level"], line["queue"], line["error"].partition(" ")[0])
        for line in log_lines()
        if line["event"] == event
    ]


async def test_a_damaged_queue_is_named_once_and_the_others_are_still_reported(
    api, system, damaged, log_lines
):
    """Fails if one error is that of all queues: none was reported, and nothing named the damaged one."""
    await damaged(REPORTS.delayed)
    client = (await api(unserved_seconds=0.5)).client()
    await system.submit("echo", {})
    reported = (200, {"status": "ready", "unserved": ["agent-queue"]})
    await until(lambda: readiness(client), lambda found: found == reported)
    event = "queue is not checked for runs without a worker"
    assert warnings(log_lines, event) == [("warning", "reports", "WRONGTYPE")]


async def test_why_a_consumer_group_can_not_be_made_is_logged_once_for_its_queue(
    api, system, redis, damaged, log_lines
):
    await damaged(REPORTS.stream)
    await api()
    groups = system.queue.keys.stream
    for _ in range(3):  # passes of the api over its queues: the group of the other one is made again
        await redis.xgroup_destroy(groups, system.settings.queue.group)
        await until(lambda: redis.xinfo_groups(groups))
    event = "consumer group creation failed"
    assert warnings(log_lines, event) == [("warning", "reports", "WRONGTYPE")]
