"""What can go wrong with agents and their hosts, with real processes: each has a clear answer, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time

import grpc
import msgspec
import psutil
import pytest
from grpc import aio

from holdfast.errors import InputError, NoHost, PayloadTooLarge, ProcessFailed
from holdfast.hosts.agent import AgentStatus, Needs
from holdfast.hosts.directory import KIND, describe
from holdfast.hosts.placement import HostLoad
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.hosts.wire_codec import Payload
from holdfast.redis.members import Member, Members
from tests.support.hosts.faulty_agents import hosts_of, troubled
from tests.support.hosts.host_processes import agent, cluster_of, same_copy
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _empty(redis):
    """Every test has an empty Redis."""


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def nothing_is_left(cluster, agent_id: str) -> None:
    """Neither in Redis nor as a process."""
    assert [each async for each in cluster.engine.registry.all()] == []
    assert await cluster.engine.location(agent_id) is None
    await until(lambda: not cluster.copies(agent_id))


# -- agents


async def test_an_agent_that_is_never_ready_is_given_up(redis_settings):
    """Fails if a caller waits for the answer only as long as the agent may take: it would not be told why."""
    # What agents import is there from the start: on a busy machine that alone takes seconds.
    environ = {"HOLDFAST_HOSTS_PRELOAD": "tests.support.hosts.plain_agents"}
    async with hosts_of(
        redis_settings, "a", environ=environ, ready_seconds=5.0, grpc_timeout_seconds=1.0
    ) as cluster:
        await cluster.engine.run(agent("first"))
        with pytest.raises(ProcessFailed, match="not ready within 5 s"):
            await cluster.engine.run(troubled("hung", "hang"))
        assert await cluster.engine.stop("first")
        await nothing_is_left(cluster, "hung")


async def test_a_host_that_is_too_slow_gives_the_agent_back_and_the_next_one_has_it(redis_settings, tmp_path):
    """Fails if the caller takes it for placed while it is given back: nobody tried the next host for long."""
    async with hosts_of(redis_settings, "a", "b", stop_seconds=1.0) as cluster:
        await asyncio.gather(*(cluster.engine.run(agent(name)) for name in ("first", "second")))
        for name in "ab":
            assert len(await cluster.engine.registry.on_host(name)) == 1
        slow = cluster.engine._settings
        calls = cluster.engine._calls
        calls._settings = msgspec.structs.replace(slow, grpc_timeout_seconds=1.0, ready_seconds=-4.0)
        with pytest.raises(NoHost) as caught:
            await cluster.engine.run(troubled("slow", "wait", file=str(tmp_path / "never")))
        assert str(caught.value).count("DEADLINE_EXCEEDED") == 2
        await until(lambda: not cluster.copies("slow"))


async def test_an_agent_that_does_not_listen_is_killed(redis_settings):
    async with hosts_of(redis_settings, "a", stop_seconds=1.0) as cluster:
        placed = await cluster.engine.run(troubled("deaf", "deaf"))
        began = time.monotonic()
        assert await cluster.engine.stop("deaf")
        assert time.monotonic() - began >= 1.0, "it has the time that it is given"
        assert is_gone(placed.pid)
        await nothing_is_left(cluster, "deaf")


@pytest.mark.parametrize("how", ["stop", "crash", "host"])
async def test_what_an_agent_has_started_ends_with_it(redis_settings, tmp_path, how):
    file = tmp_path / "pids"
    async with hosts_of(redis_settings, "a") as cluster:
        placed = await cluster.engine.run(troubled("forks", "fork", file=str(file)))
        first = [int(pid) for pid in file.read_text().split()]
        assert not any(map(is_gone, first))
        match how:
            case "stop":
                assert await cluster.engine.stop("forks")
            case "crash":
                os.kill(placed.pid, signal.SIGKILL)
            case "host":
                cluster.children["a"].kill()
        await until(lambda: all(map(is_gone, first)))


async def test_an_agent_that_eats_memory_is_told_its_limit(redis_settings):
    async with hosts_of(redis_settings, "a") as cluster:
        with pytest.raises(ProcessFailed, match="MemoryError"):
            await cluster.engine.run(troubled("eater", "eat", needs=Needs(memory_mb=300)))
        await nothing_is_left(cluster, "eater")
        with pytest.raises(ProcessFailed, match="a process of this zygote begins with"):
            await cluster.engine.run(troubled("small", needs=Needs(memory_mb=1)))
        with pytest.raises(InputError, match="memory_mb is -1"):
            await cluster.engine.run(troubled("minus", needs=Needs(memory_mb=-1)))


async def test_an_agent_that_leaves_by_itself_has_crashed_and_stays_visible(redis_settings, tmp_path):
    async with hosts_of(redis_settings, "a", max_restarts=1) as cluster:
        await cluster.engine.run(troubled("leaver", "leave", file=str(tmp_path / "go")))
        (tmp_path / "go").touch()
        placed = await until(
            lambda: cluster.engine.registry.get("leaver"), lambda placed: placed.status is AgentStatus.CRASHED
        )
        assert (placed.restarts, placed.host) == (1, "")
        assert "exited with code 0" in placed.error
        assert await cluster.engine.location("leaver") is None
        (listed,) = [each async for each in cluster.engine.registry.all()]
        assert (listed.agent.agent_id, listed.status) == ("leaver", AgentStatus.CRASHED)
        again = await cluster.engine.run(troubled("leaver"))  # whoever wants it again gets it
        assert (again.status, again.restarts, again.error) == (AgentStatus.RUNNING, 0, "")


async def test_what_a_direct_caller_can_not_have_is_tried_by_nobody_else(redis_settings):
    """Fails if a host keeps the wish of a caller whom it refused: all hosts would try that agent for ever."""
    async with hosts_of(redis_settings, "a") as cluster:
        address = cluster.children["a"].address
        async with aio.insecure_channel(address) as channel:
            for fields in ({"entry": "nothing"}, {"entry": "plain"}):
                request = wire.CreateAgentRequest(
                    agent_spec=b'{"id": "x", "class_name": "os.system"}', **fields
                )
                with pytest.raises(aio.AioRpcError):
                    await AgentHostServiceStub(channel).CreateAgent(request)
                await nothing_is_left(cluster, "x")


# -- calls


async def test_too_much_is_refused_before_anybody_is_asked(redis_settings):
    async with hosts_of(redis_settings, "a") as cluster:
        with pytest.raises(PayloadTooLarge, match="agent big has"):
            await cluster.engine.run(troubled("big", fat="x" * 9 * 2**20))
        await nothing_is_left(cluster, "big")
        async with aio.insecure_channel(cluster.children["a"].address) as channel:
            stub = AgentHostServiceStub(channel)
            for megabytes, code in ((9, "INVALID_ARGUMENT"), (33, "RESOURCE_EXHAUSTED")):
                request = wire.CreateAgentRequest(
                    agent_spec=b'{"id": "big", "class_name": "tests.support.hosts.plain_agents.Idle", "fat": "%b"}'
                    % (b"x" * megabytes * 2**20)
                )
                with pytest.raises(aio.AioRpcError) as caught:
                    await stub.CreateAgent(request)
                assert caught.value.code().name == code, caught.value.details()
            assert (await stub.Health(wire.HealthRequest())).agent_count == 0
        await nothing_is_left(cluster, "big")


async def test_a_wrong_token_is_said(redis_settings):
    async with cluster_of(redis_settings, token="wrong") as cluster:
        await cluster.start("a", HOLDFAST_HOSTS_TOKEN="right")
        with pytest.raises(InputError, match="requires its token"):
            await cluster.engine.run(agent())
        async with aio.insecure_channel(cluster.children["a"].address) as channel:
            for shown in ("", "right", "Bearer wrong", "Bearer right "):
                with pytest.raises(aio.AioRpcError) as caught:
                    await AgentHostServiceStub(channel).Health(
                        wire.HealthRequest(), metadata=(("authorization", shown),)
                    )
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def announce(cluster, name: str, address: str) -> None:
    """Have a host in the directory that is not there."""
    host = HostLoad(name=name, address=address)
    await Members(prefix="", heartbeat_seconds=60).announce(cluster.redis, Member(KIND, name, describe(host)))


@pytest.mark.parametrize("how", ["refuses", "is silent"])
async def test_a_host_that_is_not_there_any_more_is_passed_over_quickly(redis_settings, how):
    """A dead machine refuses nothing: fails if a connection may take as long as gRPC likes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if how == "is silent":
            listener.listen()
        # What agents import is there from the start: the time below is for the connection.
        environ = {"HOLDFAST_HOSTS_PRELOAD": "tests.support.hosts.plain_agents"}
        async with hosts_of(redis_settings, "b", environ=environ, grpc_timeout_seconds=60.0) as cluster:
            await announce(cluster, "a", f"127.0.0.1:{listener.getsockname()[1]}")
            for n in range(2):
                async with asyncio.timeout(18):  # gRPC's own patience is 20 seconds
                    assert (await cluster.engine.run(agent(f"r{n}"))).host == "b"


async def test_hosts_that_are_all_gone_are_named(redis_settings):
    async with hosts_of(redis_settings) as cluster:
        await announce(cluster, "a", "127.0.0.1:1")
        await announce(cluster, "b", "127.0.0.1:2")
        with pytest.raises(NoHost) as caught:
            await cluster.engine.run(agent())
        assert all(word in str(caught.value) for word in ("127.0.0.1:1", "127.0.0.1:2", "UNAVAILABLE"))
        await nothing_is_left(cluster, "x")


async def test_a_heartbeat_that_can_not_be_read_is_no_host(redis_settings):
    async with hosts_of(redis_settings, "b") as cluster:
        await announce(cluster, "a", "127.0.0.1:1")
        await cluster.redis.hset("member:host:a", "capacity", "many")
        assert [host.name for host in await cluster.engine.hosts()] == ["b"]


async def test_two_names_at_one_address_are_one_host(redis_settings):
    """The record of a dead host is still there when another has its port."""
    async with hosts_of(redis_settings, "b") as cluster:
        await announce(cluster, "a", cluster.children["b"].address)
        for n in range(2):
            assert (await cluster.engine.run(agent(f"r{n}"))).host == "b"
            assert len(cluster.copies(f"r{n}")) == 1
            assert await cluster.engine.stop(f"r{n}")


async def test_a_second_host_of_the_same_name_waits_and_says_so(redis_settings):
    async with hosts_of(redis_settings, "a", placing_seconds=1.0) as cluster:
        first = cluster.children["a"]
        placed = await cluster.engine.run(agent())
        starting = asyncio.create_task(cluster.start("a"))
        await until(lambda: cluster.children["a"] is not first)
        second = cluster.children["a"]
        cluster.children["first"] = first
        await until(lambda: "host name in use" in second.logged())
        assert f'"address":"{first.address}"' in second.logged()
        assert same_copy(await cluster.engine.run(agent()), placed)
        first.terminate()
        assert await first.exited(60) == 0
        await starting
        assert (await cluster.where("x", seconds=60)).address == second.address
        assert len(cluster.copies("x")) == 1


async def test_a_waiting_host_that_is_stopped_leaves_the_other_alone(redis_settings):
    async with hosts_of(redis_settings, "a") as cluster:
        first = cluster.children["a"]
        starting = asyncio.create_task(cluster.start("a"))
        await until(lambda: cluster.children["a"] is not first)
        second = cluster.children["a"]
        cluster.children["first"] = first
        await until(lambda: "host name in use" in second.logged())
        second.terminate()
        assert await second.exited(30) == 0
        with pytest.raises(AssertionError):
            await starting
        assert [host.address for host in await cluster.engine.hosts()] == [first.address]


async def test_a_call_that_is_given_up_and_repeated_starts_one_agent(redis_settings, tmp_path):
    async with (
        hosts_of(redis_settings, "a") as cluster,
        aio.insecure_channel(cluster.children["a"].address) as channel,
    ):
        stub = AgentHostServiceStub(channel)
        late = troubled("late", "wait", file=str(tmp_path / "go"))
        wanted = await cluster.engine.registry.want(late)
        spec = msgspec.json.decode(late.payload, type=Payload).agent_spec
        request = wire.CreateAgentRequest(agent_spec=bytes(spec), fence=wanted.fence, entry="plain")
        call = stub.CreateAgent(request)
        await until(
            lambda: cluster.engine.registry.get("late"), lambda known: known.status is AgentStatus.STARTING
        )
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # The host gives it back: whoever asks next reads the new fence.
        known = await until(lambda: cluster.engine.registry.get("late"), lambda known: not known.host)
        await until(lambda: not cluster.copies("late"))
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.CreateAgent(request)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION, "the old fence is stale"
        request.fence = known.fence
        (tmp_path / "go").touch()
        answers = await asyncio.gather(*(stub.CreateAgent(request) for _ in range(3)))
        assert len({(answer.pid, answer.fence) for answer in answers}) == 1
        assert cluster.copies("late") == [answers[0].pid]


async def test_an_agent_whose_caller_died_before_it_asked_a_host_is_placed(redis_settings):
    async with hosts_of(redis_settings, "a", placing_seconds=1.0) as cluster:
        await cluster.engine.registry.want(agent())
        placed = await cluster.where("x")
        assert (placed.host, placed.fence) == ("a", 1)


async def test_an_agent_that_is_wanted_again_while_it_stops_runs_once_it_has_ended(redis_settings):
    """Fails if the wish is granted at once: two copies ran until the first one was killed."""
    async with hosts_of(redis_settings, "a", "b", stop_seconds=6.0, ttl_seconds=4.0) as cluster:
        first = await cluster.engine.run(troubled("deaf", "deaf"))
        stopping = asyncio.create_task(cluster.engine.stop("deaf"))
        await until(
            lambda: cluster.engine.registry.get("deaf"), lambda found: found.status is AgentStatus.STOPPING
        )
        again = await cluster.engine.run(troubled("deaf"))
        assert is_gone(first.pid), "the lease of one that is being stopped is renewed until it has ended"
        assert await stopping
        assert again.fence > first.fence
        assert cluster.copies("deaf") == [again.pid]
