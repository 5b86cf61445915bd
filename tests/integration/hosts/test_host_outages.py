"""Hosts, zygotes and Redis go away and come back: nothing runs twice, nothing is lost, nothing is disturbed for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import operator
import os
import signal
from collections import Counter
from pathlib import Path

import grpc
import psutil
import pytest
from grpc import aio

from holdfast.config import RedisSettings
from holdfast.hosts.agent import AgentStatus
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.redis.client import TROUBLE
from holdfast.services.residents import Residents
from tests.support.hosts.faulty_agents import Hosts, hosts_of, listener, written, written_by
from tests.support.hosts.host_processes import agent
from tests.support.redis.fault_proxy import FaultProxy
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _empty(redis):
    """Every test has an empty Redis."""


async def running(cluster: Hosts, ids: list[str]) -> dict[str, tuple[int, int, str]]:
    """Process, fence and host of each agent, all of which run exactly once."""
    found = {}
    for agent_id in ids:
        placed = await cluster.where(agent_id)
        assert cluster.copies(agent_id) == [placed.pid]
        found[agent_id] = (placed.pid, placed.fence, placed.host)
    return found


async def renewed(cluster: Hosts, ids: list[str], times: int = 2) -> None:
    """Wait until all leases were renewed that often: what would be corrected has been."""

    async def leases() -> list[float]:
        found = dict(await cluster.redis.zrange(cluster.engine.registry.keys.leases, 0, -1, withscores=True))
        return [found.get(each.encode(), 0) for each in ids]

    for _ in range(times):
        before = await leases()
        await until(
            leases,
            lambda now, before=before: all(map(operator.gt, now, before)),
            what=f"renewals of {ids} after {before}",
            seconds=60,
        )


# -- Redis


SHORT = {"HOLDFAST_REDIS_SOCKET_TIMEOUT_SECONDS": "1"}
"""For hosts that are to notice an outage; the test itself has more patience with its Redis."""


@pytest.fixture
def own_redis(restartable_valkey) -> RedisSettings:
    return RedisSettings(url=restartable_valkey.tcp_url, socket_timeout_seconds=30.0)


@contextlib.asynccontextmanager
async def outage(valkey: ValkeyProcess, how: str, seconds: float):
    """Redis is away for so long at least."""
    if how == "killed":
        valkey.kill()
    else:
        valkey.freeze()
    await asyncio.sleep(seconds)  # this is the outage
    yield
    if how == "killed":
        valkey.start()
    else:
        valkey.thaw()


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_agents_do_not_notice_a_short_outage_of_redis(restartable_valkey, own_redis, how):
    """Fails if agents end before the time for which their leases are trusted is over."""
    ids = [f"r{n}" for n in range(4)]
    # They are trusted for 17 s, and renewed every second.
    async with hosts_of(own_redis, "a", "b", environ=SHORT, ttl_seconds=20.0, heartbeat=1.0) as cluster:
        for each in ids:
            await cluster.engine.run(agent(each))
        before = await running(cluster, ids)
        async with outage(restartable_valkey, how, 3.0):
            pass
        await renewed(cluster, ids, 3)
        assert await running(cluster, ids) == before


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_agents_end_with_their_leases_in_a_long_outage_and_are_started_again_after_it(
    restartable_valkey, own_redis, how
):
    """Fails if a host rescues before all others had the time to renew, and if the end of a lease is a crash."""
    ids = [f"r{n}" for n in range(4)]
    # Half of the ttl is a host given to renew, and it renews every second: it may be without CPU for four.
    settings = {"ttl_seconds": 10.0, "heartbeat": 1.0, "max_restarts": 0}
    async with hosts_of(own_redis, "a", "b", environ=SHORT, **settings) as cluster:
        for each in ids:
            await cluster.engine.run(agent(each))
        before = await running(cluster, ids)
        async with outage(restartable_valkey, how, 10.0 * 1.05):
            await until(lambda: not any(cluster.copies(each) for each in ids))
        await renewed(cluster, ids, 3)
        after = await running(cluster, ids)
        for each in ids:
            assert after[each][1:] == before[each][1:], "the same fence and host"
            assert after[each][0] != before[each][0]
            placed = await cluster.where(each)
            assert placed.restarts == 0
            assert placed.error.startswith("its lease was not renewed in time (Redis did not answer")


# -- one host without the others


class Fault:
    """What happens to the host that has the agent, until it is mended; the agent's own messages go on."""

    def __init__(self, cluster: Hosts, proxy: FaultProxy, pid: int) -> None:
        self.proxy = proxy
        self.host = cluster.children["a"].process
        self.tree = [psutil.Process(each) for each in (pid, cluster.zygote("a"), self.host.pid)]

    def begin(self, what: str) -> None:
        match what:
            case "host frozen":
                self.host.send_signal(signal.SIGSTOP)
            case "all frozen":
                for process in self.tree:
                    process.send_signal(signal.SIGSTOP)
            case "host cut off":
                self.proxy.stall()

    async def mend(self, ledger: Path) -> None:
        """Let the agent do what it would do before the processes go on that could end it."""
        # First it would handle what came before the other copy listened, which nobody else has.
        for process in self.tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
            await until(lambda: has_ended(self.tree[0]) or doubled(ledger) > 1)
        self.proxy.heal()


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def writers(ledger: Path) -> Counter[int]:
    """How many messages each process has handled."""
    return Counter(pid for _, pid in written_by(ledger))


def doubled(ledger: Path) -> int:
    """How many messages were handled twice."""
    handled = Counter(written(ledger))
    return sum(handled.values()) - len(handled)


@pytest.mark.parametrize("what", ["host frozen", "all frozen", "host cut off"])
async def test_no_message_is_handled_by_two_copies_of_an_agent(redis_settings, fault_proxy, tmp_path, what):
    """Fails if only its host may end an agent: whatever both copies hear is handled twice."""
    ledger = tmp_path / "ledger"
    async with hosts_of(redis_settings, environ=SHORT, ttl_seconds=6.0, heartbeat=1.0) as cluster:
        await cluster.start("a", REDIS_URL=fault_proxy.url)
        placed = await cluster.engine.run(listener("x", redis_settings.url, ledger))
        await cluster.start("b")
        publishing = asyncio.create_task(publish_numbers(cluster, "x"))
        await until(lambda: len(written(ledger)) >= 10)
        fault = Fault(cluster, fault_proxy, placed.pid)
        fault.begin(what)
        moved = await cluster.where("x", not_on="a", seconds=60)
        await until(lambda: writers(ledger)[moved.pid] >= 50)
        await fault.mend(ledger)
        await until(lambda: "agent copy stopped" in cluster.children["a"].logged())
        publishing.cancel()
        assert doubled(ledger) <= 1, "one message may be in progress"
        assert cluster.copies("x") == [moved.pid]


async def publish_numbers(cluster: Hosts, channel: str) -> None:
    """Publish until cancelled."""
    for number in itertools.count():
        await cluster.redis.publish(channel, number)
        await asyncio.sleep(0.01)


async def test_a_host_whose_event_loop_blocks_keeps_its_agents(redis, redis_settings, tmp_path):
    """Renewed on the event loop, the leases end while it blocks: the agents end, and start on the other host."""
    ledger = tmp_path / "ledger"
    async with hosts_of(redis_settings, "a", ttl_seconds=10.0, heartbeat=1.0) as cluster:
        placed = await cluster.engine.run(listener("x", redis_settings.url, ledger))
        await cluster.start("b")
        publishing = asyncio.create_task(publish_numbers(cluster, "x"))
        await until(lambda: len(written(ledger)) >= 10)
        cluster.children["a"].block()
        # A host that is blocked sends no heartbeat: its record goes, and comes back after the block.
        await until(lambda: redis.exists("member:host:a"), lambda found: not found, seconds=60)
        await until(lambda: redis.exists("member:host:a"), seconds=60)
        await renewed(cluster, ["x"])
        publishing.cancel()
        assert doubled(ledger) == 0
        assert await running(cluster, ["x"]) == {"x": (placed.pid, placed.fence, "a")}


async def test_a_host_whose_event_loop_blocks_has_no_copy_of_an_agent_that_is_anothers(
    redis, redis_settings, tmp_path
):
    """Its leases can't be renewed and its loop can't act: fails if only the loop ends what was lost."""
    ledger = tmp_path / "ledger"
    async with hosts_of(redis_settings, "a", ttl_seconds=6.0, heartbeat=1.0) as cluster:
        placed = await cluster.engine.run(listener("x", redis_settings.url, ledger))
        await cluster.start("b")
        publishing = asyncio.create_task(publish_numbers(cluster, "x"))
        await until(lambda: len(written(ledger)) >= 10)
        cluster.children["a"].block()
        # Somebody else's name is on the lease, and it is over in the time that the registry gives.
        await redis.hset(cluster.engine.registry.keys.record_prefix + "x", "owner", "nobody")
        moved = await until(
            lambda: cluster.engine.registry.get("x"),
            lambda found: (found.host, found.status) == ("b", AgentStatus.RUNNING),
            seconds=60,
        )
        await until(lambda: writers(ledger)[moved.pid] >= 50)
        await until(lambda: "agent copy stopped" in cluster.children["a"].logged(), seconds=60)
        publishing.cancel()
        assert doubled(ledger) <= 1, "one message may be in progress"
        assert cluster.copies("x") == [moved.pid] != [placed.pid]


async def test_after_a_redis_that_hung_for_longer_than_the_leases_no_agent_runs_twice(
    restartable_valkey, own_redis
):
    """What hosts had sent before it hung is executed when it goes on: renewals, reports and reclaims."""
    ids = [f"r{n}" for n in range(4)]
    async with hosts_of(own_redis, "a", "b", environ=SHORT, ttl_seconds=6.0, heartbeat=1.0) as cluster:
        for each in ids:
            await cluster.engine.run(agent(each))

        async def never_two() -> None:
            while True:
                assert all(len(cluster.copies(each)) <= 1 for each in ids)
                await asyncio.sleep(0.05)

        looking = asyncio.create_task(never_two())
        async with outage(restartable_valkey, "frozen", 6.0 * 1.5):
            await until(lambda: not any(cluster.copies(each) for each in ids))
        await renewed(cluster, ids, 3)
        await running(cluster, ids)
        assert not looking.done(), looking.exception()
        looking.cancel()


async def test_a_host_without_redis_is_not_the_one_to_ask(restartable_valkey, own_redis):
    """Fails if its callers are told that their request is wrong."""
    async with (
        hosts_of(own_redis, "a", environ=SHORT) as cluster,
        aio.insecure_channel(cluster.children["a"].address) as channel,
    ):
        restartable_valkey.kill()
        stub, spec = (
            AgentHostServiceStub(channel),
            b'{"id": "x", "class_name": "tests.support.hosts.plain_agents.Idle"}',
        )
        with pytest.raises(aio.AioRpcError) as caught:
            await stub.CreateAgent(wire.CreateAgentRequest(agent_spec=spec, fence=0))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "Redis does not respond to this host" in caught.value.details()
        assert (await stub.Health(wire.HealthRequest())).healthy
        restartable_valkey.start()
        await until(cluster.engine.hosts)  # the outage may have been longer than its record stays
        assert (await cluster.engine.run(agent())).host == "a"


async def test_a_redis_that_lost_everything_is_told_again(redis, redis_settings):
    ids = [f"r{n}" for n in range(4)]
    async with hosts_of(redis_settings, "a", "b") as cluster:
        for each in ids:
            await cluster.engine.run(agent(each))
        before = await running(cluster, ids)
        await redis.flushall()
        assert await running(cluster, ids) == before
        for each in ids:
            assert await cluster.engine.location(each) == cluster.children[before[each][2]].address
        # Its host still hears of what happens to it.
        os.kill(before["r0"][0], signal.SIGKILL)
        await until(lambda: cluster.where("r0"), lambda found: found.pid != before["r0"][0])
        assert await cluster.engine.stop("r1")
        await until(lambda: not cluster.copies("r1"))


async def test_when_two_hosts_tell_an_empty_redis_of_the_same_agent_one_of_them_has_it(redis, redis_settings):
    """Fails if the refusal of the one that comes second ends its host."""
    async with hosts_of(redis_settings, "a", "b", ttl_seconds=6.0) as cluster:
        placed = await cluster.engine.run(agent())
        (other,) = {"a", "b"} - {placed.host}
        cluster.children[placed.host].freeze()
        await cluster.where("x", not_on=placed.host)
        cluster.children[other].freeze()
        await redis.flushall()
        for name in (other, placed.host):
            cluster.children[name].thaw()
        await until(lambda: len(cluster.copies("x")) == 1, seconds=90)
        await renewed(cluster, ["x"])
        await running(cluster, ["x"])
        assert all(child.process.poll() is None for child in cluster.children.values())


@contextlib.asynccontextmanager
async def redis_goes_back_to(redis):
    """What is inside is lost: a replica takes over that did not hear of it."""
    before = {key: await redis.dump(key) for key in await redis.keys("*")}
    yield
    async with redis.pipeline(transaction=True) as pipe:
        pipe.flushall()
        for key, value in before.items():
            if value is not None:  # it ended just when it was read
                pipe.restore(key, 0, value)
        await pipe.execute()


async def test_an_agent_that_redis_forgot_to_have_been_placed_runs_on(redis, redis_settings):
    async with hosts_of(redis_settings, "a") as cluster:
        await cluster.engine.run(agent())
        assert await cluster.engine.stop("x")
        async with redis_goes_back_to(redis):
            again = await cluster.engine.run(agent())
            cluster.children["a"].freeze()  # or it tells Redis before we have looked
        assert (await cluster.engine.registry.get("x")).status is AgentStatus.STOPPED
        cluster.children["a"].thaw()
        assert (await cluster.where("x")).pid == again.pid
        await renewed(cluster, ["x"])
        assert (await running(cluster, ["x"]))["x"] == (again.pid, again.fence, "a")


async def test_an_agent_that_redis_forgot_to_have_moved_runs_once(redis, redis_settings):
    # The old host's lease must outlast the move: one that is over would be given to the new host.
    async with hosts_of(redis_settings, "a", "b", ttl_seconds=8.0) as cluster:
        await cluster.engine.run(agent())
        async with redis_goes_back_to(redis):
            await cluster.engine.move("x")
        await until(lambda: not cluster.copies("x"))  # its new host is told that it is another's
        await cluster.where("x")
        await until(lambda: len(cluster.copies("x")) == 1)
        await renewed(cluster, ["x"])
        await running(cluster, ["x"])


async def test_a_record_that_can_not_be_read_ends_no_host(redis, redis_settings):
    async with hosts_of(redis_settings, "a") as cluster:
        keys = cluster.engine.registry.keys
        await cluster.engine.registry.want(agent("odd"))
        await redis.hset(keys.record_prefix + "odd", "needs", "nonsense")
        await redis.zadd(keys.leases, {"odd": 1})  # whoever wanted it has had the time to place it
        await until(lambda: "agent record unreadable" in cluster.children["a"].logged())
        assert (await cluster.engine.run(agent())).host == "a"


# -- hosts


async def test_a_host_that_slept_alone_starts_its_agents_again(redis_settings):
    """Fails if it looks for agents without a host before it has renewed its own."""
    async with hosts_of(redis_settings, "a", ttl_seconds=4.0) as cluster:
        for each in ("x", "y"):
            await cluster.engine.run(agent(each))
        before = await running(cluster, ["x", "y"])
        cluster.children["a"].freeze()
        for each in ("x", "y"):
            location = functools.partial(cluster.engine.location, each)
            await until(location, lambda found: not found, what=f"the end of the lease of {each}")
        cluster.children["a"].thaw()
        await renewed(cluster, ["x", "y"])
        for each, (pid, fence, host) in (await running(cluster, ["x", "y"])).items():
            assert (fence, host) == before[each][1:]
            assert pid != before[each][0]


async def test_a_zygote_that_is_killed_comes_back_with_its_agents(redis_settings):
    async with hosts_of(redis_settings, "a", "b") as cluster:
        ids = [f"r{n}" for n in range(4)]
        for each in ids:
            await cluster.engine.run(agent(each))
        before = await running(cluster, ids)
        os.kill(cluster.zygote("a"), signal.SIGKILL)
        for each, (pid, fence, host) in before.items():
            placed = await until(
                functools.partial(cluster.where, each),
                lambda placed, pid=pid, host=host: host != "a" or placed.pid != pid,
                seconds=60,
            )
            assert (placed.host, placed.fence) == (host, fence)
            assert host == "a" or placed.pid == pid
        await running(cluster, ids)


async def test_a_host_that_is_the_only_one_leaves_its_agents_to_the_next(redis_settings):
    async with hosts_of(redis_settings, "a", placing_seconds=1.0) as cluster:
        await cluster.engine.run(agent())
        cluster.children["a"].terminate()
        assert await cluster.children["a"].exited(60) == 0
        assert "agent waiting for host" in cluster.children["a"].logged()
        placed = await cluster.engine.registry.get("x")
        assert (placed.status, placed.wanted, placed.host) == (AgentStatus.PLACING, True, "")
        await until(lambda: not cluster.processes())
        await cluster.start("b")
        assert (await cluster.where("x", seconds=60)).host == "b"
        await running(cluster, ["x"])


# -- residents


@pytest.fixture
def short_leases() -> None:
    """For tests that wait until a lease is over; in the others a busy machine must lose none."""


@pytest.fixture
async def scribes(redis, redis_settings, tmp_path, request):
    ttl_seconds = 4.0 if "short_leases" in request.fixturenames else 15.0
    environ = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite")}
    async with (
        hosts_of(
            redis_settings, "a", "b", environ=environ, ttl_seconds=ttl_seconds, health_seconds=0.0
        ) as cluster,
        Residents(cluster.settings) as residents,
    ):
        yield cluster, residents


async def send(residents: Residents, numbers: range, seconds: float = 0.02) -> None:
    for n in numbers:
        await residents.send("scribe", {"n": n, "seconds": seconds})


async def test_messages_outlive_the_leaving_of_a_host_in_their_order(scribes, tmp_path):
    cluster, residents = scribes
    ledger = tmp_path / "ledger"
    placed = await residents.start("Scribe", "scribe", str(ledger))
    await send(residents, range(20))
    await until(lambda: len(written(ledger)) >= 3, seconds=60)
    cluster.children[placed.host].terminate()
    await send(residents, range(20, 40))
    assert await cluster.children[placed.host].exited(60) == 0
    await until(lambda: len(set(written(ledger))) == 40, seconds=90)
    done = written(ledger)
    assert done == sorted(done), "in the order they were sent"
    assert len(done) == 40, "a host that leaves lets a message be finished"
    assert (await cluster.where("scribe")).host != placed.host


@pytest.mark.usefixtures("short_leases")
async def test_a_resident_whose_host_slept_receives_nothing_twice(scribes, tmp_path):
    """Its process ends with its lease while its host sleeps, and another host starts it."""
    cluster, residents = scribes
    ledger = tmp_path / "ledger"
    placed = await residents.start("Scribe", "scribe", str(ledger))
    await send(residents, range(10))
    # A message that is being received when the process ends is received again, and may be.
    await until(lambda: len(written(ledger)) == 10)
    cluster.children[placed.host].freeze()
    moved = await cluster.where("scribe", not_on=placed.host, seconds=60)
    await send(residents, range(10, 40))
    cluster.children[placed.host].thaw()
    await send(residents, range(40, 60))
    await until(lambda: cluster.copies("scribe") == [moved.pid], seconds=60)
    await until(lambda: len(set(written(ledger))) == 60, seconds=90)
    assert written(ledger) == list(range(60))
    assert written(ledger, "begin") == list(range(60))


async def test_a_resident_outlives_an_outage_of_redis(restartable_valkey, own_redis, tmp_path):
    ledger = tmp_path / "ledger"
    environ = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite")}
    async with (
        hosts_of(own_redis, "a", "b", environ=environ | SHORT, health_seconds=0.0) as cluster,
        Residents(cluster.settings) as residents,
    ):
        before = await residents.start("Scribe", "scribe", str(ledger))
        await send(residents, range(10), 0.1)
        restartable_valkey.restart()
        for n in range(10, 20):
            sent = functools.partial(residents.send, "scribe", {"n": n})
            await until(sent, lambda _: True, what=f"message {n} to be sent", seconds=60, tolerate=TROUBLE)
        await until(lambda: set(written(ledger)) == set(range(20)), seconds=90)
        assert (await cluster.where("scribe")).pid == before.pid
