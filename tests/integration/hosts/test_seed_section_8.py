"""The users' document, section 8 "Testing Strategy", as printed: its unit, gRPC, load and fault tests by name.

Waiting is for what is waited for, not for a number of seconds; K8sExecutionEngine itself needs Rustic AI and is tested
where that runs. The load test is on our own engine.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
import redis as sync_redis

from holdfast.compat.location_registry import AgentLocationRegistry
from holdfast.compat.process_manager import AgentProcessManager
from holdfast.config import HostSettings, LeaseSettings, Settings, WorkerSettings
from holdfast.hosts.proto import agent_host_pb2, agent_host_pb2_grpc
from tests.support.hosts.host_processes import HostChild, agent, cluster_of
from tests.support.waiting import wait_until

guild_spec = {"id": "test-guild", "name": "Guild", "organization_id": "test-org", "agents": []}
messaging_config = {"backend_type": "redis", "connection_params": {}}


def create_test_agent_spec(agent_id: str) -> dict:
    return {"id": agent_id, "name": agent_id, "class_name": "tests.support.hosts.plain_agents.Idle"}


@pytest.fixture
def managers() -> Iterator[list[AgentProcessManager]]:
    """Managers that end with their test."""
    made: list[AgentProcessManager] = []
    yield made
    for each in made:
        each.shutdown()


@pytest.fixture
def manager_of(managers):
    def make(**options) -> AgentProcessManager:
        managers.append(AgentProcessManager(class_prefixes=("tests.support.hosts",), **options))
        return managers[-1]

    return make


@pytest.fixture
def redis_client(redis, redis_url) -> Iterator[sync_redis.Redis]:
    with sync_redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def stub(redis, redis_settings) -> Iterator[agent_host_pb2_grpc.AgentHostServiceStub]:
    settings = Settings(
        redis=redis_settings,
        hosts=HostSettings(ttl_seconds=30.0, grpc_port=0),
        worker=WorkerSettings(heartbeat_seconds=2.0),
        lease=LeaseSettings(ttl_seconds=15.0),
    )
    child = HostChild(settings, "a")
    try:
        wait_until(lambda: child.process.poll() is not None or "host ready" in child.logged(), seconds=60)
        with grpc.insecure_channel(child.address) as channel:
            yield agent_host_pb2_grpc.AgentHostServiceStub(channel)
    finally:
        print(child.close(), file=sys.stderr)


# -- 8.1 AgentProcessManager


def test_spawn_agent_process(manager_of):
    """Test spawning a single agent process."""
    manager = manager_of(max_processes=10)
    agent_id = manager.spawn_agent_process(create_test_agent_spec("agent-1"), guild_spec, messaging_config)
    assert agent_id == "agent-1"
    assert manager.is_process_alive(agent_id)


def test_stop_agent_process(manager_of):
    """Test graceful process termination."""
    manager = manager_of()
    agent_id = manager.spawn_agent_process(create_test_agent_spec("agent-1"), guild_spec, messaging_config)
    success = manager.stop_agent_process(agent_id, timeout=5)
    assert success
    assert not manager.is_process_alive(agent_id)


def test_max_processes_limit(manager_of):
    """Test that max_processes limit is enforced."""
    manager = manager_of(max_processes=2)
    manager.spawn_agent_process(create_test_agent_spec("agent-1"), guild_spec, messaging_config)  # OK
    manager.spawn_agent_process(create_test_agent_spec("agent-2"), guild_spec, messaging_config)  # OK
    with pytest.raises(RuntimeError, match="max_processes allows 2"):
        manager.spawn_agent_process(create_test_agent_spec("agent-3"), guild_spec, messaging_config)  # Fails


# -- 8.1 AgentLocationRegistry


def test_register_and_lookup(redis_client):
    """Test agent registration and lookup."""
    registry = AgentLocationRegistry(redis_client)
    registry.register("agent-1", "host-1:50051")
    location = registry.get_location("agent-1")
    assert location == "host-1:50051"


def test_ttl_expiration(redis_client):
    """Test that TTL causes automatic expiration."""
    registry = AgentLocationRegistry(redis_client)
    registry.TTL_SECONDS = 1  # Override for testing
    registry.register("agent-1", "host-1:50051")
    assert redis_client.pttl("agent_location:agent-1") <= 1000
    wait_until(lambda: registry.get_location("agent-1") is None)


def test_heartbeat_refresh(redis_client):
    """Test that heartbeat refreshes TTL."""
    registry = AgentLocationRegistry(redis_client)
    registry.TTL_SECONDS = 60
    registry.register("agent-1", "host-1:50051")
    assert redis_client.expire("agent_location:agent-1", 30), "as if half of its time had passed"
    assert registry.heartbeat("agent-1")
    assert redis_client.pttl("agent_location:agent-1") > 30_000
    assert registry.get_location("agent-1") == "host-1:50051"  # Still alive


# -- 8.2 gRPC service


def create_request(agent_id: str) -> agent_host_pb2.CreateAgentRequest:
    return agent_host_pb2.CreateAgentRequest(
        agent_spec=json.dumps(create_test_agent_spec(agent_id)).encode(),
        guild_spec=json.dumps(guild_spec).encode(),
        messaging_config=json.dumps(messaging_config).encode(),
        machine_id=1,
        client_type="MessageTrackingClient",
        client_properties=b"{}",
        entry="plain",
    )


def test_create_agent_via_grpc(stub):
    """Test creating an agent via gRPC."""
    response = stub.CreateAgent(create_request("agent-1"), timeout=60)
    assert response.success
    assert response.agent_id == "agent-1"
    assert psutil.pid_exists(response.pid)
    assert stub.Health(agent_host_pb2.HealthRequest()).agent_count == 1


def test_stop_agent_via_grpc(stub, redis_client):
    """Test stopping an agent via gRPC."""
    # Create agent first
    response1 = stub.CreateAgent(create_request("agent-1"), timeout=60)
    agent_id = response1.agent_id
    assert AgentLocationRegistry(redis_client).get_location(agent_id)

    # Stop agent
    request = agent_host_pb2.StopAgentRequest(agent_id=agent_id)
    response2 = stub.StopAgent(request, timeout=60)
    assert response2.success
    assert AgentLocationRegistry(redis_client).get_location(agent_id) is None
    assert not Path(f"/proc/{response1.pid}").exists()


# -- 8.3 Load


@pytest.mark.timeout(400)
async def test_100_agents(redis, redis_settings, redis_client):
    """Test creating 100 agents across multiple hosts."""
    async with cluster_of(redis_settings, ttl_seconds=30.0) as cluster:
        await cluster.start("a", "b", "c", HOLDFAST_HOSTS_PRELOAD="tests.support.hosts.plain_agents")
        engine = cluster.engine

        agent_ids = []
        for i in range(100):
            await engine.run(agent(f"agent-{i}"))
            agent_ids.append(f"agent-{i}")

        # Verify all running
        for agent_id in agent_ids:
            assert await engine.location(agent_id) is not None
        load = AgentLocationRegistry(redis_client).get_host_load()
        assert sum(load.values()) == 100
        assert max(load.values()) - min(load.values()) <= 1, load

        # Cleanup
        for agent_id in agent_ids:
            assert await engine.stop(agent_id)
        assert AgentLocationRegistry(redis_client).get_host_load() == {}


# -- 8.4 Fault tolerance


def test_process_crash_cleanup(manager_of):
    """Test that crashed processes are cleaned up."""
    manager = manager_of()
    agent_id = manager.spawn_agent_process(create_test_agent_spec("agent-1"), guild_spec, messaging_config)

    # Kill process forcefully
    process_info = manager.get_process_info(agent_id)
    os.kill(process_info.pid, signal.SIGKILL)

    # Wait for cleanup
    dead_agents = wait_until(manager.cleanup_dead_processes)
    assert agent_id in dead_agents
    assert manager.get_process_info(agent_id) is None


def test_ttl_cleanup(redis_client):
    """Test that missed heartbeats cause automatic cleanup."""
    registry = AgentLocationRegistry(redis_client)
    registry.TTL_SECONDS = 2
    registry.register("agent-1", "host-1:50051")

    # Don't send heartbeat
    # Verify automatically cleaned up
    wait_until(lambda: registry.get_location("agent-1") is None)
    assert registry.get_host_load() == {}
    assert registry.get_host_agents("host-1") == []
