"""The seed's registry for programs without an event loop, on the table that hosts use."""

from __future__ import annotations

import asyncio

import pytest
import redis as sync_redis

from holdfast.compat.location_registry import AgentLocationRegistry
from holdfast.errors import Conflict, InputError
from holdfast.hosts.agent import Agent, AgentStatus
from holdfast.hosts.registry import AgentRegistry
from holdfast.redis.keys import HostKeys
from tests.support.waiting import until


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(request, redis, redis_url):
    with sync_redis.Redis.from_url(redis_url, decode_responses=request.param) as client:
        yield client


@pytest.fixture
def locations(client):
    return AgentLocationRegistry(client)


@pytest.fixture
async def table(redis):
    return AgentRegistry(HostKeys.of(), redis, ttl_seconds=60, placing_seconds=10)


AGENT = Agent(agent_id="x", entry="plain", payload=b"{}")


async def placed(table, host="a", agent=AGENT) -> int:
    """Have a host of ours run an agent."""
    wanted = await table.want(agent)
    grant = await table.grant(host, f"{host}:1", agent.agent_id, seen=wanted.fence)
    await table.started(host, f"{host}:1", agent.agent_id, grant.fence, 7)
    return grant.fence


async def test_what_is_registered_is_found_and_counted(locations, table):
    locations.register("agent-1", "host-1:50051")
    locations.register("agent-2", "host-1:50051")
    locations.register("agent-3", "[fd00::1]:50051")
    assert locations.get_location("agent-1") == "host-1:50051" == await table.location("agent-1")
    assert locations.get_location("nobody") is None
    assert locations.get_host_load() == {"host-1": 2, "fd00::1": 1}
    assert locations.get_host_agents("host-1") == ["agent-1", "agent-2"] == await table.on_host("host-1")
    assert locations.get_host_agents("host-9") == []
    locations.deregister("agent-1")
    locations.deregister("nobody")
    assert locations.get_location("agent-1") is None
    assert locations.get_host_load() == {"host-1": 1, "fd00::1": 1}
    assert not locations.heartbeat("agent-1")


async def test_registered_again_it_moves_and_leaves_no_trace(locations, table):
    locations.register("agent-1", "host-1:50051")
    locations.register("agent-1", "host-2:50051")
    assert locations.get_location("agent-1") == "host-2:50051"
    assert locations.get_host_load() == {"host-2": 1}


async def test_what_is_not_kept_is_forgotten_everywhere(locations, table, redis):
    locations.TTL_SECONDS = 0.05
    locations.register("agent-1", "host-1:50051")
    async with asyncio.timeout(10):
        await until(lambda: locations.get_location("agent-1") is None)
        await until(lambda: not locations.get_host_load())
    assert not locations.heartbeat("agent-1")
    assert await redis.zcard(table.keys.leases) == 0


async def test_it_reads_what_hosts_say(locations, table):
    await placed(table)
    assert locations.get_location("x") == "a:1"
    assert locations.get_host_load() == {"a": 1}
    assert locations.get_host_agents("a") == ["x"]
    assert locations.heartbeat("x")


async def test_it_changes_nothing_about_agents_of_hosts(locations, table, redis):
    """Fails if it writes as the seed does: the location would say what no host runs."""
    fence = await placed(table)
    with pytest.raises(Conflict, match="agent x runs on a:1: its location is registered by its host"):
        locations.register("x", "b:1")
    with pytest.raises(Conflict, match="agent x runs on a:1: stop it there"):
        locations.deregister("x")
    locations.register("x", "a:1")  # which it is
    locations.TTL_SECONDS = 1
    assert locations.heartbeat("x")
    assert await redis.ttl(table.keys.location_prefix + "x") > 30, "its host's ttl"
    now = await table.get("x")
    assert (now.fence, now.address, now.status) == (fence, "a:1", AgentStatus.RUNNING)
    await table.want(Agent(agent_id="y", entry="plain", payload=b"{}"))
    with pytest.raises(Conflict, match="agent y waits for a host"):
        locations.register("y", "b:1")
    with pytest.raises(Conflict, match="agent y waits for a host: stop it"):
        locations.deregister("y")
    assert (await table.get("y")).wanted, "its hosts still look for a place"
    assert [each.agent.agent_id async for each in table.all()] == ["x", "y"]


async def test_hosts_do_not_start_what_is_registered_until_it_is_over(locations, table):
    """Fails if a registration is no lease: a host would be granted what already runs elsewhere."""
    locations.register("x", "host-1:50051")
    assert not (await table.want(AGENT)).new
    assert (await table.grant("a", "a:1", "x")).word == "held"
    locations.TTL_SECONDS = 0.05
    assert locations.heartbeat("x")
    await until(lambda: locations.get_location("x") is None)
    assert await table.reclaim() == [], "it is not the hosts' to place"
    assert await placed(table) == 2


async def test_an_agent_that_hosts_stopped_may_be_registered(locations, table):
    fence = await placed(table)
    await table.unwant("x")
    await table.release("a", "x", fence, "stopped")
    locations.register("x", "host-1:50051")
    assert locations.get_location("x") == "host-1:50051"


async def test_what_an_engine_wants_stopped_is_told_by_the_heartbeat(locations, table):
    locations.register("x", "host-1:50051")
    assert (await table.unwant("x")).address == "host-1:50051"
    assert not locations.heartbeat("x")
    locations.deregister("x")
    assert (await table.get("x")).status is AgentStatus.STOPPED


async def test_what_somebody_wrote_by_hand_is_kept_and_removed_too(locations, client, redis, table):
    client.set("agent_location:z", "host-1:50051", ex=5)
    client.sadd("host_agents:host-1", "z")
    locations.TTL_SECONDS = 60
    assert locations.heartbeat("z")
    assert await redis.ttl("agent_location:z") > 30
    locations.deregister("z")
    assert locations.get_host_load() == {}


@pytest.mark.parametrize("address", ["host-1", "host-1:", "a b:1", "host:123456", ""])
def test_what_is_no_address_is_said(locations, address):
    with pytest.raises(InputError, match="is not the address of a host"):
        locations.register("agent-1", address)


def test_it_asks_for_no_keys_and_finds_its_own_only(client):
    """A prefix with a star is no pattern."""
    mine, other = (
        AgentLocationRegistry(client, key_prefix="a*:"),
        AgentLocationRegistry(client, key_prefix="ab:"),
    )
    other.register("agent-1", "host-1:50051")
    mine.register("agent-1", "host-2:50051")
    client.config_resetstat()
    assert mine.get_host_load() == {"host-2": 1}
    assert "cmdstat_keys" not in client.info("commandstats")
