"""Whatever happens to hosts, zygotes and Redis at random, while agents come, go and move, and messages are sent.

In the end every agent that is wanted runs exactly once and no other does, every message was received, in its order
and never by two at a time, the table says what is true, and no process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import RedisSettings
from holdfast.errors import HoldfastError
from holdfast.hosts.agent import AgentStatus
from holdfast.redis.client import TROUBLE
from holdfast.services.residents import Residents
from tests.support.hosts.faulty_agents import Hosts
from tests.support.hosts.host_processes import HostChild, agent
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

SCRIBES = ("scribe-0", "scribe-1", "scribe-2")
AGENTS = tuple(f"agent-{n}" for n in range(6))
HOSTS = 3
STEPS = ("kill", "freeze", "thaw", "roll", "zygote", "pause", "restart", "start", "stop", "move")
# What an engine is told while hosts die; whatever it wanted then is wanted again at the end.
CHAOS = (HoldfastError, TimeoutError, *TROUBLE)


class Correspondence:
    """What was sent to one resident, and what it wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sent: list[int] = []
        self.count = 0

    def lines(self) -> list[tuple[str, int, int]]:
        # Without a line that is being written: one that crosses a page of memory appears in two parts.
        text = self.path.read_text().rpartition("\n")[0] if self.path.exists() else ""
        rows = [line.split() for line in text.splitlines()]
        return [(word, int(number), int(pid)) for word, number, pid in rows]

    def received(self) -> set[int]:
        return {number for word, number, _ in self.lines() if word == "done"}

    def check(self) -> None:
        lines = self.lines()
        for (word, number, pid), before in zip(lines[1:], lines, strict=False):
            if word == "done":
                assert before == ("begin", number, pid), f"{before} beside the receiving of {number} by {pid}"
        firsts = list(dict.fromkeys(number for word, number, _ in lines if word == "done"))
        assert firsts == sorted(firsts), "out of order"


class History:
    """A cluster to which things happen as the dice say; ``told`` is what has happened."""

    def __init__(
        self, cluster: Hosts, residents: Residents, valkey: ValkeyProcess, seed: int, path: Path
    ) -> None:
        self.cluster, self.residents, self.valkey = cluster, residents, valkey
        self.dice = random.Random(seed)
        self.seed = seed
        self.letters = {name: Correspondence(path / name) for name in SCRIBES}
        self.wanted: set[str] = set()
        self.frozen: set[str] = set()
        self.gone: list[HostChild] = []
        self.fences: dict[str, int] = {}
        self.told: list[str] = []
        self.count = 0

    async def begin(self) -> None:
        await asyncio.gather(*(self.host() for _ in range(HOSTS)))
        for name, letters in self.letters.items():
            await _answered(functools.partial(self.residents.start, "Scribe", name, str(letters.path)))
        for name in AGENTS[:4]:
            await _answered(functools.partial(self.cluster.engine.run, agent(name)))
            self.wanted.add(name)

    async def host(self) -> None:
        self.count += 1
        await self.cluster.start(f"host-{self.count}")

    async def step(self) -> None:
        what = self.dice.choice(STEPS)
        self.told.append(what)
        await getattr(self, what)()
        await self.goes_on()
        await self.check()

    # -- what happens to hosts and Redis

    def _some_host(self) -> str:
        return self.dice.choice(sorted(self.cluster.children.keys() - self.frozen))

    async def kill(self) -> None:
        child = self.cluster.children.pop(self._some_host())
        child.kill()
        self.gone.append(child)
        await self.host()

    async def freeze(self) -> None:
        """One of them at most, for some steps: others have its agents meanwhile."""
        if not self.frozen:
            name = self._some_host()
            self.cluster.children[name].freeze()
            self.frozen.add(name)

    async def thaw(self) -> None:
        for name in self.frozen:
            self.cluster.children[name].thaw()
        self.frozen.clear()

    async def roll(self) -> None:
        child = self.cluster.children.pop(self._some_host())
        self.gone.append(child)
        await self.host()
        child.terminate()
        assert await child.exited(90) == 0, child.logged()

    async def zygote(self) -> None:
        with contextlib.suppress(ValueError):  # there is none for a moment
            os.kill(self.cluster.zygote(self._some_host()), signal.SIGKILL)

    async def pause(self) -> None:
        self.valkey.freeze()
        await asyncio.sleep(self.dice.choice((0.5, 1.5, 3.0)))
        self.valkey.thaw()

    async def restart(self) -> None:
        self.valkey.restart()

    # -- what users do

    async def start(self) -> None:
        name = self.dice.choice(AGENTS)
        self.wanted.add(name)
        with contextlib.suppress(*CHAOS):
            await self.cluster.engine.run(agent(name))

    async def stop(self) -> None:
        name = self.dice.choice(AGENTS)
        self.wanted.discard(name)
        with contextlib.suppress(*CHAOS):
            await self.cluster.engine.stop(name)

    async def move(self) -> None:
        with contextlib.suppress(*CHAOS):
            await self.cluster.engine.move(self.dice.choice([*sorted(self.wanted), *SCRIBES]))

    async def write(self) -> None:
        """Send numbered messages to all, one after the other, until cancelled."""
        while True:
            for name, letters in self.letters.items():
                letters.count += 1
                with contextlib.suppress(*CHAOS):
                    await self.residents.send(name, {"n": letters.count, "seconds": 0.01})
                    letters.sent.append(letters.count)
            await asyncio.sleep(0.1)

    # -- what must be true

    async def goes_on(self) -> None:
        """Wait until every resident has received something that was sent from now on."""
        for letters in self.letters.values():
            mark = letters.count
            await until(
                lambda letters=letters, mark=mark: max(letters.received(), default=0) > mark, seconds=90
            )

    async def check(self) -> None:
        registry = self.cluster.engine.registry
        keys = registry.keys
        hosts = {child.name for child in [*self.cluster.children.values(), *self.gone]}
        names = [*AGENTS, *SCRIBES]

        async def look() -> list[Any]:
            async with self.cluster.redis.pipeline(
                transaction=True
            ) as pipe:  # else they move between two looks
                for name in names:
                    pipe.hgetall(keys.record_prefix + name)
                    pipe.get(keys.location_prefix + name)
                for host in sorted(hosts):
                    pipe.smembers(keys.host_prefix + host)
                return await pipe.execute()

        found = await _answered(look)
        sets = dict(zip(sorted(hosts), found[2 * len(names) :], strict=True))
        for name, record, location in zip(names, found[::2], found[1::2], strict=False):
            on = [host for host, ids in sets.items() if name.encode() in ids]
            assert len(on) <= 1, f"{name} is on {on}"
            fence = int(record.get(b"fence", 0))
            assert fence >= self.fences.get(name, 0), f"the fence of {name} fell"
            self.fences[name] = fence
            if location is not None:
                assert (record[b"status"], record[b"address"]) == (b"running", location)
                assert on == [record[b"owner"].decode()]
        for letters in self.letters.values():
            letters.check()

    async def come_to_rest(self) -> None:
        await self.thaw()
        engine = self.cluster.engine
        for name in AGENTS:
            run, stop = functools.partial(engine.run, agent(name)), functools.partial(engine.stop, name)
            await _answered(run if name in self.wanted else stop)
        for name, letters in self.letters.items():
            await until(lambda letters=letters: set(letters.sent) <= letters.received(), seconds=120)
            assert set(letters.sent) <= letters.received(), name
        await until(self._each_runs_once, seconds=120)
        await self.check()
        await self._the_table_is_true()

    def _each_runs_once(self) -> bool:
        counts = {name: len(self.cluster.copies(name)) for name in (*AGENTS, *SCRIBES)}
        return counts == {name: int(name in self.wanted or name in SCRIBES) for name in counts}

    async def _the_table_is_true(self) -> None:
        registry = self.cluster.engine.registry
        listed = {each.agent.agent_id: each async for each in registry.all()}
        assert listed.keys() == self.wanted | set(SCRIBES)
        for name in listed:
            placed = await self.cluster.where(name, seconds=60)
            assert self.cluster.copies(name) == [placed.pid]
            assert await registry.location(name) == self.cluster.children[placed.host].address
            assert name in await registry.on_host(placed.host)
        for name in set(AGENTS) - self.wanted:
            assert (await registry.get(name)) is None or (
                await registry.get(name)
            ).status is AgentStatus.STOPPED
            assert await registry.location(name) is None

    async def end(self) -> None:
        """All hosts leave; nothing of them is left."""
        children = list(self.cluster.children.values())
        for child in children:
            child.terminate()
            child.terminate()
        for child in children:
            assert await child.exited(90) == 0, child.logged()
        await until(lambda: not self.cluster.processes())

    def close(self) -> None:
        print(f"--- seed {self.seed}: {self.told}", file=sys.stderr)
        for child in self.gone:
            print(f"--- {child.name}\n{child.close()[-3000:]}", file=sys.stderr)


async def _answered(call: Callable[[], Any]) -> Any:
    """Ask until there is an answer: on a busy machine one may take longer than these short timeouts allow."""
    return await until(call, lambda _: True, seconds=120, tolerate=CHAOS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 3), *(pytest.param(seed, 25, marks=pytest.mark.long) for seed in range(2, 8))],
)
async def test_a_random_history_of_hosts_loses_nothing_and_doubles_nothing(
    start_valkey, tmp_path, seed, steps
):
    valkey = start_valkey()
    redis = RedisSettings(url=valkey.tcp_url, socket_timeout_seconds=1.0, connect_timeout_seconds=1.0)
    environ = {
        "HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite"),
        "HOLDFAST_LEASE_TTL_SECONDS": "2",
        "MAX_ATTEMPTS": "100",
    }
    cluster = Hosts(
        redis,
        environ,
        heartbeat=1.0,
        ttl_seconds=2.0,
        placing_seconds=3.0,
        ready_seconds=20.0,
        stop_seconds=5.0,
        grpc_timeout_seconds=2.0,
        max_restarts=100,
        health_seconds=0.0,
    )
    try:
        async with Residents(cluster.settings) as residents:
            history = History(cluster, residents, valkey, seed, tmp_path)
            try:
                await history.begin()
                writing = asyncio.create_task(history.write())
                for _ in range(steps):
                    await history.step()
                writing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await writing
                await history.come_to_rest()
                await history.end()
            finally:
                history.close()
    finally:
        await cluster.close()
