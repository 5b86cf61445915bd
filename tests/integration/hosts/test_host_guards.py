"""One host in this process, on a real Redis with real agents: what must not happen when things happen together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from redis import Redis

from holdfast.clock import boot_time
from holdfast.config import HostSettings
from holdfast.errors import Conflict, InputError, ProcessesFull
from holdfast.hosts.agent import AgentStatus, Needs
from holdfast.hosts.engine import HostEngine
from holdfast.hosts.failover import Rescue
from holdfast.hosts.host import Host
from holdfast.hosts.registry import AgentRegistry
from holdfast.leases.keeper import Keeper
from holdfast.processes.info import EventKind, ProcessEvent, ProcessStatus
from holdfast.processes.options import ProcessOptions
from holdfast.processes.processes import Processes
from holdfast.processes.restarts import RestartPolicy
from holdfast.redis.client import connect
from holdfast.redis.keys import HostKeys
from holdfast.redis.library import RedisConnectionError
from holdfast.telemetry.metrics import Metrics
from tests.support.hosts.faulty_agents import troubled
from tests.support.hosts.host_processes import agent
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_SECONDS, until

TTL = 30.0


@pytest.fixture(scope="module")
def processes():
    """One zygote for all tests here."""
    options = ProcessOptions(
        entries={"plain": "holdfast.processes.plain:run"},
        class_prefixes=("tests.support.hosts",),
        path=(str(ROOT), *sys.path),
        restarts=RestartPolicy(max_restarts=3),
        stop_timeout_seconds=PATIENCE_SECONDS,
    )
    with Processes(options) as processes:
        yield processes


@pytest.fixture
async def host(redis_settings, fault_proxy, processes):
    """It reaches Redis by the proxy; nothing of it is left for the next test."""
    proxied = msgspec.structs.replace(redis_settings, url=fault_proxy.url)
    client, settings, metrics = connect(proxied), HostSettings(max_processes=3), Metrics()
    registry = AgentRegistry(HostKeys.of(), client, ttl_seconds=TTL, placing_seconds=10)
    keeper = Keeper(settings, lambda: connect(proxied), metrics, at_least_every=0.1)
    host = Host("a", "127.0.0.1:1", registry, processes, keeper, settings, metrics)
    yield host
    for agent_id in tuple(processes.all()):
        await asyncio.wrap_future(processes.kill(agent_id))
        await asyncio.wrap_future(processes.forget(agent_id))
    await client.aclose()


@pytest.fixture
def registry(redis) -> AgentRegistry:
    """The table, seen by somebody whose connection is well."""
    return AgentRegistry(HostKeys.of(), redis, ttl_seconds=TTL, placing_seconds=10)


@contextlib.asynccontextmanager
async def going(*work):
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.sleep(0)  # host.watch() subscribes in its first step; an event before that is not seen
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            assert task.cancelled() or task.exception() is None, task.exception()


def quick(host: Host) -> AgentRegistry:
    """The host's table with a ttl that can be waited for."""
    return AgentRegistry(HostKeys.of(), host.registry.redis, ttl_seconds=1.0, placing_seconds=10)


async def reaches(registry: AgentRegistry, status: AgentStatus, agent_id: str = "x") -> None:
    await until(lambda: registry.get(agent_id), lambda found: found.status is status)


async def placed(registry: AgentRegistry, host: Host, what=None) -> int:
    """Have an agent run there; returns its process."""
    wanted = await registry.want(what or agent())
    process, _ = await host.create(what or agent(), seen=wanted.fence)
    return process.pid


# -- one thing at a time


async def test_whoever_waits_for_its_turn_gets_it_before_those_who_come_later(host):
    """Fails if a lock is thrown away while somebody has been woken up for it."""
    inside: list[str] = []

    async def visit(name: str) -> None:
        async with host._turn("x"):
            inside.append(name)
            assert len(inside) == 1
            for _ in range(3):
                await asyncio.sleep(0)
            inside.remove(name)

    async def late() -> None:
        await first
        await visit("third")

    first = asyncio.create_task(visit("first"))
    await asyncio.gather(first, asyncio.create_task(visit("second")), asyncio.create_task(late()))
    assert len(host._turns) == 0, "nothing is kept of agents that are gone"


async def test_a_turn_that_fails_leaves_nothing_behind(host):
    for n in range(5):
        with pytest.raises(Conflict):
            await host.create(agent(f"r{n}"), seen=7)
    assert len(host._turns) == 0


async def test_two_calls_at_once_start_one_agent(host, registry):
    wanted = await registry.want(agent())
    first, second = await asyncio.gather(*(host.create(agent(), seen=wanted.fence) for _ in range(2)))
    assert first == second


async def test_a_call_repeated_while_the_agent_is_restarted_waits_for_it(host, registry):
    """Fails if whatever has a place here is said to run: there was no process."""
    async with going(host.watch()):
        wanted = await registry.want(agent())
        process, fence = await host.create(agent(), seen=wanted.fence)
        os.kill(process.pid, signal.SIGKILL)
        await until(
            lambda: host.processes.get("x"),
            lambda now: now.status is not ProcessStatus.RUNNING or now.pid != process.pid,
        )
        again, same = await host.create(agent(), seen=wanted.fence)
        assert (again.status, same) == (ProcessStatus.RUNNING, fence)
        assert again.pid not in {0, process.pid}


async def test_a_full_host_gives_back_nothing_because_it_takes_nothing(host, registry):
    for n in range(3):
        await placed(registry, host, agent(f"r{n}"))
    wanted = await registry.want(agent())
    with pytest.raises(ProcessesFull):
        await host.create(agent(), seen=wanted.fence)
    assert (await registry.get("x")).fence == wanted.fence


# -- stopping


def end_now(pid: int) -> None:
    """End a process that has been stopping for long enough, as if its time were over."""
    with contextlib.suppress(
        ProcessLookupError
    ):  # it was ended before, and its host has not reported that yet
        os.kill(pid, signal.SIGKILL)


async def test_nobody_has_an_agent_before_it_has_ended_here(host, registry):
    """Fails if it is released first: another host would start it while it runs here."""
    pid = await placed(registry, host, troubled("x", "deaf"))
    async with going(host.renew()):
        stopping = asyncio.create_task(host.stop("x", timeout_seconds=PATIENCE_SECONDS, moving=True))
        await until(lambda: host.copies["x"].stopping)
        renewed = set()

        async def has_stopped() -> bool:
            grant = await registry.grant("b", "127.0.0.1:2", "x")
            alive = host.processes.get("x")
            assert not (grant.given and alive is not None and alive.is_alive)
            assert await registry.reclaim() == []
            if not grant.given:
                renewed.add(await registry.redis.zscore(registry.keys.leases, "x"))
            if len(renewed) == 4 and alive is not None and alive.pid == pid:
                end_now(pid)
            return stopping.done()

        await until(has_stopped, seconds=PATIENCE_SECONDS * 1.5)
        await stopping
        assert len(renewed) >= 4, "its lease is renewed until then"
    assert (await registry.get("x")).status in {AgentStatus.PLACING, AgentStatus.STARTING}


async def test_one_that_is_stopped_here_is_wanted_by_nobody(host, registry):
    await placed(registry, host)
    await host.stop("x")
    known = await registry.get("x")
    assert (known.status, known.wanted) == (AgentStatus.STOPPED, False)


async def test_a_slow_end_holds_up_no_other(host, registry, redis):
    """Fails if lost copies are ended one after the other."""
    deaf = await placed(registry, host, troubled("deaf", "deaf"))
    await placed(registry, host)
    await redis.hset(registry.keys.record_prefix + "deaf", mapping={"owner": "b", "fence": 9})
    async with going(host.renew()):
        await until(lambda: host.copies["deaf"].stopping)
        await redis.hset(registry.keys.record_prefix + "x", mapping={"owner": "b", "fence": 9})
        await until(lambda: "x" not in host.copies)
        assert "deaf" in host.copies
        end_now(deaf)
        await until(lambda: not host.copies)


async def test_a_slow_end_holds_up_no_renewal(host, registry, redis):
    """Fails if lost copies are ended one after the other before the next renewal."""
    deaf = await placed(registry, host, troubled("deaf", "deaf"))
    await placed(registry, host)
    await redis.hset(registry.keys.record_prefix + "deaf", mapping={"owner": "b", "fence": 9})
    async with going(host.renew()):
        await until(lambda: host.copies["deaf"].stopping)
        seen = set()

        async def has_ended() -> bool:
            seen.add(await redis.zscore(registry.keys.leases, "x"))
            if len(seen) == 4 and (ending := host.processes.get("deaf")) is not None and ending.pid == deaf:
                end_now(deaf)
            return "deaf" not in host.copies

        await until(has_ended, seconds=PATIENCE_SECONDS * 1.5)
        assert len(seen) >= 4
        assert await registry.location("x")


# -- leaving


async def test_a_host_that_leaves_takes_nothing_more(host, registry):
    wanted = await registry.want(agent())
    host.draining = True
    with pytest.raises(ProcessesFull, match="draining"):
        await host.create(agent(), seen=wanted.fence)
    assert (await registry.get("x")).fence == wanted.fence


async def test_what_is_granted_to_a_host_that_begins_to_leave_is_given_back(host, registry, fault_proxy):
    """Fails if it is started: whoever moves this host's agents has looked already, and nobody moves it."""
    wanted = await registry.want(agent())
    await host.registry.grant("a", "127.0.0.1:1", "another")  # the connection is there, and the script
    fault_proxy.stall("replies")
    creating = asyncio.create_task(host.create(agent(), seen=wanted.fence))
    await reaches(registry, AgentStatus.STARTING)
    host.draining = True
    fault_proxy.heal()
    with pytest.raises(ProcessesFull, match="draining"):
        await creating
    assert host.copies == {}
    assert (await registry.get("x")).status is AgentStatus.PLACING


# -- what the registry hears


async def test_an_agent_that_started_while_redis_was_away_is_found_afterwards(
    host, registry, fault_proxy, tmp_path
):
    """Fails if nobody says it again: the agent ran, and was 'starting' for ever."""
    slow = troubled("x", "wait", file=str(tmp_path / "go"))  # it can say that it is ready when nobody listens
    wanted = await registry.want(slow)
    async with going(host.watch(), host.renew()):
        creating = asyncio.create_task(host.create(slow, seen=wanted.fence))
        await reaches(registry, AgentStatus.STARTING)
        fault_proxy.refuse()
        (tmp_path / "go").touch()
        with pytest.raises(Exception):  # noqa: B017 - whatever the client says of it
            await creating
        assert await registry.location("x") is None
        fault_proxy.heal()
        await reaches(registry, AgentStatus.RUNNING)
        assert (await registry.get("x")).pid == host.processes.get("x").pid


async def test_a_restart_while_redis_was_away_is_told_afterwards(host, registry, fault_proxy):
    async with going(host.watch(), host.renew()):
        first = await placed(registry, host)
        fault_proxy.refuse()
        os.kill(first, signal.SIGKILL)
        await until(lambda: host.processes.get("x").pid not in {0, first})
        await until(lambda: host.processes.get("x").status is ProcessStatus.RUNNING)
        await until(host._events.empty)
        fault_proxy.heal()
        await until(lambda: registry.get("x"), lambda found: found.pid != first)


async def test_the_news_of_an_old_crash_does_not_end_the_agent_that_runs_now(host, registry):
    """Fails if the word of an old process counts: the new one would run with nobody knowing."""
    await placed(registry, host)
    process = host.processes.get("x")
    crashed = replace(process, status=ProcessStatus.CRASHED, pid=0)
    await host._handle(ProcessEvent(EventKind.EXITED, crashed, "", {}))
    assert "x" in host.copies
    assert (await registry.get("x")).status is AgentStatus.RUNNING


async def test_the_news_of_an_older_fence_is_nobodys(host, registry):
    pid = await placed(registry, host)
    older = replace(host.processes.get("x"), fence=0, restarts=1, pid=99)
    await host._handle(ProcessEvent(EventKind.READY, older, "", {}))
    assert (await registry.get("x")).pid == pid


async def test_a_copy_that_another_host_told_an_empty_redis_of_first_is_ended(host, registry, redis):
    """Fails if whoever is refused goes on, and if it ends its host instead."""
    await placed(registry, host)
    await host.stop("x", moving=True)
    known = await registry.get("x")
    await host.create(agent(), seen=known.fence)  # under a higher fence than the other host will have
    await redis.flushall()
    await registry.want(agent())
    await registry.grant("b", "127.0.0.1:2", "x")
    async with going(host.renew()):
        await until(lambda: host.copies == {} and host.processes.get("x") is None)
    assert (await registry.get("x")).host == "b"


async def test_an_empty_redis_is_told_under_the_same_fence(host, registry, redis):
    pid = await placed(registry, host)
    await redis.flushall()
    async with going(host.renew()):
        await until(lambda: registry.location("x"), lambda found: found is not None)
    known = await registry.get("x")
    assert (known.fence, known.pid, known.status) == (1, pid, AgentStatus.RUNNING)


async def test_an_agent_stopped_while_it_starts_does_not_stay(host, registry, tmp_path):
    slow = troubled("x", "wait", file=str(tmp_path / "go"))
    wanted = await registry.want(slow)
    creating = asyncio.create_task(host.create(slow, seen=wanted.fence))
    await reaches(registry, AgentStatus.STARTING)
    await registry.unwant("x")
    (tmp_path / "go").touch()
    with pytest.raises(Conflict, match="was stopped meanwhile"):
        await creating
    assert host.processes.get("x") is None
    assert (await registry.get("x")).status is AgentStatus.STOPPED


async def test_a_direct_caller_is_told_that_the_agent_is_just_being_stopped(host, registry):
    await registry.want(agent())
    await registry.grant("b", "127.0.0.1:2", "x")
    await registry.unwant("x")
    with pytest.raises(Conflict, match="is being stopped: start it again"):
        await host.create(agent())


async def test_documents_that_are_nested_too_deeply_are_refused(host, registry):
    nested = b'{"agent_spec": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}"
    deep = msgspec.structs.replace(agent(), payload=nested)
    wanted = await registry.want(deep)
    with pytest.raises(InputError, match="nested too deeply"):
        await host.create(deep, seen=wanted.fence)


# -- rescue


class Nobody:
    """An engine that is asked to place agents, and notes it."""

    def __init__(self, host: Host | None = None) -> None:
        self.asked: list[str] = []
        self._host = host
        self.calm_seconds = 0.0

    async def place(self, agent, fence, *, avoid=""):
        if self._host is not None and not self.asked:
            self.calm_seconds = self._host.calm_seconds
        self.asked.append(agent.agent_id)


async def homeless(registry: AgentRegistry) -> None:
    """An agent whose host is gone."""
    await registry.want(agent("lost"))
    await registry.grant("b", "127.0.0.1:2", "lost")
    await registry.redis.zadd(registry.keys.leases, {"lost": 1})


async def test_after_trouble_with_redis_nobody_is_declared_dead_too_early(
    host, registry, fault_proxy, log_lines
):
    engine, table = Nobody(host), quick(host)
    await homeless(registry)
    fault_proxy.refuse()
    host._undisturbed_since -= 100
    async with going(Rescue(table, engine, host).run()):
        # It has looked while Redis was away.
        await until(lambda: [line for line in log_lines() if line["event"] == "Redis unavailable"])
        fault_proxy.heal()
        await until(lambda: engine.asked)
    # Counted from the last look that failed, which may have been just before.
    assert table.ttl_seconds / 2 <= engine.calm_seconds < 100


async def test_what_nobody_has_needs_no_calm(host, registry):
    """Fails if a host waits half a ttl for agents that its predecessor gave up in good order."""
    engine = Nobody(host)
    await registry.want(agent("free"))
    await registry.unplaced("free", 0)
    await homeless(registry)
    host.disturbed()
    async with going(Rescue(host.registry, engine, host).run()):  # half of its ttl is 15 seconds
        await until(lambda: engine.asked)
        assert engine.asked == ["free"]
    assert engine.calm_seconds < host.registry.ttl_seconds / 2


async def test_a_host_that_stood_still_lets_the_others_speak_first(host, registry, monkeypatch):
    engine: HostEngine = Nobody()
    await homeless(registry)
    host._undisturbed_since -= 100
    # A clock of its own: on a busy machine a look may take as long as if the machine had slept.
    clock = [1_000_000.0]
    monkeypatch.setattr("holdfast.hosts.failover.time", SimpleNamespace(time=lambda: clock[0]))
    rescue = Rescue(quick(host), engine, host)
    assert await rescue._is_stable()
    looking = asyncio.create_task(rescue._is_stable())
    await asyncio.sleep(0)
    clock[0] += 1.0  # the machine slept
    assert not await looking


@pytest.mark.parametrize(("asked", "given"), [(0, 64), (32, 32), (4096, 64)])
async def test_an_agent_may_ask_for_less_memory_than_the_host_allows_and_not_for_more(host, asked, given):
    host.settings = msgspec.structs.replace(host.settings, memory_mb=64)
    limits = []
    host.processes = NotedLimits(host.processes, limits)
    await host.create(agent("x", needs=Needs(memory_mb=asked)))
    assert limits == [given * 2**20]


class NotedLimits:
    """Processes that note what each agent may use, and give it no limit: this is about the number alone."""

    def __init__(self, processes, limits):
        self._processes, self._limits = processes, limits

    def __getattr__(self, name):
        return getattr(self._processes, name)

    async def create(self, *args, limits, **options):
        self._limits.append(limits.memory_bytes)
        return await self._processes.create(*args, **options)


# -- leases


async def test_a_lease_is_trusted_from_the_moment_when_its_renewal_was_asked(host, registry, fault_proxy):
    """Fails if it counts from the answer: one that comes late would have an agent outlive its lease."""
    await placed(registry, host)
    hold = host.copies["x"].hold
    granted_until = hold.until
    fault_proxy.delay(0.5)
    async with going(host.renew()):
        renewed = await until(lambda: hold.until, lambda until: until > granted_until)
        assert renewed - host.settings.trust_seconds <= boot_time() - 0.5


async def test_renewals_go_on_while_the_event_loop_is_busy(host, registry, redis_settings):
    """Renewed on the event loop, they are late by as long as it is busy; the zygote is sent the new ends too."""
    pid = await placed(registry, host)
    ends, sent = set(), []
    keep = host.processes.keep
    with (
        contextlib.closing(Redis.from_url(redis_settings.url)) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(host.processes, "keep", lambda: (sent.append(host.copies["x"].hold.until), keep()))
        async with going(host.renew()):
            until_busy = time.monotonic() + PATIENCE_SECONDS
            while len(ends) < 4 and time.monotonic() < until_busy:  # the event loop is busy with this
                ends.add(client.zscore(registry.keys.leases, "x"))
                time.sleep(0.01)
    assert len(ends) >= 4
    assert len(set(sent)) >= 3
    assert host.processes.get("x").pid == pid


async def test_an_agent_that_ended_with_its_lease_is_started_again_by_the_next_renewal(host, registry):
    pid = await placed(registry, host)
    async with going(host.watch()):
        host.copies["x"].hold.until = 0.0
        host.processes.keep()
        await until(lambda: host.processes.get("x").status is ProcessStatus.WAITING)
        await until(lambda: host.metrics.registry.get_sample_value("holdfast_host_lease_ends_total") == 1)
        async with going(host.renew()):
            found = await until(
                lambda: registry.get("x"),
                lambda found: found.status is AgentStatus.RUNNING and found.pid != pid,
            )
        assert (found.fence, found.restarts) == (1, 0)
        assert found.error.startswith("its lease was not renewed in time (Redis did not answer")
        assert await registry.location("x") == host.address


@pytest.fixture
async def waiting(host, registry):
    """An agent that the end of its lease has ended; returns the process that it was."""
    pid = await placed(registry, host)
    async with going(host.watch()):
        host.copies["x"].hold.until = 0.0
        host.processes.keep()
        await until(lambda: host.processes.get("x").status is ProcessStatus.WAITING)
        yield pid


async def test_leases_are_renewed_before_the_registry_is_told_of_agents_that_wait(host, waiting, monkeypatch):
    """Fails if what can't be told holds up the renewal: the agents that still run would end, too."""

    async def refuse(*_: object) -> bool:
        raise RedisConnectionError("away")

    monkeypatch.setattr(host.registry, "release", refuse)
    async with going(host.renew()):
        await until(lambda: host.processes.get("x").status is ProcessStatus.RUNNING)
        assert host.processes.get("x").pid != waiting
        assert host.copies["x"].lease_ended, "it is reported when the registry can be called"


async def test_a_repeated_create_starts_an_agent_that_waits_for_its_lease(host, waiting):
    """Fails if it waits for the next renewal, though Redis has just renewed the lease for it."""
    process, fence = await host.create(agent())
    assert (process.status, fence) == (ProcessStatus.RUNNING, 1)
    assert process.pid != waiting


async def test_a_repeated_create_does_not_wait_for_a_lease_that_has_ended_again(host, waiting, monkeypatch):
    host.copies["x"].hold.trust_seconds = 0.1
    monkeypatch.setattr(host.processes, "keep", lambda: None)
    with pytest.raises(Conflict, match="waits for its lease"):
        await host.create(agent())
