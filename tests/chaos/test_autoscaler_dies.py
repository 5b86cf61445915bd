"""The autoscaler and its workers are killed at random: what they had goes on with the next ones."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from holdfast.runs.run import Status, Submission
from tests.support.cli.dev_command import Command, gone
from tests.support.runs.system import System
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

AGENTS = str(Path(__file__).parent / "agents.py") + ":app"


class Autoscaling(Command):
    """``holdfast worker --autoscale``, and the workers that it has."""

    def __init__(self, folder: Path, url: str, ledger: Path) -> None:
        super().__init__(
            *(folder, "worker", "--app", AGENTS, "--autoscale", "1..3"),
            REDIS_URL=url,
            CHAOS_LEDGER=str(ledger),
            HOLDFAST_LEASE_TTL_SECONDS="2",
            HEARTBEAT_INTERVAL="1",
            MAX_ATTEMPTS="50",
        )

    def workers(self) -> list[int]:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if "holdfast worker" in " ".join(child.cmdline()):
                    found.append(child.pid)
        return found


async def test_runs_outlive_their_autoscaler_and_its_workers(redis, redis_settings, ledger, short_dir):
    chance = random.Random(11)
    async with System(redis_settings, slots=3, ttl=2.0, max_attempts=50) as system:
        tickets = []
        for turn in range(3):
            # For each turn of its own: the first may have done all that it had before it is killed.
            tickets += await system.queue.submit_many([Submission(agent="work", input=0.3)] * 50)
            begun = len(ledger.lines("begin"))
            command = Autoscaling(short_dir, redis_settings.url, ledger.path)
            try:
                await until(lambda begun=begun: len(ledger.lines("begin")) > begun, seconds=60)
                if turn == 2:
                    for ticket in tickets:
                        run = await system.ended(ticket.run_id, 90)
                        assert run.status is Status.SUCCEEDED
                    command.process.send_signal(signal.SIGTERM)
                    assert command.exited() == 0
                    break
                os.kill(chance.choice(command.workers()), signal.SIGKILL)
                await until(lambda command=command: "was ended by SIGKILL" in command.text, seconds=60)
                family = command.family()
                command.process.kill()
                await until(lambda family=family: all(map(gone, family)), what=f"the end of {family}")
            finally:
                command.close()
        ledger.check_nothing_ran_twice_under_one_fence()
        await system.nothing_left()
        for ticket in tickets:
            assert (await system.events(ticket.run_id)).count("succeeded") == 1
