"""Group P with whole processes: whatever happens to schedulers at random, in whatever order.

The sets are disjoint, no schedule is lost, none is begun twice under one fence, and in the end every permit is free.
"""

from __future__ import annotations

import asyncio
import random
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.schedule import family
from tests.support.redis.valkey_process import free_port
from tests.support.runs.system import System
from tests.support.schedules.manual_scheduler import Board
from tests.support.schedules.schedulers import SchedulerChild
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

AGENTS = str(Path(__file__).with_name("manyschedules.py")) + ":app"
NAMES = {*(f"tick-{n}" for n in range(12)), "thread", "flaky", "slow", "beside"}
PERMITS = 8
PODS = 3
STEPS = ("kill", "kill", "freeze", "thaw", "roll", "pause", "resume", "trigger", "rest")


class History:
    """Schedulers to which things happen as the dice say; ``told`` is what has happened."""

    def __init__(self, system: System, ledger, seed: int) -> None:
        self.system, self.ledger, self.dice = system, ledger, random.Random(seed)
        self.board = Board(system.queue.redis)
        self.pods: dict[str, SchedulerChild] = {}
        self.ports: dict[str, int] = {}
        self.frozen: set[str] = set()
        self.gone: list[SchedulerChild] = []
        self.told: list[str] = []

    async def start(self) -> None:
        name = f"pod-{len(self.ports)}"
        self.ports[name] = free_port()
        child = self.pods[name] = SchedulerChild(
            self.system.settings,
            AGENTS,
            name,
            CHAOS_LEDGER=str(self.ledger.path),
            METRICS_PORT=str(self.ports[name]),
            HOLDFAST_REDIS_AGENT_MAX_CONCURRENT_AGENTS=str(PERMITS),
        )

        async def is_member() -> int:
            assert child.process.poll() is None, child.logged()
            return await self.board.redis.exists(f"member:scheduler:{name}")

        await until(is_member, what=f"scheduler {name} to announce itself")

    async def step(self) -> None:
        what = self.dice.choice(STEPS)
        self.told.append(what)
        await getattr(self, what)()
        await self.goes_on(6)
        await self.check()

    # -- what happens to schedulers

    def _some_pod(self) -> str:
        return self.dice.choice(sorted(self.pods))

    async def kill(self) -> None:
        name = self._some_pod()
        child = self.pods.pop(name)
        self.frozen.discard(name)
        child.kill()
        self.gone.append(child)
        await self.start()

    async def freeze(self) -> None:
        """One of them at most, for some steps: its leases end, and others have its schedules meanwhile."""
        if not self.frozen:
            name = self._some_pod()
            self.pods[name].freeze()
            self.frozen.add(name)

    async def thaw(self) -> None:
        for name in self.frozen:
            self.pods[name].thaw()
        self.frozen.clear()

    async def roll(self) -> None:
        name = self.dice.choice(sorted(self.pods.keys() - self.frozen))
        child = self.pods.pop(name)
        self.gone.append(child)
        await self.start()
        child.terminate()
        assert await child.exited(30) == 0, child.logged()

    async def rest(self) -> None:
        await self.goes_on(20)

    # -- what operators do; tick-0 to tick-5 are never paused, so that there is something to wait for

    def _some_names(self) -> list[str]:
        names = sorted(NAMES - {f"tick-{n}" for n in range(6)})
        return self.dice.sample(names, 3)

    async def pause(self) -> None:
        await self.board.registry.pause(self._some_names(), "by the dice")

    async def resume(self) -> None:
        await self.board.registry.resume(sorted(NAMES))

    async def trigger(self) -> None:
        await self.board.registry.trigger(self._some_names())

    # -- what must be true

    async def goes_on(self, turns: int, names: set[str] | None = None) -> None:
        """Wait until so many more turns have begun, or so many of each that is named."""

        def begun() -> Counter[str]:
            return Counter(line.run_id.partition("@")[0] for line in self.ledger.lines("begin"))

        def is_enough(more: Counter[str]) -> bool:
            return all(more[name] >= turns for name in names) if names else more.total() >= turns

        before = begun()
        await until(
            lambda: begun() - before, is_enough, what=f"{turns} turns of {names or 'any'}", seconds=40
        )

    async def check(self) -> None:
        keys = self.board.keys
        async with self.board.redis.pipeline(transaction=True) as pipe:  # else they move between two looks
            for key in (keys.waiting, keys.working, keys.leases):
                pipe.zrange(key, 0, -1)
            pipe.hkeys(keys.definitions)
            waiting, working, leased, defined = (
                {one.decode() for one in got} for got in await pipe.execute()
            )
        assert not waiting & working, "the sets overlap"
        assert working == leased, "who works has a lease"
        assert {name for name in defined if family(name) == name} == NAMES
        assert waiting | working <= defined | leased
        lost = [
            one.name
            for one in await self.board.entries.get_many(sorted(defined))
            if one.state is ScheduleState.MISSING
        ]
        assert not lost, f"{lost} are nowhere"
        self.ledger.check_nothing_ran_twice_under_one_fence()

    async def come_to_rest(self) -> None:
        """Everything goes on, then is paused; nothing is left that runs, and every permit is free."""
        await self.thaw()
        await self.resume()
        await self.goes_on(2, NAMES)
        await self.board.registry.pause(sorted(NAMES), "the end")
        for left in (self.board.working, self.board.waiting):
            await until(left, lambda found: not found, seconds=40)
        for name, port in self.ports.items():
            if name in self.pods:
                await self._all_permits_free(port)
        await self.check()
        ended = Counter(line.run_id.partition("@")[0] for line in self.ledger.lines("end"))
        for name in NAMES - {"beside"}:  # its turns are counted when they are placed
            assert (await self.board.entry(name)).runs <= ended[name], f"{name} has ends that never were"

    async def _all_permits_free(self, port: int) -> None:
        await until(
            lambda: asyncio.to_thread(_free_permits, port), lambda found: found == PERMITS, tolerate=OSError
        )

    def close(self) -> None:
        print(f"--- {self.told}", file=sys.stderr)
        for child in [*self.pods.values(), *self.gone]:
            print(f"--- {child.close()[-3000:]}", file=sys.stderr)


def _free_permits(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith("holdfast_schedule_permits_free ")]
    return float(line.split()[1])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 6), *(pytest.param(seed, 30, marks=pytest.mark.long) for seed in range(2, 8))],
)
async def test_p5_a_random_history_loses_nothing_doubles_nothing_and_leaks_nothing(
    system, ledger, seed, steps
):
    history = History(system, ledger, seed)
    try:
        for _ in range(PODS):
            await history.start()
        await history.goes_on(1, NAMES)
        for _ in range(steps):
            await history.step()
        await history.come_to_rest()
    finally:
        history.close()
