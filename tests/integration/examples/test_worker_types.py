"""Seed 003's two worker types: their own queues, slots and scaling, and the depth that its formulas miss."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis as SyncRedis

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.agents.reference import load_module
from holdfast.config import DatabaseSettings, Settings, load
from holdfast.errors import NotFound
from holdfast.runs.run import Status
from holdfast.services.api import ApiProcess
from holdfast.services.connections import Connections
from tests.support.api.server import RunningApi
from tests.support.redis.key_ttls import check_keys
from tests.support.runs.system import RunningWorker
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "worker_types"
BROWSER, TANKPIT, OTHER = "browser:jobs", "tankpit:jobs", "jobs"

answers = load_module(str(EXAMPLE / "depths.py")).answers


@pytest.fixture
def app() -> App:
    return load_app(str(EXAMPLE / "app.py"))


@pytest.fixture
def settings(redis, redis_settings, tmp_path) -> Settings:
    loaded = load(EXAMPLE / "holdfast.yaml", environ={}).settings
    database = DatabaseSettings(path=str(tmp_path / "holdfast.sqlite"))
    return msgspec.structs.replace(loaded, redis=redis_settings, database=database)


@pytest.fixture
async def connections(settings, redis) -> AsyncIterator[Connections]:
    async with Connections(settings) as connections:
        for name in (BROWSER, TANKPIT, OTHER):
            await connections.queue(settings.queue_named(name)).ensure()
        yield connections
    await check_keys(redis)


@pytest.fixture
async def deep(settings, connections, redis_url) -> AsyncIterator[Any]:
    """Ask as depths.py does, in a thread: it is a program without an event loop."""
    quick = msgspec.structs.replace(settings.api, port=0, linger_seconds=0.0)
    api = await RunningApi(ApiProcess(msgspec.structs.replace(settings, api=quick))).ready()
    with SyncRedis.from_url(redis_url) as client:
        yield lambda queue: asyncio.to_thread(answers, settings, client, api.url, queue)
    await api.close()


def serving(settings: Settings, *queues: str) -> Settings:
    return msgspec.structs.replace(
        settings, worker=msgspec.structs.replace(settings.worker, queues=queues, drain_seconds=0.0)
    )


async def publish(redis: Any, stream: str, job_id: str, seconds: float) -> str:
    """As the bot's broker does it."""
    job = {"id": job_id, "type": stream.partition(":")[0], "payload": {"seconds": seconds}}
    return (await redis.xadd(stream, {"json": json.dumps(job)})).decode()


async def end(worker: RunningWorker) -> None:
    worker.process.request_stop()
    worker.process.request_stop()
    await asyncio.wait_for(worker.task, 30)


def test_each_type_has_its_own_slots_and_policy(settings):
    browser, tankpit = (settings.queue_named(name) for name in (BROWSER, TANKPIT))
    assert (browser.slots, browser.scaling.min_workers, browser.scaling.max_workers) == (2, 0, 8)
    assert (tankpit.slots, tankpit.scaling.min_workers, tankpit.scaling.max_workers) == (16, 1, 4)


async def test_an_entry_of_the_bots_broker_is_done_by_its_type(settings, connections, redis, app):
    entry = await publish(redis, BROWSER, "b1", 0)
    move = await publish(redis, TANKPIT, "t1", 0)
    workers = [await RunningWorker(serving(settings, name), app).ready() for name in (BROWSER, TANKPIT)]
    browser, tankpit = (connections.queue(settings.queue_named(name)) for name in (BROWSER, TANKPIT))
    for queue, run_id in ((browser, f"entry-{entry}"), (tankpit, f"entry-{move}")):
        await until(functools.partial(queue.get, run_id), lambda run: run.status.ended, tolerate=NotFound)
    assert (await browser.get(f"entry-{entry}")).result == {"job": "b1", "shot": "b1.png"}
    assert (await tankpit.get(f"entry-{move}")).result == {"job": "t1", "moved": True}
    for worker in workers:
        await end(worker)


async def test_a_job_is_published_by_the_command_of_the_page(redis, redis_url, tmp_path):
    (line,) = [each for each in (EXAMPLE / "README.md").read_text().splitlines() if "publish.py" in each]
    python, script, *arguments = line.partition("#")[0].split()
    assert python == "python"

    def publish_with(url: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLE / script), *arguments]
        environ = {**os.environ, "REDIS_URL": url}
        return subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    said = await asyncio.to_thread(publish_with, redis_url)
    ((entry, fields),) = await redis.xrange(TANKPIT)
    assert said.stdout.split() == [entry.decode()], said.stderr
    assert {key: json.loads(value) for key, value in fields.items()} == {
        b"json": {"id": "t1", "type": "tankpit"}
    }
    nowhere = await asyncio.to_thread(publish_with, "")
    assert (nowhere.returncode, "start `holdfast dev APP` there" in nowhere.stderr) == (1, True)
    assert "Traceback" not in nowhere.stderr


async def test_a_job_without_a_type_of_its_own_goes_to_the_default_queue_which_is_served(
    settings, connections, redis, app
):
    assert settings.messaging.queue == OTHER
    assert OTHER in settings.worker.queues
    entry = await publish(redis, OTHER, "j1", 0)
    worker = await RunningWorker(serving(settings, OTHER), app).ready()
    queue = connections.queue(settings.queue_named(OTHER))
    run = await until(
        lambda: queue.get(f"entry-{entry}"), lambda run: run.status is Status.SUCCEEDED, tolerate=NotFound
    )
    assert run.result == {"job": "j1", "done": True}
    await end(worker)


async def test_pending_alone_never_wakes_a_worker_type_from_zero(redis, deep):
    """The seed's "for now, just return pending": five jobs wait, nobody has read them, so it says 0."""
    for number in range(5):
        await publish(redis, BROWSER, f"b{number}", 0)
    found = await deep(BROWSER)
    assert (found.pending, found.need["depth"], found.need["wanted"]) == (0, 5, 3)


async def test_pending_alone_ends_no_worker_but_misses_the_backlog(settings, redis, app, deep):
    for number in range(6):
        await publish(redis, BROWSER, f"b{number}", 3600)
    worker = await RunningWorker(serving(settings, BROWSER), app).ready()
    found = await until(lambda: deep(BROWSER), lambda found: found.pending >= 2)
    assert (found.pending, found.need["in_flight"], found.need["undelivered"]) == (2, 2, 4)
    assert (found.need["depth"], found.need["wanted"]) == (6, 3), "two slots each: three workers, not one"
    await end(worker)


async def test_the_streams_length_counts_what_was_done_long_ago(settings, redis, app, deep):
    """The seed's XLEN: where acked entries stay, it only grows; the depth is 0 when nothing is left."""
    for number in range(10):
        await publish(redis, TANKPIT, f"t{number}", 0)
    worker = await RunningWorker(serving(settings, TANKPIT), app).ready()
    await until(lambda: deep(TANKPIT), lambda found: not found.need["depth"])
    found = await deep(TANKPIT)
    assert (found.xlen, found.pending, found.need["depth"]) == (10, 0, 0)
    assert found.need["wanted"] == 1, "min_workers: the policy of this type keeps one"
    await end(worker)


async def test_a_job_that_is_no_job_is_a_dead_letter(settings, connections, redis, app):
    entry = (await redis.xadd(BROWSER, {"json": '{"id": 7}'})).decode()
    queue = connections.queue(settings.queue_named(BROWSER))
    worker = await RunningWorker(serving(settings, BROWSER), app).ready()
    await until(lambda: redis.xlen(queue.keys.deadletter))
    run = await queue.get(f"entry-{entry}")
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "malformed")
    await end(worker)
