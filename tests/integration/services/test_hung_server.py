"""One server of a cluster hangs: what janitor, relay and api do for the queues of the others goes on."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.config import (
    ApiSettings,
    DatabaseSettings,
    LeaseSettings,
    QueueSettings,
    RedisSettings,
    RelaySettings,
    Settings,
    WorkerSettings,
)
from holdfast.config.checks import key_slot
from holdfast.redis.client import connect
from holdfast.redis.keys import members_key
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission
from holdfast.services import janitor as janitor_module
from holdfast.services import relay as relay_module
from holdfast.services.api import ApiProcess
from holdfast.services.connections import Connections
from holdfast.services.janitor import Janitor
from holdfast.services.relay import Relay
from holdfast.telemetry.metrics import Metrics
from tests.support.api.server import RunningApi
from tests.support.outages import outage_lines
from tests.support.redis.clusters import cluster_url, owner_of, start_cluster
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.waiting import stays, until

HUNG, FINE = "agent-queue", "browser-jobs"
"""The first queue that a process has, whose server hangs, and one on another server."""
LONG_SECONDS = 60.0
"""How long a server is waited for that hangs: longer than any test waits for the other one."""


@pytest.fixture
def nodes(start_valkey) -> list[ValkeyProcess]:
    return start_cluster(start_valkey, "--cluster-require-full-coverage", "no")


@pytest.fixture
def settings(nodes, tmp_path: Path) -> Settings:
    return Settings(
        redis=RedisSettings(url=cluster_url(nodes), socket_timeout_seconds=LONG_SECONDS),
        lease=LeaseSettings(ttl_seconds=30.0),
        queue=QueueSettings(name=HUNG),
        queues={FINE: QueueSettings(name=FINE)},
        worker=WorkerSettings(heartbeat_seconds=0.5),
        relay=RelaySettings(private_webhooks=True),
        api=ApiSettings(port=0, janitor=False, relay=False, linger_seconds=0.0),
        database=DatabaseSettings(path=str(tmp_path / "holdfast.sqlite")),
    )


def answering_within(settings: Settings, seconds: float) -> Settings:
    """The same settings with the time that a server has for an answer."""
    return msgspec.structs.replace(
        settings, redis=msgspec.structs.replace(settings.redis, socket_timeout_seconds=seconds)
    )


@pytest.fixture
async def hang(nodes, settings) -> AsyncIterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Have one server hang; before that each queue has a run with an event that nobody takes."""
    homes = {name: owner_of(nodes, key_slot(name)) for name in (HUNG, FINE)}
    assert homes[HUNG] != homes[FINE]
    async with connect(settings.redis) as redis:
        for name in homes:
            queue = RunQueue(QueueSettings(name=name), redis)
            await queue.ensure()
            await queue.submit(Submission(agent="a", webhook="http://127.0.0.1:9/nobody"))

    @contextlib.contextmanager
    def hanging() -> Iterator[None]:
        nodes[homes[HUNG]].freeze()
        try:
            yield
        finally:
            nodes[homes[HUNG]].thaw()

    yield hanging


@contextlib.asynccontextmanager
async def running(part: Callable[..., Any], settings: Settings) -> AsyncIterator[tuple[Any, Metrics]]:
    """A janitor or a relay that runs as a task of the test."""
    metrics = Metrics()
    async with Connections(settings) as connections:
        made = part(connections, metrics)
        task = asyncio.create_task(made.run())
        try:
            yield made, metrics
        finally:
            made.request_stop()
            await asyncio.wait_for(task, 30)


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"holdfast_{name}", labels)


async def say_two_partitions(settings: Settings) -> None:
    """Have somebody count on one partition more than is configured."""
    async with connect(settings.redis) as redis:
        await RunQueue(QueueSettings(name=FINE, partitions=2), redis).look_around(say=True)


async def test_a_janitor_measures_and_looks_after_the_queues_of_the_other_servers(
    settings, hang, monkeypatch
):
    """Fails if one queue is looked at after the other."""
    monkeypatch.setattr(janitor_module, "_GAUGES_SECONDS", 1.0)
    monkeypatch.setattr(janitor_module, "COUNT_SECONDS", 1.0)
    with hang():
        async with running(Janitor, settings) as (janitor, metrics):
            await until(lambda: sample(metrics, "queue_depth", queue=FINE) == 1)
            await say_two_partitions(settings)
            await until(lambda: sum(ward.queue.name == FINE for ward in janitor._partitions) == 2)
            assert sample(metrics, "queue_depth", queue=HUNG) is None


async def test_a_relay_measures_and_serves_the_queues_of_the_other_servers(settings, hang, monkeypatch):
    """Fails if one queue is looked at after the other."""
    monkeypatch.setattr(relay_module, "_GAUGES_SECONDS", 1.0)
    monkeypatch.setattr(relay_module, "COUNT_SECONDS", 1.0)
    async with running(Relay, settings) as (relay, metrics):
        await until(lambda: sample(metrics, "relay_waiting", queue=HUNG, sink="webhook") == 1)
        with hang():
            await say_two_partitions(settings)
            await until(lambda: len(relay._outboxes[FINE]) == 2)
            async with connect(settings.redis) as redis:
                queue = RunQueue(QueueSettings(name=FINE), redis)
                await queue.submit(Submission(agent="a", webhook="http://127.0.0.1:9/nobody"))
            await until(lambda: sample(metrics, "relay_waiting", queue=FINE, sink="webhook") == 2)


@pytest.mark.parametrize("part", [Janitor, Relay])
async def test_an_outage_of_one_server_is_one_line_however_often_the_others_answer(
    settings, hang, monkeypatch, log_lines, part
):
    """Fails if loops of both servers share a reporter: each answer of the other one ended the outage."""
    monkeypatch.setattr(janitor_module, "_GAUGES_SECONDS", 5.0)
    async with running(part, answering_within(settings, 4.0)) as (made, metrics):
        gauge = "queue_depth" if part is Janitor else "relay_undelivered_kept"
        await until(lambda: sample(metrics, gauge, queue=HUNG) is not None)
        if part is Relay:
            made._loops._poll_until = math.inf  # its loops ask all the time
        before = len(outage_lines(log_lines()))

        def since() -> list[str]:
            return [line["event"] for line in outage_lines(log_lines())[before:]]

        with hang():
            await until(since)
            await stays(lambda: since() == ["Redis unavailable"], seconds=6.0)


async def test_runs_without_a_worker_are_reported_of_the_queues_of_the_other_servers(settings, hang, nodes):
    """Fails if one look at all queues needs every server."""
    members = nodes[owner_of(nodes, key_slot(members_key()))]
    assert members is not nodes[owner_of(nodes, key_slot(HUNG))], "who serves must be known"
    quick = answering_within(settings, 2.0)
    unserved = msgspec.structs.replace(quick, api=msgspec.structs.replace(quick.api, unserved_seconds=0.2))
    with hang():
        running_api = await RunningApi(ApiProcess(unserved)).ready()
        client = running_api.client()

        async def unserved_queues() -> list[str]:
            return (await client.get("/readyz")).json().get("unserved", [])

        try:
            await until(unserved_queues, lambda names: names == [FINE])
        finally:
            await running_api.close()


async def test_the_health_of_redis_says_whose_server_does_not_answer(settings, hang):
    """Fails if a server that hangs leaves the monitoring without an answer about the others."""
    running_api = await RunningApi(ApiProcess(answering_within(settings, 4.0))).ready()
    client = running_api.client()

    async def health() -> tuple[int, dict[str, Any]]:
        answer = await client.get("/internal/health/redis")
        return answer.status_code, answer.json()

    async def said_of(queue: str) -> dict[str, Any]:
        _, answer = await health()
        found = {each["queue"]: each for each in answer.get("queues", ())}
        return found.get(queue, {})

    try:
        await until(health, lambda found: found[0] == 200)
        with hang():
            await until(lambda: said_of(FINE), lambda said: said.get("present") and "answers" not in said)
            status, answer = await health()
            assert (status, answer["status"], answer["ping_ms"]) == (503, "no answer", None)
            hung = {"queue": HUNG, "group": f"{HUNG}-group", "present": False, "answers": False}
            assert hung in answer["queues"]
        await until(health, lambda found: found[0] == 200)
    finally:
        await running_api.close()
