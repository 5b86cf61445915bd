"""The table of agents and hosts: one host at a time, nobody lost, and a late host changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.hosts.agent import Agent, AgentStatus, Needs
from holdfast.hosts.registry import AgentRegistry
from holdfast.leases.lease import Lease, RenewalReply
from holdfast.redis.keys import HostKeys

A, B = ("a", "10.0.0.1:50051"), ("b", "10.0.0.2:50051")


@pytest.fixture
def registry(redis) -> AgentRegistry:
    return AgentRegistry(HostKeys.of(), redis, ttl_seconds=60, placing_seconds=10)


def agent(agent_id: str = "x", **fields) -> Agent:
    return Agent(agent_id=agent_id, entry="resident", payload=b'{"class": "Echo"}', **fields)


async def leases_end(registry: AgentRegistry) -> None:
    """Let all time pass: leases are over, and what has a ttl is gone."""
    redis, keys = registry.redis, registry.keys
    for raw in await redis.zrange(keys.leases, 0, -1):
        await redis.zadd(keys.leases, {raw: 1})
        await redis.delete(keys.location_prefix + raw.decode())


async def run(registry: AgentRegistry, host: tuple[str, str], agent_id: str = "x") -> int:
    """Start an agent that is wanted on a host; return its fence."""
    grant = await registry.grant(*host, agent_id)
    assert grant.given
    assert await registry.started(*host, agent_id, grant.fence, 123) == "kept"
    return grant.fence


async def renewed(registry: AgentRegistry, host: tuple[str, str], fence: int) -> RenewalReply:
    """Renew the lease of agent x, as the keeper of its host does."""
    (standing,) = await registry.leases(*host).renew(registry.redis, [Lease("x", host[0], fence)])
    return standing


async def test_an_agent_is_found_as_the_document_says(registry, redis):
    await registry.want(agent(guild_id="g", name="Echo", needs=Needs(cpu=0.5)))
    assert await registry.location("x") is None
    await run(registry, A)
    assert await redis.get("agent_location:x") == b"10.0.0.1:50051"
    assert 55 < await redis.ttl("agent_location:x") <= 60
    assert await redis.smembers("host_agents:a") == {b"x"}
    placed = await registry.get("x")
    assert (placed.status, placed.host, placed.pid, placed.fence) == (AgentStatus.RUNNING, "a", 123, 1)
    assert placed.agent == agent(guild_id="g", name="Echo", needs=Needs(cpu=0.5))
    assert [each.agent.agent_id async for each in registry.all(guild_id="g")] == ["x"]
    assert [each async for each in registry.all(guild_id="other")] == []
    assert await registry.on_host("a") == ["x"]


async def test_what_is_wanted_twice_is_one_agent(registry):
    assert (await registry.want(agent())).new
    again = await registry.want(agent())
    assert (again.new, again.status) == (False, AgentStatus.PLACING)
    await run(registry, A)
    again = await registry.want(agent())
    assert (again.new, again.status, again.address) == (False, AgentStatus.RUNNING, A[1])


async def test_no_second_host_gets_an_agent_that_lives(registry):
    await registry.want(agent())
    await run(registry, A)
    refused = await registry.grant(*B, "x")
    assert (refused.word, refused.given, refused.address) == ("held", False, A[1])


async def test_a_call_that_is_repeated_is_the_same_call(registry):
    """Its answer may have been lost; a second process must not come of it."""
    wanted = await registry.want(agent())
    first = await registry.grant(*A, "x", seen=wanted.fence)
    again = await registry.grant(*A, "x", seen=wanted.fence)
    assert (first.word, again.word, first.fence) == ("granted", "mine", again.fence)


async def test_a_call_from_before_the_last_placing_is_refused(registry):
    wanted = await registry.want(agent())
    await run(registry, A)
    await leases_end(registry)
    (homeless,) = await registry.reclaim()
    late = await registry.grant(*B, "x", seen=wanted.fence)
    assert late.word == "stale"
    assert (await registry.grant(*B, "x", seen=homeless.fence)).word == "granted"


async def test_what_nobody_wants_is_not_granted(registry):
    assert (await registry.grant(*A, "x")).word == "unknown"
    await registry.want(agent())
    await registry.unwant("x")
    assert (await registry.grant(*A, "x")).word == "unwanted"


async def test_a_dead_hosts_agent_is_taken_by_one_and_its_copy_is_refused(registry, redis):
    await registry.want(agent())
    old = await run(registry, A)
    assert await registry.reclaim() == []
    await leases_end(registry)
    (homeless,) = await registry.reclaim()
    assert (homeless.agent_id, homeless.host, homeless.fence) == ("x", "a", old + 1)
    assert await registry.on_host("a") == []
    assert await registry.reclaim() == [], "each goes to one caller"
    new = await run(registry, B)
    assert new > old
    assert await renewed(registry, A, old) is RenewalReply.LOST
    assert await registry.started(*A, "x", old, 1) == "lost"
    assert not await registry.release("a", "x", old, "stopped")
    assert await registry.location("x") == B[1]
    assert await redis.smembers("host_agents:a") == set()


async def test_what_has_no_host_can_be_had_at_once_and_without_giving_up_a_host(registry):
    for name in ("x", "y"):
        await registry.want(agent(name))
        fence = await run(registry, A, name)
    assert await registry.release("a", "y", fence, "moving")
    await registry.unplaced("y", fence + 1)
    assert await registry.reclaim(only="free") == [], "its mover has time to place it"
    await registry.unplaced("y", fence)
    await registry.redis.zadd(registry.keys.leases, {"x": 1})
    assert [each.agent_id for each in await registry.reclaim(only="free")] == ["y"]
    assert [each.agent_id for each in await registry.reclaim()] == ["x"]


async def test_what_is_placed_meanwhile_is_not_taken_from_its_new_host(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    await registry.release("a", "x", fence, "moving")
    new = await run(registry, B)
    await registry.unplaced("x", fence)
    await registry.unplaced("x", new)
    assert await registry.reclaim() == []
    assert await registry.location("x") == B[1]


async def test_what_a_caller_did_not_place_in_time_goes_to_the_next(registry):
    """Fails if reclaim takes an agent out of the table: the caller dies, and the agent with it."""
    await registry.want(agent())
    await leases_end(registry)
    assert [each.agent_id for each in await registry.reclaim()] == ["x"]
    await leases_end(registry)
    assert [each.agent_id for each in await registry.reclaim()] == ["x"]


async def test_what_expired_but_went_to_nobody_is_there_again(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    await leases_end(registry)
    assert await registry.location("x") is None
    assert await renewed(registry, A, fence) is RenewalReply.KEPT
    assert await registry.location("x") == A[1]
    assert await registry.reclaim() == []


async def test_a_host_tells_a_redis_that_lost_everything(registry, redis):
    await registry.want(agent())
    fence = await run(registry, A)
    await redis.flushall()
    assert await renewed(registry, A, fence) is RenewalReply.FORGOTTEN
    await registry.want(agent(), fence=fence)
    assert await run(registry, A) == fence + 1


async def test_an_agent_that_is_stopped_is_not_found_from_that_moment_on(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    stopping = await registry.unwant("x")
    assert (stopping.word, stopping.host, stopping.address, stopping.fence) == ("stopping", *A, fence)
    assert await registry.location("x") is None
    assert await renewed(registry, A, fence) is RenewalReply.STOP
    assert await registry.location("x") is None
    assert await registry.release("a", "x", fence, "stopped")
    assert (await registry.get("x")).status is AgentStatus.STOPPED
    assert [each async for each in registry.all()] == []
    assert (await registry.unwant("x")).word == "unknown"


async def test_an_agent_stopped_while_it_starts_does_not_run(registry):
    await registry.want(agent())
    grant = await registry.grant(*A, "x")
    await registry.unwant("x")
    assert await registry.started(*A, "x", grant.fence, 1) == "unwanted"
    assert await registry.location("x") is None


async def test_one_to_be_stopped_whose_host_is_gone_is_stopped(registry):
    await registry.want(agent())
    await run(registry, A)
    await registry.unwant("x")
    await leases_end(registry)
    assert await registry.reclaim() == []
    assert (await registry.get("x")).status is AgentStatus.STOPPED


async def test_a_crashed_agent_stays_visible_and_is_started_by_nobody(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    assert await registry.release("a", "x", fence, "crashed", "ValueError: no")
    await leases_end(registry)
    assert await registry.reclaim() == []
    placed = await registry.get("x")
    assert (placed.status, placed.error, placed.host) == (AgentStatus.CRASHED, "ValueError: no", "")
    assert (await registry.want(agent())).new, "whoever wants it again gets it"


async def test_one_that_restarts_is_still_its_hosts(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    await registry.release("a", "x", fence, "restarting", "exit 1")
    assert await registry.location("x") is None
    assert (await registry.grant(*B, "x")).word == "held"
    assert await registry.started(*A, "x", fence, 2) == "kept"
    assert (await registry.get("x")).restarts == 1


async def test_one_that_moves_is_for_the_next_host(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    await registry.release("a", "x", fence, "moving")
    assert await run(registry, B) == fence + 1
    assert await registry.location("x") == B[1]


async def test_one_that_moves_waits_for_whoever_moves_it(registry):
    """Its mover has the time of one placing; if it dies meanwhile, others look."""
    await registry.want(agent())
    await registry.release("a", "x", await run(registry, A), "moving")
    assert await registry.reclaim() == []
    await leases_end(registry)
    assert [each.agent_id for each in await registry.reclaim()] == ["x"]


async def test_another_process_of_the_same_name_is_another_host(registry):
    """Fails if a name is all that counts: the second one would start a second copy under the same fence."""
    wanted = await registry.want(agent())
    await run(registry, A)
    twin = await registry.grant("a", "10.0.0.9:50051", "x", seen=wanted.fence)
    assert (twin.word, twin.given, twin.address) == ("held", False, A[1])
    assert (await registry.grant(*A, "x", seen=wanted.fence)).word == "mine"


async def test_a_late_call_is_not_the_one_that_its_host_has_served(registry):
    """A call of the first placing, to the host that has the agent by now again: it is not a repetition."""
    wanted = await registry.want(agent())
    await registry.release("a", "x", await run(registry, A), "moving")
    await run(registry, A)
    assert (await registry.grant(*A, "x", seen=wanted.fence)).word == "held"


async def test_an_agent_is_on_one_host_even_if_nobody_took_it_from_the_old_one(registry):
    await registry.want(agent())
    await run(registry, A)
    await leases_end(registry)
    await run(registry, B)
    assert (await registry.on_host("a"), await registry.on_host("b")) == ([], ["x"])


async def test_what_is_wanted_again_is_kept_for_ever(registry, redis):
    await registry.want(agent())
    await registry.unwant("x")
    assert await redis.pttl(registry.keys.record_prefix + "x") > 0
    await registry.want(agent())
    assert await redis.pttl(registry.keys.record_prefix + "x") == -1


async def test_what_is_being_stopped_can_be_wanted_again_when_it_has_ended(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    await registry.unwant("x")
    again = await registry.want(agent())
    assert (again.new, again.status) == (False, AgentStatus.STOPPING)
    assert (await registry.grant(*B, "x")).word == "unwanted"
    await registry.release("a", "x", fence, "stopped")
    assert (await registry.want(agent())).new
    assert (await registry.grant(*B, "x")).fence == fence + 1


async def test_what_was_being_stopped_by_a_dead_host_can_be_wanted_again(registry):
    await registry.want(agent())
    await run(registry, A)
    await registry.unwant("x")
    await leases_end(registry)
    assert (await registry.want(agent())).new


async def test_a_redis_that_went_back_in_time_is_told_again(registry):
    """Fences only rise: a host whose fence is higher than the record's knows better than Redis."""
    await registry.want(agent())
    fence = await run(registry, A)
    await registry.redis.hset(registry.keys.record_prefix + "x", "fence", fence - 1)
    assert await renewed(registry, A, fence) is RenewalReply.FORGOTTEN


async def test_a_new_life_begins_without_the_old_ones_restarts(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    await registry.release("a", "x", fence, "restarting", "exit 1")
    await registry.release("a", "x", fence, "crashed", "exit 1")
    await registry.want(agent())
    placed = await registry.get("x")
    assert (placed.restarts, placed.error, placed.pid) == (0, "", 0)


async def test_only_its_host_can_say_that_an_agent_ended(registry):
    await registry.want(agent())
    fence = await run(registry, A)
    for host, seen in (("b", fence), ("a", fence - 1), ("a", fence + 1)):
        assert not await registry.release(host, "x", seen, "stopped")
        assert await registry.started(host, A[1], "x", seen, 9) == "lost"
    assert await renewed(registry, B, fence) is RenewalReply.LOST
    assert await renewed(registry, A, fence - 1) is RenewalReply.LOST
    assert (await registry.get("x")).pid == 123
    assert await registry.location("x") == A[1]


# -- whatever happens, in whatever order

STEPS = ("want", "unwant", "grant", "started", "renew", "release", "reclaim", "time", "sleep")


@dataclass
class Process:
    """A host as it sees itself: what it believes to run, maybe long after that was true."""

    at: tuple[str, str]
    copies: dict[str, int] = field(default_factory=dict)
    asleep: bool = False


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.integers(0, 1), st.integers(0, 3)),
        max_size=60,
    )
)
async def test_an_agent_has_one_host_and_nobody_is_lost(redis, steps):
    await redis.flushall()
    registry = AgentRegistry(HostKeys.of(), redis, ttl_seconds=60, placing_seconds=10)
    hosts = [Process(A), Process(B)]
    for step, which, number, choice in steps:
        host, agent_id = hosts[which], f"r{number}"
        match step:
            case "want":
                await registry.want(agent(agent_id))
            case "unwant":
                await registry.unwant(agent_id)
            case "grant":
                grant = await registry.grant(*host.at, agent_id)
                if grant.given:
                    host.copies[agent_id] = grant.fence
            case "started" if agent_id in host.copies:
                if await registry.started(*host.at, agent_id, host.copies[agent_id], 1) != "kept":
                    del host.copies[agent_id]
            case "release" if agent_id in host.copies:
                word = ("stopped", "crashed", "moving", "restarting")[choice]
                await registry.release(host.at[0], agent_id, host.copies[agent_id], word)
                if word != "restarting":
                    del host.copies[agent_id]
            case "renew" if not host.asleep:
                await renew(registry, host)
            case "reclaim":
                await registry.reclaim()
            case "time":
                await leases_end(registry)
            case "sleep":
                host.asleep = not host.asleep
        await check(registry, hosts)
    for host in hosts:
        await renew(registry, host)
    await check(registry, hosts, told=True)
    await everyone_finds_a_host(registry)


async def renew(registry: AgentRegistry, host: Process) -> None:
    held = [Lease(agent_id, host.at[0], fence) for agent_id, fence in host.copies.items()]
    standings = await registry.leases(*host.at).renew(registry.redis, held)
    for lease, standing in zip(held, standings, strict=True):
        if standing is RenewalReply.STOP:
            await registry.release(host.at[0], lease.key, lease.fence, "stopped")
        if standing is not RenewalReply.KEPT:
            del host.copies[lease.key]


async def check(registry: AgentRegistry, hosts: list[Process], *, told: bool = False) -> None:
    for agent_id in ("r0", "r1"):
        placed, at = await registry.get(agent_id), await registry.location(agent_id)
        on = [host.at[0] for host in hosts if agent_id in await registry.on_host(host.at[0])]
        assert len(on) <= 1
        if at is not None:
            assert placed.status is AgentStatus.RUNNING
            assert (placed.address, on) == (at, [placed.host])
        copies = [host.at[0] for host in hosts if agent_id in host.copies]
        fences = [host.copies[agent_id] for host in hosts if agent_id in host.copies]
        assert len(set(fences)) == len(fences), "two hosts have it under one fence"
        if told:
            assert len(copies) <= 1, "a host that was told it lost an agent stops it"


async def everyone_finds_a_host(registry: AgentRegistry) -> None:
    await leases_end(registry)
    for homeless in await registry.reclaim():
        assert (await registry.grant(*A, homeless.agent_id, seen=homeless.fence)).given
    async for placed in registry.all():
        if placed.wanted and placed.status is not AgentStatus.CRASHED:
            assert placed.host == "a"
