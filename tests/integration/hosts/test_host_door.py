"""A host that can't serve yet says so to whoever asks, and does not keep callers waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from holdfast.config import RedisSettings
from holdfast.hosts import directory
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.hosts.server import SERVICE
from tests.support.hosts.host_processes import Cluster, HostChild, agent, cluster_of
from tests.support.redis.valkey_process import free_port
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Asked:
    """A host that is asked in every way there is."""

    def __init__(self, cluster: Cluster) -> None:
        self._metrics, self.grpc = free_port(), free_port()
        ports = {"METRICS_PORT": str(self._metrics), "GRPC_PORT": str(self.grpc)}
        self.child = HostChild(cluster.settings, "a", **ports)
        self.channel = aio.insecure_channel(f"127.0.0.1:{self.grpc}")

    async def says(self, line: str) -> None:
        """Wait for a line of its log."""
        await until(lambda: line in self.child.logged())

    async def page(self, path: str) -> int:
        async with httpx.AsyncClient(timeout=30) as web:
            return (await web.get(f"http://127.0.0.1:{self._metrics}{path}")).status_code

    async def probe(self, service: str) -> Any:
        asked = health_pb2.HealthCheckRequest(service=service)
        return (await health_pb2_grpc.HealthStub(self.channel).Check(asked, timeout=30)).status

    async def call(self) -> wire.HealthResponse:
        return await AgentHostServiceStub(self.channel).Health(wire.HealthRequest(), timeout=30)


async def closed(asked: Asked) -> None:
    """Check that a host lives, is not ready, and sends its callers away."""
    assert [await asked.page("/healthz"), await asked.page("/readyz")] == [200, 503]
    assert [await asked.probe(""), await asked.probe(SERVICE)] == [SERVING, NOT_SERVING]
    with pytest.raises(aio.AioRpcError) as caught:
        await asked.call()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "does not serve yet" in (caught.value.details() or "")


async def opened(asked: Asked) -> None:
    """Check that a host serves."""
    await asked.child.ready()
    assert [await asked.page("/healthz"), await asked.page("/readyz")] == [200, 200]
    assert [await asked.probe(""), await asked.probe(SERVICE)] == [SERVING, SERVING]
    assert (await asked.call()).healthy


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A host that is without CPU for two seconds is no host that is away."""
    monkeypatch.setattr(directory, "_HEALTH_TIMEOUT_SECONDS", 30.0)


@pytest.fixture
async def begun() -> AsyncIterator[list[Asked]]:
    """What a test has asked, ended with it."""
    asked: list[Asked] = []
    yield asked
    for each in asked:
        await each.channel.close()
        print(each.child.close())


async def test_a_host_without_redis_is_not_ready_until_it_has_one(restartable_valkey, begun):
    restartable_valkey.kill()
    async with cluster_of(RedisSettings(url=restartable_valkey.tcp_url)) as cluster:
        begun.append(asked := Asked(cluster))
        await asked.says("Redis unavailable")
        await closed(asked)
        restartable_valkey.start()
        await opened(asked)


async def test_a_host_whose_name_is_taken_is_not_ready_until_it_is_free(redis, redis_settings, begun):
    async with cluster_of(redis_settings, "a") as cluster:
        first = cluster.children["a"]
        begun.append(asked := Asked(cluster))
        await asked.says("host name in use")
        await closed(asked)
        first.terminate()
        assert await first.exited(60) == 0
        await opened(asked)


async def test_a_host_that_does_not_serve_yet_is_passed_over_at_once(redis, redis_settings, begun):
    """It is in a list of addresses, and listens: only its answer tells."""
    async with cluster_of(redis_settings, "a", "b") as cluster:
        begun.append(asked := Asked(cluster))
        await asked.says("host name in use")
        known = [f"127.0.0.1:{asked.grpc}", cluster.children["b"].address]
        static = Cluster(redis_settings, directory="static", addresses=known, grpc_max_retries=0)
        try:
            assert [host.name for host in await static.engine.hosts()] == ["b"]
            assert (await static.engine.run(agent())).host == "b"
        finally:
            await static.close()
