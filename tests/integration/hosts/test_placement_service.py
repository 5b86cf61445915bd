"""The seed's placement service for programs without an event loop."""

from __future__ import annotations

import asyncio

import pytest
import redis as sync_redis

from holdfast.compat.placement_service import AgentPlacementService
from holdfast.config import HostSettings, load
from holdfast.errors import ConfigError, NoHost
from holdfast.hosts import directory
from holdfast.hosts.agent import Needs
from holdfast.hosts.directory import KIND, describe
from holdfast.hosts.placement import HostLoad
from holdfast.redis.members import Member, Members
from tests.support.hosts.host_processes import agent, cluster_of


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A host that is without CPU for two seconds is no host that is away."""
    monkeypatch.setattr(directory, "_HEALTH_TIMEOUT_SECONDS", 30.0)


@pytest.fixture(params=[False, True], ids=["bytes", "text"])
def client(request, redis, redis_url):
    with sync_redis.Redis.from_url(redis_url, decode_responses=request.param) as client:
        yield client


async def announce(redis, *hosts: HostLoad) -> None:
    members = Members(prefix="", heartbeat_seconds=30)
    for host in hosts:
        await members.announce(redis, Member(KIND, host.name, describe(host)))
    await members.announce(redis, Member("worker", "w", {}))


def host(name: str, **fields) -> HostLoad:
    return HostLoad(name=name, address=f"{name}:50051", **fields)


async def test_hosts_are_taken_by_turns_that_all_share(redis, client):
    await announce(redis, host("b"), host("a"), host("leaving", draining=True))
    services = [AgentPlacementService(client) for _ in range(2)]
    assert [each.name for each in services[0].available_hosts()] == ["a", "b"]
    chosen = [services[n % 2].select_host() for n in range(4)]
    assert chosen in (["a:50051", "b:50051"] * 2, ["b:50051", "a:50051"] * 2)
    assert int(client.get("placement:counter")) == 4


async def test_a_heartbeat_that_can_not_be_read_is_no_host(redis, client):
    """Fails if one record of another version ends every choice."""
    await announce(redis, host("a"))
    await Members(prefix="", heartbeat_seconds=30).announce(redis, Member(KIND, "odd", {"agents": "many"}))
    assert AgentPlacementService(client).select_host() == "a:50051"


async def test_needs_and_strategies_decide(redis, client):
    await announce(redis, host("a", agents=9), host("b", agents=1), host("c", agents=5, labels=("gpu",)))
    assert AgentPlacementService(client, strategy="least-loaded").select_host() == "b:50051"
    service = AgentPlacementService(client, HostSettings(placement="least-loaded"))
    assert [each.name for each in service.rank_hosts()] == ["b", "c", "a"]
    assert service.select_host(Needs(near=("gpu",))) == "c:50051"
    with pytest.raises(NoHost, match="a: it is not labelled tpu; b: it is not labelled tpu"):
        service.select_host(Needs(near=("tpu",)))

    def last(hosts, needs, turn):
        return hosts[::-1]

    assert AgentPlacementService(client, strategy=last).select_host() == "c:50051"
    with pytest.raises(ConfigError, match="none of round-robin"):
        AgentPlacementService(client, strategy="nonsense")


def test_without_hosts_it_says_so(client):
    with pytest.raises(NoHost, match="there is no live host"):
        AgentPlacementService(client).select_host()


async def test_a_list_is_asked_by_grpc_also_inside_of_an_event_loop(redis, redis_settings, client):
    async with cluster_of(redis_settings, "a", "b") as cluster:
        await cluster.engine.run(agent())
        addresses = tuple(child.address for child in cluster.children.values())
        settings = HostSettings(directory="static", addresses=(*addresses, "127.0.0.1:1"))
        service = AgentPlacementService(client, settings, strategy="least-loaded")
        found = service.available_hosts()
        assert [each.name for each in found] == ["a", "b"]
        assert sorted(each.agents for each in found) == [0, 1]
        empty = next(each for each in found if not each.agents)
        assert await asyncio.to_thread(service.select_host) == empty.address


@pytest.mark.parametrize("value", ["round-robin", "mine.placing:best"])
def test_the_setting_takes_ours_and_yours(value):
    assert load(environ={"HOLDFAST_HOSTS_PLACEMENT": value}).settings.hosts.placement == value


def test_the_setting_takes_nothing_else():
    with pytest.raises(ConfigError, match="round-robin, least-loaded, resource-aware, or package"):
        load(environ={"HOLDFAST_HOSTS_PLACEMENT": "roundrobin"})
