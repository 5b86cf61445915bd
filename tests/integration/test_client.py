"""A client over Redis: what is not the same over HTTP. The rest is in tests/contract/client."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import holdfast
from holdfast import App, Client, ConfigError, HoldfastError, InputError, NotFound, RedisUnavailable
from holdfast.config import RelaySettings, SenderSettings
from holdfast.runs.run import Status
from tests.support.runs.system import System
from tests.support.waiting import until

app = App("tests")


@app.agent
async def echo(value):
    return value


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings) as system:
        yield system


@pytest.fixture
async def worker(system):
    return await system.worker(app)


@pytest.fixture
async def client(system):
    async with Client(settings=system.settings) as client:
        yield client


async def test_many_results_are_waited_for_on_few_connections(system, redis_settings, worker):
    few = msgspec.structs.replace(redis_settings, max_connections=3)
    async with Client(settings=msgspec.structs.replace(system.settings, redis=few)) as client:
        handles = await client.submit_many([{"agent": "echo", "input": n} for n in range(300)])
        results = await asyncio.wait_for(asyncio.gather(*(handle.result() for handle in handles)), 30)
    assert results == list(range(300))


@pytest.mark.parametrize("url", ["http://127.0.0.1:18999/h", "http://receiver.shop.svc/hook"])
async def test_a_webhook_into_our_own_network_is_refused(system, client, url):
    strict = msgspec.structs.replace(system.settings, relay=RelaySettings())
    async with Client(settings=strict) as refused:
        with pytest.raises(InputError, match=r"webhook leads to a private address.*relay.private_webhooks"):
            await refused.submit("echo", webhook=url)
    assert (await client.submit("echo", webhook=url)).fresh


async def test_a_run_is_in_the_lane_and_queue_that_were_named(client):
    handle = await client.submit("echo", 1, queue="media", priority="high")
    assert (await handle.run()).lane == "{media}:high"
    with pytest.raises(NotFound, match=handle.run_id):
        await client.handle(handle.run_id).status()
    assert await client.handle(handle.run_id, queue="media").status() is Status.QUEUED
    assert (await client.submit("echo")).queue == "agent-queue"


async def test_what_one_queue_has_accepted_is_known_though_the_other_can_not_be_reached(
    system, fault_proxy, redis_settings
):
    """Fails if an error at the second queue takes the handles of the first with it."""
    sender = SenderSettings(max_retries=0)
    patient = msgspec.structs.replace(
        redis_settings, url=fault_proxy.url, socket_timeout_seconds=30.0, connect_timeout_seconds=30.0
    )
    proxied = msgspec.structs.replace(system.settings, redis=patient, sender=sender)
    requests = [{"agent": "echo"}, {"agent": "echo", "queue": "media"}, {"agent": "echo"}]
    async with Client(settings=proxied) as client:
        await client.submit_many(requests)  # the script is known from here on
        fault_proxy.drop_replies("EVALSHA", after=1)
        first, lost, third = await client.submit_many(requests, return_errors=True)
        fault_proxy.drop_replies("EVALSHA", after=1)
        with pytest.raises(RedisUnavailable) as caught:
            await client.submit_many(requests)
        assert [await handle.status() for handle in (first, third)] == [Status.QUEUED] * 2
    assert isinstance(lost, RedisUnavailable)
    assert caught.value.__notes__ == ["2 of 3 runs were accepted"]


@pytest.mark.parametrize(("gate", "spoilt"), [("{media}:gate", 2), ("{media.p1}:gate", 1)])
async def test_what_redis_refuses_of_many_is_the_error_of_those_alone(system, redis, gate, spoilt):
    """Fails if what one queue or partition answers stands for all, or is none of our errors."""
    media = system.settings.queue.renamed("media")
    media = msgspec.structs.replace(media, partitions=spoilt % 2 + 1)
    settings = msgspec.structs.replace(system.settings, queues={"media": media})
    await redis.set(gate, "somebody's")
    async with Client(settings=settings) as client:
        requests = [{"agent": "echo", "queue": queue} for queue in ("media", "media", None)]
        *spread, accepted = await client.submit_many(requests, return_errors=True)
    await redis.delete(gate)
    assert accepted.fresh
    refused = [answer for answer in spread if isinstance(answer, HoldfastError)]
    assert [("WRONGTYPE" in str(answer)) for answer in refused] == [True] * spoilt


async def test_a_url_beats_the_settings(system, redis_url):
    elsewhere = msgspec.structs.replace(
        system.settings, redis=msgspec.structs.replace(system.settings.redis, url="redis://127.0.0.1:1")
    )
    async with Client(redis_url, settings=elsewhere) as client:
        assert (await client.submit("echo")).fresh


def test_one_way_is_given_and_not_two():
    with pytest.raises(ConfigError, match="not both"):
        Client("redis://localhost", api_url="http://localhost")
    with pytest.raises(ConfigError, match="api_url"):
        Client("http://localhost:8080")
    with pytest.raises(ConfigError, match="api_url"):
        Client("redis://localhost", api_key="k")


async def test_settings_come_from_the_environment(redis, redis_url, monkeypatch):
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("MESSAGING_QUEUE_NAME", "from-environment")
    async with Client() as client:
        assert (await client.submit("echo")).queue == "from-environment"


async def test_waiting_for_a_result_survives_a_redis_that_restarts(restartable_valkey, redis_settings):
    settings = msgspec.structs.replace(redis_settings, url=restartable_valkey.url)
    async with System(settings) as system, Client(settings=system.settings) as client:
        handle = await client.submit("echo", 1)
        waiting = asyncio.create_task(handle.result(timeout=20))
        connected = system.queue.redis
        await until(lambda: _somebody_blocks(connected))
        await asyncio.to_thread(restartable_valkey.restart)
        await system.worker(app)
        assert await waiting == 1


async def _somebody_blocks(redis):
    return (await redis.info("clients"))["blocked_clients"] > 0


async def test_with_no_redis_at_all_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDIS_URL", raising=False)
    with pytest.raises(RedisUnavailable, match="holdfast dev"):
        async with Client():
            pass
    assert list(tmp_path.iterdir()) == []


async def test_the_embedded_server_of_a_directory_is_found(valkey_server, redis, monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("HOLDFAST_EMBEDDED_DIR", str(valkey_server.directory))
    async with Client() as client:
        assert (await client.submit("echo")).fresh


def test_importing_holdfast_does_not_load_the_client():
    import subprocess
    import sys

    code = "import holdfast, sys; assert 'redis' not in sys.modules; assert holdfast.Client; import holdfast as h; h.SyncClient"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    with pytest.raises(AttributeError, match="Clint"):
        holdfast.Clint  # noqa: B018
