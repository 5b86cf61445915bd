"""Redis goes away under schedulers that have hundreds of turns a second, and comes back.

A breaker opens, nothing is lost, nothing runs twice under one fence, and each schedule makes up for all that it
has missed with one turn, never more of them at once than there are permits.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from holdfast.config import RedisSettings
from holdfast.redis.client import connect
from tests.support.runs.system import System
from tests.support.schedules.manual_scheduler import Board
from tests.support.schedules.schedulers import SchedulerChild
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

AGENTS = str(Path(__file__).with_name("outage.py")) + ":app"
EVERY = 1.0
PERMITS = 40
COUNT = 200
PODS = ("a", "b")
_BREAKER = "HOLDFAST_REDIS_SCHEDULER_CIRCUIT_BREAKER"


class Outage:
    """Two schedulers on one Redis, what they did, and when Redis was away."""

    def __init__(self, system: System, ledger, server, count: int) -> None:
        self.system, self.ledger, self.server, self.count = system, ledger, server, count
        self.pods: list[SchedulerChild] = []
        self.left = self.back = 0.0

    def start(self) -> None:
        environ = {
            "CHAOS_LEDGER": str(self.ledger.path),
            "CHAOS_COUNT": str(self.count),
            "CHAOS_EVERY": str(EVERY),
            "LOG_LEVEL": "INFO",
            "HOLDFAST_REDIS_AGENT_MAX_CONCURRENT_AGENTS": str(PERMITS),
            "HOLDFAST_REDIS_SOCKET_TIMEOUT_SECONDS": "1",
            "HOLDFAST_REDIS_CONNECT_TIMEOUT_SECONDS": "1",
            "HOLDFAST_REDIS_SCHEDULER_JITTER_INITIAL_REGISTRATION_SECONDS": str(int(EVERY)),
            f"{_BREAKER}_FAILURE_THRESHOLD": "3",
            f"{_BREAKER}_COOLDOWN_MS": "1000",
            f"{_BREAKER}_HALF_OPEN_DURATION_MS": "2000",
        }
        self.pods = [SchedulerChild(self.system.settings, AGENTS, name, **environ) for name in PODS]

    async def goes_on(self, turns: int, since: float = 0.0) -> None:
        """Wait until every schedule has begun so many turns that were due since then."""

        def enough() -> bool:
            assert all(pod.process.poll() is None for pod in self.pods), "a scheduler has died"
            begun = {line.run_id for line in self.ledger.lines("begin")}
            due = Counter(_name(turn) for turn in begun if _due(turn) >= since)
            return len(due) == self.count and min(due.values()) >= turns

        await until(enough, seconds=60)

    async def happens(self, fault: str, seconds: float) -> None:
        """Redis is away for so long, and longer if a breaker needs longer to notice."""
        self.left = time.time()
        self.server.freeze() if fault == "frozen" else self.server.kill()
        await self.said("Redis unavailable")
        await asyncio.sleep(max(self.left + seconds - time.time(), 0.0))
        self.back = time.time()
        self.server.thaw() if fault == "frozen" else self.server.start()

    async def said(self, text: str) -> None:
        await until(lambda: all(text in pod.logged() for pod in self.pods))

    async def stop(self) -> None:
        for pod in self.pods:
            pod.terminate()
        assert [await pod.exited() for pod in self.pods] == [0] * len(self.pods)

    def close(self) -> None:
        for pod in self.pods:
            print(f"--- {pod.close()[-5000:]}", file=sys.stderr)

    # -- what must be true afterwards

    def check_catching_up(self) -> None:
        """One turn for all that were missed; what was on when Redis left may be on again under its name."""
        begun_before = {line.run_id for line in self.ledger.lines("begin") if line.at < self.left}
        made_up = defaultdict(set)
        for line in self.ledger.lines("begin"):
            if line.at >= self.back and _due(line.run_id) < self.back and line.run_id not in begun_before:
                made_up[_name(line.run_id)].add(line.run_id)
        assert made_up, "nothing was missed: was Redis away at all?"
        assert not {name: turns for name, turns in made_up.items() if len(turns) > 1}, "a herd"

    def check_cadence(self) -> None:
        """Two turns of a schedule are never closer than its interval, whatever happened between them."""
        turns = defaultdict(set)
        for line in self.ledger.lines("begin"):
            turns[_name(line.run_id)].add(_due(line.run_id))
        for name, due in turns.items():
            times = sorted(due)
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert min(gaps) > 0.99 * EVERY, f"{name}: {times}"

    def check_permits(self) -> None:
        """As many at once as there are permits, also in the rush after the return."""
        going: Counter[int] = Counter()
        for line in self.ledger.lines():
            going[line.pid] += 1 if line.what == "begin" else -1
            assert going[line.pid] <= PERMITS
        assert not any(going.values()), "every body has ended"

    async def check_sets(self) -> None:
        redis = connect(self.system.settings.redis)
        board = Board(redis)
        try:
            assert await board.working() == {}
            assert set(await board.waiting()) == {f"beat-{n}" for n in range(self.count)}
        finally:
            await redis.aclose()


def _name(turn: str) -> str:
    return turn.partition("@")[0]


def _due(turn: str) -> float:
    return float(turn.partition("@")[2])


@pytest.mark.timeout(200)
@pytest.mark.parametrize("fault", ["frozen", "killed"])
@pytest.mark.parametrize(
    ("seconds", "count"),
    [
        pytest.param(4.0, COUNT, id="4 s"),
        pytest.param(30.0, 2 * COUNT, id="30 s", marks=pytest.mark.long),
    ],
)
async def test_redis_is_away_under_load(restartable_valkey, ledger, seconds, count, fault):
    settings = RedisSettings(
        url=restartable_valkey.tcp_url, socket_timeout_seconds=1.0, connect_timeout_seconds=1.0
    )
    async with System(settings, ttl=2.0) as system:
        outage = Outage(system, ledger, restartable_valkey, count)
        try:
            outage.start()
            await outage.goes_on(2)
            await outage.happens(fault, seconds)
            await outage.goes_on(3, since=outage.back)
            await outage.said("Redis available again")
            await outage.stop()
            ledger.check_nothing_ran_twice_under_one_fence()
            outage.check_catching_up()
            outage.check_cadence()
            outage.check_permits()
            await outage.check_sets()
        finally:
            outage.close()
