"""Workers that die in the middle of a graph or an agent of a framework: what was finished is not done again."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.runs.run import Status
from tests.support.runs.system import System, WorkerChild
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

AGENTS = Path(__file__).parents[1] / "integration" / "frameworks"

# What each has done when it waits at the gate for the first time.
BEFORE = {
    "pydantic_ai": {"model0", "first", "model1"},
    "openai_agents": {"model0", "first", "model1"},
    "langgraph": {"model0", "first", "beside"},
}
RESULT = {
    "pydantic_ai": "1: waited",
    "openai_agents": "1: waited",
    "langgraph": {"prompt": "first slow", "seen": ["looked", "beside", "waited", "last"]},
}
FRAMEWORKS = sorted(BEFORE)

# What each does once, after the gate.
AFTER = {"pydantic_ai": "model2", "openai_agents": "model2", "langgraph": "last"}


class Crew:
    """Worker processes with the agents of frameworks, on one SQLite file."""

    def __init__(self, system: System, ledger, gate: Path, framework: str) -> None:
        self.app = f"{AGENTS}/durable_{framework}.py:app"
        self.system = system
        self.ledger = ledger
        self.gate = gate
        self.children: list[WorkerChild] = []

    async def start(self, name: str, **environ: str) -> WorkerChild:
        child = WorkerChild(
            self.system.settings,
            self.app,
            name,
            template="frameworks",
            CHAOS_LEDGER=str(self.ledger.path),
            CHAOS_GATE=str(self.gate),
            HOLDFAST_DATABASE_PATH=self.system.settings.database.path,
            **environ,
        )
        self.children.append(child)

        async def is_member() -> int:
            assert child.process.poll() is None, child.close()
            return await self.system.queue.redis.exists(f"member:worker:{name}")

        await until(is_member, what=f"worker {name} to announce itself", seconds=60)
        return child

    async def forget(self, name: str) -> None:
        """Take away what a worker has said of itself, so that the next we read is new."""
        await self.system.queue.redis.delete(f"member:worker:{name}")

    async def idle(self, name: str) -> None:
        """Wait until a worker says that it does nothing."""
        await until(
            lambda: self.system.queue.redis.hget(f"member:worker:{name}", "load"), lambda found: found == b"0"
        )

    async def does(self, what: str, run_id: str, times: int = 1) -> None:
        await until(lambda: len(self.ledger.lines(what, run_id)) >= times)

    def done(self, run_id: str) -> Counter[str]:
        return Counter(line.what for line in self.ledger.lines(run_id=run_id))

    async def at_the_gate(self, framework: str, run_id: str) -> None:
        """Wait until the agent waits, and what it has done before is written down."""
        for what in ("slow", *BEFORE[framework]):
            await self.does(what, run_id)
        if framework == "langgraph":
            await until(lambda: "beside" in self._written())

    def _written(self) -> str:
        with sqlite3.connect(self.system.settings.database.path) as database:
            rows = database.execute(
                "SELECT value FROM holdfast_checkpoint_writes WHERE channel = 'seen'"
            ).fetchall()
        database.close()
        return repr(rows)


@pytest.fixture(params=FRAMEWORKS)
def framework(request) -> str:
    return request.param


@pytest.fixture
def crew(system, ledger, tmp_path, framework):
    crew = Crew(system, ledger, tmp_path / "gate", framework)
    yield crew
    for child in crew.children:
        print(f"---\n{child.close()}", file=sys.stderr)


@pytest.mark.usefixtures("short_leases")
async def test_what_was_finished_when_a_worker_was_killed_is_not_done_again(system, crew, framework):
    first = await crew.start("first")
    run_id = await system.submit(framework, {"prompt": "first slow"})
    await crew.at_the_gate(framework, run_id)
    first.kill()
    crew.gate.touch()
    await crew.start("second")
    run = await system.ended(run_id, 30)
    assert (run.status, run.attempt, run.result) == (Status.SUCCEEDED, 2, RESULT[framework])
    done = crew.done(run_id)
    assert done["slow"] == 2, "it was in the middle of that"
    assert {what: times for what, times in done.items() if times > 1} == {"slow": 2}
    assert BEFORE[framework] <= set(done)


@pytest.mark.usefixtures("short_leases")
async def test_a_frozen_worker_that_wakes_up_adds_nothing(system, crew, framework):
    first = await crew.start("first")
    run_id = await system.submit(framework, {"prompt": "first slow"})
    await crew.at_the_gate(framework, run_id)
    first.freeze()
    await crew.start("second")
    await crew.does("slow", run_id, 2)
    crew.gate.touch()
    await crew.forget("first")
    first.thaw()
    run = await system.ended(run_id, 30)
    assert (run.status, run.result) == (Status.SUCCEEDED, RESULT[framework])
    await crew.idle("first")  # whatever it still does, it has done now
    assert (await system.events(run_id)).count("succeeded") == 1
    assert crew.done(run_id)[AFTER[framework]] == 1


async def test_an_answer_survives_the_death_of_the_worker_that_got_it(system, crew, framework):
    first = await crew.start("first")
    run_id = await system.submit(framework, {"prompt": "first pay"})
    await system.reaches(run_id, Status.INTERRUPTED)
    first.kill()
    await system.queue.resume_run(run_id, True)
    await crew.start("second")
    run = await system.ended(run_id, 30)
    assert run.status is Status.SUCCEEDED, run.error
    done = crew.done(run_id)
    assert (done["pay"], done["first"], done["model0"]) == (1, 1, 1)


@pytest.mark.usefixtures("short_leases")
@pytest.mark.parametrize("framework", ["openai_agents"])
async def test_an_agent_that_is_a_tool_of_another_is_one_step(system, crew):
    """Killed in the middle of it, that step is done again, as a whole; what its caller had done is not."""
    first = await crew.start("first")
    run_id = await system.submit("openai_nested", "first slow")
    await crew.does("boss0", run_id)
    await crew.at_the_gate("openai_agents", run_id)
    first.kill()
    crew.gate.touch()
    await crew.start("second")
    run = await system.ended(run_id, 30)
    assert (run.status, run.attempt, run.result) == (Status.SUCCEEDED, 2, "it said 1: waited")
    step = {"model0": 2, "first": 2, "model1": 2, "slow": 2, "model2": 1}
    assert crew.done(run_id) == {"boss0": 1, **step, "boss1": 1}


@pytest.mark.parametrize("framework", ["langgraph"])
async def test_a_graph_is_handed_on_between_two_supersteps(system, crew):
    """SIGTERM while a superstep runs: it ends, its checkpoint is kept, and another worker does the next one."""
    first = await crew.start("first")
    run_id = await system.submit("langgraph", {"prompt": "first slow"})
    await crew.at_the_gate("langgraph", run_id)
    first.terminate()
    await until(
        lambda: system.queue.redis.hget("member:worker:first", "state"), lambda found: found == b"draining"
    )
    crew.gate.touch()
    assert await first.exited() == 0
    run = await system.queue.get(run_id)
    assert (run.status, run.attempt) == (Status.QUEUED, 0), "handed back, and no failed attempt"
    await crew.start("second")
    run = await system.ended(run_id, 30)
    assert (run.status, run.attempt, run.result) == (Status.SUCCEEDED, 1, RESULT["langgraph"])
    assert max(crew.done(run_id).values()) == 1
