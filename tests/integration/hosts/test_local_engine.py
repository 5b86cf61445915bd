"""The local engine: this process is its own only host, without gRPC, on the table that all hosts share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from holdfast.config import (
    DatabaseSettings,
    HostSettings,
    LeaseSettings,
    RedisSettings,
    Settings,
    WorkerSettings,
)
from holdfast.errors import ConfigError, HostUnavailable, InputError, NoHost, ProcessFailed, RedisUnavailable
from holdfast.hosts.agent import AgentStatus, Needs
from holdfast.hosts.factory import open_engine
from holdfast.redis.client import connect
from holdfast.redis.locate import embedded_server
from holdfast.services.residents import Residents
from tests.support.hosts.host_processes import agent, cluster_of, same_copy
from tests.support.paths import ROOT
from tests.support.processes import forked
from tests.support.waiting import stays, until

APP = str(Path(__file__).with_name("residents.py")) + ":app"


@pytest.fixture(autouse=True)
def _empty(redis):
    """Every test has an empty Redis."""


def settings_of(redis_settings, tmp_path=None, **hosts) -> Settings:
    return Settings(
        redis=redis_settings,
        hosts=HostSettings(
            **{"engine": "local", "allowed": ("tests.support.hosts",), "ttl_seconds": 15.0, **hosts}
        ),
        worker=WorkerSettings(heartbeat_seconds=1.0),
        lease=LeaseSettings(ttl_seconds=15.0),
        database=DatabaseSettings(path=f"{tmp_path}/state.sqlite") if tmp_path else DatabaseSettings(),
    )


@contextlib.asynccontextmanager
async def local(redis, redis_settings, **hosts):
    engine = open_engine(settings_of(redis_settings, **hosts), redis)
    try:
        yield engine
    finally:
        await engine.close()


async def gone(pid: int) -> None:
    await until(lambda: not psutil.pid_exists(pid))


async def test_a_program_that_blocks_its_event_loop_keeps_its_agents(redis, redis_settings):
    """Renewed on the event loop, the lease ends while the program computes: its agent ends and is forgotten."""
    async with local(redis, redis_settings, ttl_seconds=6.0) as engine:
        placed = await engine.run(agent())
        async with local(redis, redis_settings, ttl_seconds=6.0) as other:
            await other.hosts()  # it forgets what other programs left behind
            time.sleep(9.0)
            await stays(lambda: psutil.pid_exists(placed.pid), seconds=2.0)
        known = await engine.registry.get("x")
        assert (known.pid, known.fence, known.status) == (placed.pid, placed.fence, AgentStatus.RUNNING)


async def test_an_agent_runs_is_found_and_stops(redis, redis_settings):
    async with local(redis, redis_settings) as engine:
        placed = await engine.run(agent())
        assert (placed.status, placed.fence, placed.agent.bound) == (AgentStatus.RUNNING, 1, True)
        assert psutil.Process(placed.pid).parent().parent().pid == os.getpid()
        assert await engine.location("x") == placed.address == (await engine.hosts())[0].address
        assert same_copy(await engine.run(agent()), placed), "again is the same agent"
        assert await engine.stop("x")
        assert await engine.location("x") is None
        await gone(placed.pid)
        assert not await engine.stop("x")


async def test_what_goes_wrong_is_said_as_by_any_host(redis, redis_settings):
    async with local(redis, redis_settings, max_processes=1) as engine:
        with pytest.raises(ProcessFailed, match="does not like its spec"):
            await engine.run(agent(fails=True))
        with pytest.raises(InputError, match=r"needs\.memory_mb is 1e-09, less than a byte"):
            await engine.run(msgspec.structs.replace(agent("tiny"), needs=Needs(memory_mb=1e-9)))
        with pytest.raises(InputError, match="no entry 'nothing'"):
            await engine.run(msgspec.structs.replace(agent("y"), entry="nothing"))
        with pytest.raises(InputError, match="outside of the prefixes"):
            await engine.run(agent("z", class_name="os.system"))
        await engine.run(agent("first"))
        with pytest.raises(NoHost, match="it is full"):
            await engine.run(agent("second"))
        assert [each.agent.agent_id async for each in engine.registry.all()] == ["first"]


async def test_one_that_takes_too_long_is_ended_and_told(redis, redis_settings):
    async with local(redis, redis_settings, ready_seconds=0.5, grpc_timeout_seconds=0.05) as engine:
        await engine.hosts()
        await asyncio.wrap_future(engine._calls._host.processes.warm_up())  # its start is not the agent's
        with pytest.raises(ProcessFailed, match="not ready"):
            await engine.run(agent("slow", sleeps=60))
        assert await engine.registry.get("slow") is None or not (await engine.registry.get("slow")).wanted


async def test_agents_end_with_their_engine_and_the_next_use_begins_anew(redis, redis_settings):
    async with local(redis, redis_settings) as engine:
        first = [await engine.run(agent(f"r{n}")) for n in range(3)]
        await engine.close()
        for each in first:
            assert not psutil.pid_exists(each.pid)
        assert [each async for each in engine.registry.all()] == []
        again = await engine.run(agent("r0"))
        assert (again.status, again.fence) == (AgentStatus.RUNNING, first[0].fence + 1)


async def test_one_that_dies_is_started_again(redis, redis_settings):
    async with local(redis, redis_settings) as engine:
        first = await engine.run(agent())
        os.kill(first.pid, signal.SIGKILL)
        again = await until(
            lambda: engine.registry.get("x"),
            lambda again: again.pid != first.pid and again.status == "running",
        )
        assert (again.host, again.fence, again.restarts) == (first.host, first.fence, 1)


async def test_a_move_on_one_machine_is_a_new_start(redis, redis_settings):
    async with local(redis, redis_settings) as engine:
        first = await engine.run(agent())
        moved = await engine.move("x")
        assert (moved.host, moved.fence > first.fence, moved.pid != first.pid) == (first.host, True, True)


async def test_two_engines_of_one_process_have_one_copy_and_can_stop_each_others(redis, redis_settings):
    async with local(redis, redis_settings) as one, local(redis, redis_settings) as other:
        placed = await one.run(agent())
        assert same_copy(await other.run(agent()), placed)
        with pytest.raises(HostUnavailable, match="not in this process"):
            await other.move("x")
        assert await other.stop("x")
        await gone(placed.pid)  # with its own engine's next renewal


PROGRAM = """
import asyncio, sys
from tests.support.hosts.host_processes import agent
from holdfast.config import load
from holdfast.hosts.factory import open_engine
from holdfast.redis.client import connect
async def main():
    settings = load().settings
    engine = open_engine(settings, connect(settings.redis))
    print((await engine.run(agent())).pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def outside(redis_settings) -> dict[str, str]:
    """The environment of a program with a local engine."""
    here = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    return {**here, "REDIS_URL": redis_settings.url, "HOLDFAST_HOSTS_ENGINE": "local"}


def program(redis_settings, **hosts) -> subprocess.Popen[bytes]:
    environ = {
        **outside(redis_settings),
        "HOLDFAST_HOSTS_ALLOWED": "tests.support.hosts",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **{f"HOLDFAST_HOSTS_{key.upper()}": str(value) for key, value in hosts.items()},
    }
    return forked.Popen([sys.executable, "-c", PROGRAM], env=environ, stdout=subprocess.PIPE)


async def killed_program(redis_settings, **hosts) -> int:
    """Run a program that has agent x, kill it, and return what x's process was."""
    with program(redis_settings, **hosts) as child:
        try:
            pid = int(await asyncio.to_thread(child.stdout.readline))
        finally:
            child.kill()
    return pid


async def test_a_program_that_was_killed_has_its_agents_at_once_when_it_is_started_again(
    redis, redis_settings
):
    """Fails without the look at who has it: the lease of the dead program would last for a minute."""
    pid = await killed_program(redis_settings, ttl_seconds=60)
    async with local(redis, redis_settings, ttl_seconds=60.0) as engine:
        async with asyncio.timeout(40):
            placed = await engine.run(agent())
        assert not psutil.pid_exists(pid), "the dead program's agent ended first"
        assert (placed.fence, psutil.pid_exists(placed.pid)) == (2, True)


async def test_what_a_killed_program_left_behind_is_forgotten_by_hosts_and_not_started(redis, redis_settings):
    """Fails if the rescue takes it for an agent of a dead host: it would run on a."""
    async with cluster_of(redis_settings, "a", ttl_seconds=3.0) as cluster:
        await killed_program(redis_settings, ttl_seconds=60)
        assert (await cluster.engine.registry.get("x")).wanted
        await redis.zadd(cluster.engine.registry.keys.leases, {"x": 1})  # its lease is over
        left = await until(lambda: cluster.engine.registry.get("x"), lambda left: not left.wanted)
        assert (left.status, left.host) == (AgentStatus.STOPPED, "")
        assert [host.agents for host in await cluster.engine.hosts()] == [0]


async def test_what_a_killed_program_left_behind_is_forgotten_by_another_local_engine(redis, redis_settings):
    await killed_program(redis_settings, ttl_seconds=1)
    async with local(redis, redis_settings, ttl_seconds=3.0) as engine:
        await engine.run(agent("mine"))
        await until(lambda: engine.registry.get("x"), lambda found: not found.wanted)
        assert (await engine.registry.get("mine")).status is AgentStatus.RUNNING


async def test_a_dead_hosts_agent_is_not_taken_by_a_local_engine(redis, redis_settings):
    """Fails if it looks for more than its own kind: it would place the agent here."""
    ttl = 4.0
    async with cluster_of(redis_settings, "a", ttl_seconds=ttl) as cluster:
        await cluster.engine.run(agent("theirs"))
        cluster.children["a"].kill()
        async with local(redis, redis_settings, ttl_seconds=ttl) as engine:
            await killed_program(redis_settings, ttl_seconds=ttl)
            await engine.run(agent("mine"))
            # It has looked after that host's lease was over, which ended before the lease of the program's agent.
            await until(lambda: engine.registry.get("x"), lambda found: not found.wanted)
            theirs = await engine.registry.get("theirs")
            assert (theirs.wanted, theirs.host) == (True, "a")
        await cluster.start("b")
        assert (await cluster.where("theirs", not_on="a")).host == "b"


async def test_a_local_engines_agent_and_a_real_hosts_live_side_by_side(redis, redis_settings):
    async with cluster_of(redis_settings, "a") as cluster, local(redis, redis_settings) as engine:
        there = await cluster.engine.run(agent("there"))
        here = await engine.run(agent("here"))
        assert await engine.run(agent("there")) == there, "an id lives once"
        assert await cluster.engine.run(agent("here")) == here
        with pytest.raises(HostUnavailable, match="inside another program"):
            await cluster.engine.move("here")
        assert [host.name for host in await cluster.engine.hosts()] == ["a"]
        await engine.close()
        assert (await cluster.where("there")).pid == there.pid


async def test_residents_work_unchanged(redis_settings, tmp_path):
    settings = settings_of(redis_settings, tmp_path)
    async with Residents(settings, app=APP) as residents:
        await residents.start("Clerk", "clerk/1", "good morning")
        first = await residents.ask("clerk/1", {"name": "Ada"})
        assert (first["said"], first["seen"]) == ("good morning Ada", 1)
        await residents.send("clerk/1", {"name": "Bob"})
        assert (await residents.ask("clerk/1", {"name": "Cid"}))["seen"] == 3
        assert [each.agent.agent_id for each in await residents.list()] == ["clerk/1"]
        assert await residents.stop("clerk/1")
        assert await residents.list() == []
        await residents.start("Clerk", "clerk/1")
        assert (await residents.ask("clerk/1", {"name": "Dan"}))["seen"] == 4
        pid = first["pid"]
    assert not psutil.pid_exists(pid)


async def test_residents_without_an_app_are_told_to_name_it(redis_settings):
    async with Residents(settings_of(redis_settings)) as residents:
        with pytest.raises(ConfigError, match=r"Residents\(settings, app="):
            await residents.start("Clerk", "c")


def test_without_any_redis_it_is_said_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        RedisUnavailable, match=r"start `holdfast dev APP` there, or set redis.url \(REDIS_URL\)"
    ):
        Residents(settings_of(RedisSettings()), app=APP)
    with pytest.raises(ConfigError, match=r"no Redis is configured: set redis.url \(REDIS_URL\)"):
        connect(RedisSettings())


async def test_residents_find_the_embedded_server_of_their_folder(short_dir, monkeypatch):
    monkeypatch.chdir(short_dir)
    async with (
        embedded_server(RedisSettings()),
        Residents(settings_of(RedisSettings(), short_dir), app=APP) as residents,
    ):
        await residents.start("Clerk", "c")
        assert (await residents.ask("c", {"name": "Ada"}))["said"] == "hello Ada"


WITHOUT_GRPC = """
import asyncio, sys
class NoGrpc:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"grpc", "google", "grpc_health", "grpc_reflection", "psutil"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoGrpc())
from holdfast.config import load
from holdfast.services.residents import Residents
async def main():
    async with Residents(load().settings, app=sys.argv[1]) as residents:
        await residents.start("Clerk", "c")
        print((await residents.ask("c", {"name": "Ada"}))["said"])
asyncio.run(main())
"""


async def test_it_needs_no_grpc(redis_settings, tmp_path):
    environ = {**outside(redis_settings), "HOLDFAST_DATABASE_PATH": f"{tmp_path}/state.sqlite"}
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WITHOUT_GRPC, APP],
        env=environ,
        capture_output=True,
        timeout=100,
        check=False,
        text=True,
    )
    assert ran.stdout == "hello Ada\n", ran.stderr


async def test_the_guide_runs(redis_settings, tmp_path):
    guide = (Path(__file__).parents[3] / "docs/guides/hosts.md").read_text()
    office, program = [
        block
        for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
        if "app = " in block or "main()" in block
    ]
    (tmp_path / "office.py").write_text(office)
    (tmp_path / "program.py").write_text(program)
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**outside(redis_settings), "HOLDFAST_DATABASE_PATH": "state.sqlite"},
        capture_output=True,
        timeout=100,
        check=False,
        text=True,
    )
    assert ran.stdout == "{'said': 'good morning Ada', 'seen': 1}\n", ran.stderr
