"""Hosts as real processes: agents start, are found, stop, crash, move, and outlive their host."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import grpc
import httpx
import psutil
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from holdfast.config import HostSettings
from holdfast.errors import AgentRefused, InputError, NoHost, ProcessFailed
from holdfast.hosts.agent import AgentStatus, Needs
from holdfast.hosts.engine import HostEngine
from holdfast.hosts.placement import HostLoad
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.hosts.registry import AgentRegistry
from holdfast.hosts.transport import CallFailed, Trouble
from holdfast.redis.keys import HostKeys
from tests.support.hosts.host_processes import agent, cluster_of, same_copy
from tests.support.redis.valkey_process import free_port
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _empty(redis):
    """Every test has an empty Redis."""


async def gone(pid: int) -> None:
    await until(lambda: not psutil.pid_exists(pid))


async def test_an_agent_runs_is_found_and_stops(redis_settings):
    async with cluster_of(redis_settings, "a") as cluster:
        engine = cluster.engine
        placed = await engine.run(agent())
        assert (placed.status, placed.host, placed.fence) == (AgentStatus.RUNNING, "a", 1)
        assert psutil.pid_exists(placed.pid)
        assert await engine.location("x") == cluster.children["a"].address
        assert same_copy(await engine.run(agent()), placed), "again is the same agent"
        assert await engine.stop("x")
        assert await engine.location("x") is None
        await gone(placed.pid)
        assert not await engine.stop("x")


async def test_the_calls_of_the_document(redis_settings):
    async with (
        cluster_of(redis_settings, "a") as cluster,
        aio.insecure_channel(cluster.children["a"].address) as channel,
    ):
        stub = AgentHostServiceStub(channel)
        created = await stub.CreateAgent(
            wire.CreateAgentRequest(
                agent_spec=b'{"id": "a1", "name": "One", "class_name": "tests.support.hosts.plain_agents.Idle"}',
                guild_spec=b'{"id": "g"}',
                messaging_config=b"{}",
                guild_id="g",
                organization_id="o",
            )
        )
        assert (created.success, created.agent_id, created.error) == (True, "a1", "")
        assert psutil.pid_exists(created.pid)
        who = {"agent_id": "a1", "guild_id": "g", "organization_id": "o"}
        info = await stub.GetAgentInfo(wire.GetAgentInfoRequest(**who))
        assert (info.agent_id, info.guild_id, info.agent_name, info.pid) == (
            "a1",
            "g",
            "One",
            created.pid,
        )
        assert (info.is_alive, info.status, info.fence) == (True, "running", 1)
        assert info.memory_bytes > 1_000_000
        assert b'"tests.support.hosts.plain_agents.Idle"' in info.agent_spec
        listed = await stub.ListAgents(wire.ListAgentsRequest(guild_id="g"))
        assert [each.agent_id for each in listed.agents] == ["a1"]
        assert not (await stub.ListAgents(wire.ListAgentsRequest(guild_id="other"))).agents
        health = await stub.Health(wire.HealthRequest())
        assert (health.healthy, health.agent_count, health.hostname) == (True, 1, "a")
        assert (await stub.StopAgent(wire.StopAgentRequest(**who))).success
        await gone(created.pid)
        probe = health_pb2_grpc.HealthStub(channel)
        answer = await probe.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


SHARED_MACHINE_SECONDS = 20.0
IDLE = {"id": "a1", "class_name": "tests.support.hosts.plain_agents.Idle"}


@pytest.mark.parametrize(
    ("fields", "location"),
    [
        ({"guild_spec": {"id": "g", "organization_id": "o"}}, "a1"),
        ({"agent_spec": {**IDLE, "guild_id": "g", "organization_id": "o"}, "guild_spec": {"id": "h"}}, "a1"),
        ({"guild_id": "g", "organization_id": "o"}, "o/g/a1"),
        ({"guild_id": "g", "organization_id": "o", "agent_id": "a1"}, "o/g/a1"),
        ({"guild_id": "g", "organization_id": "o", "agent_id": "o/g/a1"}, "o/g/a1"),
    ],
    ids=["guild_spec", "agent_spec", "fields", "fields and id", "qualified id"],
)
async def test_an_agent_is_of_its_guild_however_its_creator_says_so(bad_calls, redis, fields, location):
    """Fails if only the fields that are ours say it: callers of the document's six fields have no guild then."""
    stub = AgentHostServiceStub(bad_calls)
    said = {"agent_spec": IDLE, **fields}
    said = {
        name: json.dumps(value).encode() if isinstance(value, dict) else value for name, value in said.items()
    }
    created = await stub.CreateAgent(wire.CreateAgentRequest(**said))
    assert created.agent_id == "a1"
    assert await redis.exists(f"agent_location:{location}")
    (listed,) = (await stub.ListAgents(wire.ListAgentsRequest(guild_id="g"))).agents
    assert (listed.agent_id, listed.guild_id, listed.organization_id) == ("a1", "g", "o")
    who = {"agent_id": "a1", "guild_id": "g", "organization_id": "o"}
    assert (await stub.GetAgentInfo(wire.GetAgentInfoRequest(**who))).pid == created.pid
    with pytest.raises(aio.AioRpcError, match="is not on host"):
        await stub.StopAgent(wire.StopAgentRequest(**who | {"guild_id": "h"}))
    assert (await stub.StopAgent(wire.StopAgentRequest(**who))).success
    await gone(created.pid)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"agent_spec": b"no json"}, "INVALID_ARGUMENT", "agent_spec is not JSON"),
        ({"agent_spec": b"[1]"}, "INVALID_ARGUMENT", "agent_spec must be a JSON object, not list"),
        ({"agent_spec": b'{"id": 7}'}, "INVALID_ARGUMENT", "agent_spec: Expected `str`"),
        ({"agent_spec": b"{}"}, "INVALID_ARGUMENT", "is not an agent's id"),
        ({"agent_id": "a b"}, "INVALID_ARGUMENT", "is not an agent's id"),
        ({"guild_spec": b"{"}, "INVALID_ARGUMENT", "guild_spec is not JSON"),
        ({"needs": b'{"gpu": 1}'}, "INVALID_ARGUMENT", "needs: "),
        ({"entry": "os:system"}, "INVALID_ARGUMENT", "this host has no entry 'os:system' (it has: plain)"),
        (
            {"agent_spec": b'{"id": "x", "class_name": "os.system"}'},
            "INVALID_ARGUMENT",
            "outside of the prefixes that this host allows (tests.support.hosts)",
        ),
        (
            {"agent_spec": b'{"id": "x", "class_name": "tests.support.hosts.plain_agents.Nobody"}'},
            "INVALID_ARGUMENT",
            "no 'Nobody'",
        ),
        (
            {"agent_spec": b'{"id": "x", "class_name": "tests.support.hosts.plain_agents.no.C"}'},
            "INVALID_ARGUMENT",
            "no module",
        ),
        ({"agent_spec": b'{"id": "x"}'}, "INVALID_ARGUMENT", "agent_spec needs a 'class_name'"),
        (
            {
                "agent_spec": b'{"id": "x", "class_name": "tests.support.hosts.plain_agents.Idle", "fails": true}'
            },
            "INTERNAL",
            "this agent does not like its spec",
        ),
        ({"fence": 7}, "FAILED_PRECONDITION", "is not wanted any more"),
    ],
)
async def test_what_can_not_be_started_says_why(bad_calls, fields, code, words):
    request = wire.CreateAgentRequest(
        **{"agent_spec": b'{"id": "x", "class_name": "tests.support.hosts.plain_agents.Idle"}', **fields}
    )
    with pytest.raises(aio.AioRpcError) as caught:
        await AgentHostServiceStub(bad_calls).CreateAgent(request)
    assert caught.value.code().name == code, caught.value.details()
    assert words in caught.value.details()


async def test_a_wrong_class_is_its_callers_mistake_and_none_of_the_hosts(redis_settings):
    async with cluster_of(redis_settings) as cluster, httpx.AsyncClient() as web:
        port = free_port()
        await cluster.start("a", METRICS_PORT=str(port))
        with pytest.raises(AgentRefused, match="outside of the prefixes"):
            await cluster.engine.run(agent("x", class_name="os.system"))
        counted = {
            'holdfast_host_calls_total{kind="CreateAgent",status="INVALID_ARGUMENT"} 1.0',
            'holdfast_host_create_errors_total{guild_id="",status="INVALID_ARGUMENT"} 1.0',
        }
        # it counts when it has answered
        await until(
            lambda: web.get(f"http://127.0.0.1:{port}/metrics"),
            lambda found: counted <= set(found.text.splitlines()),
        )


@pytest.fixture
async def bad_calls(redis_settings):
    async with (
        cluster_of(redis_settings, "a") as cluster,
        aio.insecure_channel(cluster.children["a"].address) as channel,
    ):
        yield channel
        assert (await AgentHostServiceStub(channel).Health(wire.HealthRequest())).agent_count == 0


@pytest.mark.parametrize("call", ["StopAgent", "GetAgentInfo"])
async def test_what_is_not_there_is_not_found(bad_calls, call):
    stub, request = AgentHostServiceStub(bad_calls), getattr(wire, f"{call}Request")(agent_id="nobody")
    with pytest.raises(aio.AioRpcError) as caught:
        await getattr(stub, call)(request)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "agent nobody is not on host a" in caught.value.details()


async def test_an_engine_says_what_went_wrong_and_leaves_nothing(redis_settings):
    async with cluster_of(redis_settings, "a") as cluster:
        with pytest.raises(ProcessFailed, match="does not like its spec"):
            await cluster.engine.run(agent(fails=True))
        with pytest.raises(InputError, match="no entry 'nothing'"):
            await cluster.engine.run(
                agent("y").__class__(agent_id="y", entry="nothing", payload=agent("y").payload)
            )
        with pytest.raises(NoHost, match="a: it is not labelled gpu"):
            await cluster.engine.run(agent("z", needs=Needs(near=("gpu",))))
        assert [each async for each in cluster.engine.registry.all()] == []


async def test_no_host_at_all_is_said(redis_settings):
    async with cluster_of(redis_settings) as cluster:
        with pytest.raises(NoHost, match="there is no live host"):
            await cluster.engine.run(agent())


async def test_agents_go_around_and_a_full_host_is_passed_over(redis_settings):
    async with cluster_of(redis_settings, "a", "b", max_processes=2) as cluster:
        placed = [await cluster.engine.run(agent(f"r{n}")) for n in range(4)]
        assert sorted(each.host for each in placed) == ["a", "a", "b", "b"]
        with pytest.raises(NoHost, match="full"):
            await cluster.engine.run(agent("r4"))


async def test_a_host_that_turns_out_to_be_full_is_passed_over(redis_settings):
    """Its heartbeat is old. Fails if it is granted the agent before it looks: the next host is asked too late then."""
    async with cluster_of(redis_settings, "a", "b", max_processes=2) as cluster:
        seen = await cluster.engine.hosts()

        class Old:
            async def hosts(self):
                return seen

        engine = HostEngine(cluster.engine.registry, Old(), cluster.engine._calls, cluster.settings.hosts)
        placed = [await engine.run(agent(f"r{n}")) for n in range(4)]
        assert sorted(each.host for each in placed) == ["a", "a", "b", "b"]
        with pytest.raises(NoHost, match=r"host a is full .*host b is full|host b is full .*host a is full"):
            await engine.run(agent("r4"))
        assert await engine.stop(placed[1].agent.agent_id)
        assert (await engine.run(agent("r5"))).host == placed[1].host


async def test_what_a_host_holds_is_seen_before_its_next_heartbeat(redis_settings):
    async with cluster_of(redis_settings, "a", ttl_seconds=90.0, heartbeat=30.0) as cluster:
        for count in (1, 0):
            if count:
                await cluster.engine.run(agent("x"))
            else:
                await cluster.engine.stop("x")
            await until(
                cluster.engine.hosts, lambda hosts, count=count: [host.agents for host in hosts] == [count]
            )


async def test_a_host_that_gives_an_agent_back_does_not_end_the_search(redis, redis_settings):
    """A grant that was given back has raised the fence: the next host is asked under the new one."""
    registry = AgentRegistry(HostKeys.of(), redis, ttl_seconds=60, placing_seconds=10)
    asked = []

    class Fake:
        async def hosts(self):
            return [HostLoad(name=name, address=f"{name}:1") for name in "ab"]

        async def create(self, address, agent, fence):
            name = address[0]
            grant = await registry.grant(name, address, "x", seen=fence)
            asked.append((name, grant.word))
            if len(asked) == 1:
                await registry.release(name, "x", grant.fence, "moving")
                raise CallFailed(address, Trouble.NEXT, "full")
            await registry.started(name, address, "x", grant.fence, 1)

    fake = Fake()
    placed = await HostEngine(registry, fake, fake, HostSettings()).run(agent())
    assert [word for _, word in asked] == ["granted", "granted"]
    assert placed.host == asked[1][0]


async def test_an_agent_that_dies_is_started_again_on_its_host(redis_settings):
    async with cluster_of(redis_settings, "a", "b") as cluster:
        first = await cluster.engine.run(agent())
        os.kill(first.pid, signal.SIGKILL)
        await until_other_pid(cluster, first.pid)
        again = await cluster.where("x")
        assert (again.host, again.fence, again.restarts) == (first.host, first.fence, 1)
        assert await cluster.engine.location("x") == first.address


async def until_other_pid(cluster, pid: int) -> None:
    await until(lambda: cluster.where("x"), lambda found: found.pid != pid)


async def test_a_dead_hosts_agents_are_back_elsewhere(redis_settings):
    async with cluster_of(redis_settings, "a", "b", ttl_seconds=3.0) as cluster:
        placed = [await cluster.engine.run(agent(f"r{n}")) for n in range(4)]
        lost = [each for each in placed if each.host == "a"]
        assert len(lost) == 2
        cluster.children["a"].kill()
        async with asyncio.timeout(cluster.settings.hosts.ttl_seconds + 2 + SHARED_MACHINE_SECONDS):
            for each in lost:
                again = await cluster.where(each.agent.agent_id, not_on="a")
                assert (again.host, again.fence > each.fence) == ("b", True)
        for each in lost:
            await gone(each.pid)  # its children die with a host


async def test_agents_move_before_their_host_leaves(redis_settings):
    async with cluster_of(redis_settings, "a", "b") as cluster:
        placed = [await cluster.engine.run(agent(f"r{n}")) for n in range(4)]
        cluster.children["a"].terminate()
        assert await cluster.children["a"].exited(60) == 0
        now = [await cluster.where(each.agent.agent_id) for each in placed]
        assert {each.host for each in now} == {"b"}
        assert [host.name for host in await cluster.engine.hosts()] == ["b"]


async def test_an_agent_moves_when_it_is_told(redis_settings):
    async with cluster_of(redis_settings, "a", "b") as cluster:
        first = await cluster.engine.run(agent())
        moved = await cluster.engine.move("x")
        assert (moved.host != first.host, moved.fence) == (True, first.fence + 1)
        await gone(first.pid)
        back = await cluster.engine.move("x", to=first.host)
        assert back.host == first.host
        with pytest.raises(NoHost, match="no live host 'nowhere'"):
            await cluster.engine.move("x", to="nowhere")
        assert (await cluster.where("x")).status is AgentStatus.RUNNING


async def test_locations_are_renewed_at_the_pace_of_the_heartbeat(redis, redis_settings):
    """Fails if they are renewed by their ttl only: three times in a minute, whatever the interval is."""
    async with cluster_of(redis_settings, "a", ttl_seconds=60.0, heartbeat=0.5) as cluster:
        await cluster.engine.run(agent())
        key = cluster.engine.registry.keys.location_prefix + "x"
        for _ in range(3):
            before = await redis.pexpiretime(key)
            # less than half a third of the ttl
            await until(
                lambda: redis.pexpiretime(key), lambda found, before=before: found > before, seconds=8
            )


async def test_a_host_that_does_not_answer_is_passed_over(redis_settings):
    async with cluster_of(redis_settings, grpc_timeout_seconds=5.0, ready_seconds=4.0) as cluster:
        # What agents import is there from the start: on a busy machine that alone takes seconds.
        await cluster.start("a", "b", HOLDFAST_HOSTS_PRELOAD="tests.support.hosts.host_processes")
        cluster.children["a"].freeze()
        for n in range(2):  # one of the two is offered to the frozen host first
            placed = await cluster.engine.run(agent(f"r{n}"))
            assert placed.host == "b"


async def test_what_happens_on_a_host_is_counted(redis_settings):
    async with cluster_of(redis_settings) as cluster, httpx.AsyncClient() as web:
        port = free_port()
        await cluster.start("a", METRICS_PORT=str(port))
        await cluster.engine.run(agent())
        with pytest.raises(ProcessFailed):
            await cluster.engine.run(agent("y", fails=True))

        async def missing() -> set[str]:
            return wanted - set((await web.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines())

        wanted = {
            "holdfast_host_agents 1.0",
            'holdfast_host_calls_total{kind="CreateAgent",status="OK"} 1.0',
            'holdfast_host_calls_total{kind="CreateAgent",status="INTERNAL"} 1.0',
            'holdfast_host_agents_ended_total{status="crashed"} 1.0',
            "holdfast_host_density 0.01",
        }
        # All of them: a call that fails is counted when its answer has been sent.
        await until(missing, lambda found: not found)


async def test_callers_show_the_token(redis_settings):
    async with cluster_of(redis_settings, "a", token="s3cret") as cluster:
        assert (await cluster.engine.run(agent())).status is AgentStatus.RUNNING
        async with aio.insecure_channel(cluster.children["a"].address) as channel:
            with pytest.raises(aio.AioRpcError) as caught:
                await AgentHostServiceStub(channel).Health(wire.HealthRequest())
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            probe = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert probe.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_stop_goes_on_when_its_caller_is_gone(redis_settings):
    """Fails if it ends with the call: the agent stays known as stopping, and can never be started again."""
    async with (
        cluster_of(redis_settings, "a") as cluster,
        aio.insecure_channel(cluster.children["a"].address) as channel,
    ):
        placed = await cluster.engine.run(agent())
        os.kill(placed.pid, signal.SIGSTOP)
        stub = AgentHostServiceStub(channel)
        await stub.Health(wire.HealthRequest())  # the connection is there: the call has its time for itself
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.StopAgent(wire.StopAgentRequest(agent_id="x"), timeout=3.0)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(
            lambda: cluster.engine.registry.get("x"), lambda found: found.status is AgentStatus.STOPPING
        )
        os.kill(placed.pid, signal.SIGCONT)
        again = await cluster.engine.run(agent())
        assert (again.status, again.pid != placed.pid) == (AgentStatus.RUNNING, True)
