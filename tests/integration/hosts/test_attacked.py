"""What an attack on hosts found: hosts that can start nothing, news that wait for Redis, agents silent from the first."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from holdfast.config import HostSettings, RedisSettings
from holdfast.errors import Conflict, InputError, NoHost, ProcessError
from holdfast.hosts.agent import AgentStatus, Needs
from holdfast.hosts.factory import keeper_of
from holdfast.hosts.host import Host
from holdfast.processes.info import AgentProcessInfo, EventKind, ProcessEvent, ProcessStatus
from holdfast.services.residents import Residents
from holdfast.telemetry.metrics import Metrics
from tests.support.hosts.faulty_agents import hosts_of
from tests.support.hosts.host_processes import Cluster, agent, cluster_of
from tests.support.paths import ROOT
from tests.support.waiting import stays, until

ODD = """
import asyncio, os

from holdfast import App

app = App("odd")


@app.resident
class Mute:
    '''Its first health() does not end; that of a later copy does.'''

    def __init__(self, path):
        self.first = not os.path.exists(path)
        open(path, "w").close()

    async def receive(self, ctx, message):
        return os.getpid()

    async def health(self):
        if self.first:
            await asyncio.Event().wait()


@app.resident
class Well:
    async def receive(self, ctx, message):
        return os.getpid()
"""


@pytest.fixture
def odd(tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(ODD)
    return f"{path}:app"


async def start_broken(cluster: Cluster, folder: Path) -> None:
    """A host that was well when it began, and whose code is broken since: its zygote does not come up again."""
    module = folder / "since_broken.py"
    module.write_text("")
    await cluster.start("broken", HOLDFAST_HOSTS_PRELOAD="since_broken", PYTHONPATH=f"{folder}:{ROOT}")
    module.write_text("raise ImportError('half an upgrade')\n")
    (zygote,) = psutil.Process(cluster.children["broken"].process.pid).children()
    zygote.kill()
    await until(lambda: "half an upgrade" in cluster.children["broken"].logged())


async def test_a_host_that_can_start_nothing_is_passed_over(redis, redis_settings, tmp_path):
    """Fails if a host whose zygote does not come up answers as if the agent were to blame."""
    async with cluster_of(redis_settings) as cluster:
        await start_broken(cluster, tmp_path)
        with pytest.raises(NoHost, match=r"(?s)No host takes agent x: .*half an upgrade"):
            await cluster.engine.run(agent())
        await cluster.start("good")
        placed = [await cluster.engine.run(agent(f"x{n}")) for n in range(4)]
        assert {each.host for each in placed} == {"good"}


async def test_an_agent_that_is_rescued_goes_where_it_can_be_started(redis, redis_settings, tmp_path):
    """Fails if the news of a failed creation are taken for a crash of the agent: it would stay down."""
    ids = [f"x{n}" for n in range(4)]
    async with cluster_of(redis_settings, ttl_seconds=3.0) as cluster:
        await cluster.start("first")
        for each in ids:
            await cluster.engine.run(agent(each))
        await start_broken(cluster, tmp_path)
        await cluster.start("good")
        cluster.children["first"].kill()
        assert {(await cluster.where(each, not_on="first")).host for each in ids} == {"good"}


class Unable:
    """Processes of a host that can start none; what happened is told before whoever asked for it is."""

    def __init__(self):
        self.told = asyncio.Event()
        self.tell = None

    def subscribe(self, tell):
        self.tell = tell
        return lambda: None

    async def create(self, agent_id, entry, payload, **options):
        info = AgentProcessInfo(agent_id, "", 0, False, 0.0, ProcessStatus.CRASHED, fence=options["fence"])
        self.tell(ProcessEvent(EventKind.EXITED, info))
        await self.told.wait()
        raise ProcessError("the zygote does not come up")

    async def end(self, agent_id, timeout=None):
        return False

    def get(self, agent_id):
        return None

    def forget(self, agent_id):
        done = Future()
        done.set_result(False)
        return done


async def test_a_creation_that_fails_is_no_crash_whoever_hears_of_it_first(redis_settings, redis):
    """Fails if the host takes the news for a crash: the agent would stay down, though others can start it."""
    settings = HostSettings()
    async with cluster_of(redis_settings) as cluster:
        processes = Unable()
        metrics = Metrics()
        keeper = keeper_of(cluster.settings, metrics, at_least_every=1.0)
        host = Host("a", "a:1", cluster.engine.registry, processes, keeper, settings, metrics)
        watching = asyncio.create_task(host.watch())
        await until(lambda: processes.tell is not None)
        wanted = await cluster.engine.registry.want(agent())
        creating = asyncio.create_task(host.create(agent(), seen=wanted.fence))
        await until(lambda: "x" in host.copies)
        # The watch is through with all news when it waits again: then its caller is told.
        await until(host._events.empty)
        processes.told.set()
        with pytest.raises(ProcessError, match="the zygote does not come up"):
            await creating
        placed = await cluster.engine.registry.get("x")
        assert (placed.status, placed.host) == (AgentStatus.PLACING, "")
        watching.cancel()


async def test_agents_that_are_well_go_on_while_the_news_of_another_wait_for_redis(restartable_valkey, odd):
    """Fails if what agents say of their health waits behind what Redis must be told."""
    redis = RedisSettings(url=restartable_valkey.tcp_url, socket_timeout_seconds=30.0)
    async with hosts_of(redis, ttl_seconds=30.0, health_seconds=2.0) as cluster:
        (host,) = await cluster.start("a", app=odd, HOLDFAST_REDIS_SOCKET_TIMEOUT_SECONDS="30")
        async with Residents(cluster.settings) as residents:
            before = [await residents.start("Well", f"w{n}") for n in range(3)]
            restartable_valkey.freeze()
            os.kill(before[0].pid, signal.SIGKILL)
            # This is the outage: half as long again as a silent agent is given.
            await stays(lambda: "resident unresponsive" not in host.logged(), seconds=9.0)
            restartable_valkey.thaw()
            after = [await cluster.where(each.agent.agent_id) for each in before]
            assert [each.pid for each in after[1:]] == [each.pid for each in before[1:]]


async def test_one_that_never_says_how_it_is_is_started_again(redis, redis_settings, odd, tmp_path):
    """Fails if only those are missed whose first health() has ended."""
    async with cluster_of(redis_settings, health_seconds=0.3) as cluster:
        await cluster.start("a", app=odd)
        async with Residents(cluster.settings) as residents:
            placed = await residents.start("Mute", "m", str(tmp_path / "once"))
            await until(lambda: cluster.where("m"), lambda found: found.pid != placed.pid, seconds=60)


async def test_whoever_starts_what_another_stops_is_told_so(redis, redis_settings):
    async with cluster_of(redis_settings, placing_seconds=30.0) as cluster:
        # Wanted by somebody else who has not placed it yet: who asks now waits for that.
        await cluster.engine.registry.want(agent())
        asked, want = asyncio.Event(), cluster.engine.registry.want

        async def wanted(*arguments, **options):
            found = await want(*arguments, **options)
            asked.set()
            return found

        cluster.engine.registry.want = wanted
        starting = asyncio.create_task(cluster.engine.run(agent()))
        await asked.wait()
        assert (await cluster.engine.registry.get("x")).status is AgentStatus.PLACING
        assert not starting.done()
        await cluster.engine.registry.unwant("x")
        with pytest.raises(Conflict, match="Agent x was stopped before it ran"):
            await starting


async def test_a_resident_that_there_is_not_is_said_without_a_traceback(redis, redis_settings, odd):
    async with cluster_of(redis_settings) as cluster:
        await cluster.start("a", app=odd)
        async with Residents(cluster.settings) as residents:
            with pytest.raises(InputError, match="has no resident 'Nope'; its residents: Mute, Well") as told:
                await residents.start("Nope", "n", needs=Needs())
            assert "Traceback" not in str(told.value)
