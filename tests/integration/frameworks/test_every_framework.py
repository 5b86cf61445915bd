"""What Holdfast does for an agent, it does for the agents of every framework."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from holdfast.agents.frameworks.replay import Replay
from holdfast.config import DatabaseSettings
from holdfast.errors import LeaseLost
from holdfast.leases.trust import Trust
from holdfast.runs.run import Status
from tests.support.waiting import until

PAID = {
    "pydantic_ai": "1: paid 5",
    "openai_agents": "1: paid 5",
    "langgraph": {"prompt": "first pay", "seen": ["looked", "beside", "paid 5", "last"]},
}
TEXT = {
    "pydantic_ai": "1: looked",
    "openai_agents": "1: looked",
    "langgraph": "look around",
}


WAITED = {
    "pydantic_ai": "1: waited",
    "openai_agents": "1: waited",
    "langgraph": {"prompt": "first slow", "seen": ["looked", "beside", "waited", "last"]},
}


def text_of(framework, chunks) -> str:
    if framework != "langgraph":
        return "".join(chunks)
    return "".join(c["data"]["content"] for c in chunks if c["mode"] == "messages")


async def test_a_run_ends_with_the_agents_output_and_streams_its_text(system, app, framework, chunks, done):
    await system.worker(app)
    run_id = await system.submit(framework, {"prompt": "first"})
    run = await system.ended(run_id)
    assert run.status is Status.SUCCEEDED, run.error
    streamed = await chunks(run_id)
    assert text_of(framework, streamed) == TEXT[framework]
    assert len(streamed) > 1 or framework == "openai_agents"
    assert set(done(run_id).values()) == {1}


async def test_an_approval_leaves_the_worker_and_goes_on_with_the_answer(
    system, app, framework, done, chunks
):
    worker = await system.worker(app)
    run_id = await system.submit(framework, {"prompt": "first pay"})
    waiting = await system.reaches(run_id, Status.INTERRUPTED)
    assert "5" in str(waiting.interrupt)
    assert done(run_id)["pay"] == 0
    before = done(run_id)
    await worker.stop()  # nobody holds it meanwhile
    await system.worker(app)
    await system.queue.resume_run(run_id, True)
    run = await system.ended(run_id)
    assert (run.status, run.result) == (Status.SUCCEEDED, PAID[framework])
    assert done(run_id)["pay"] == 1
    assert {what: done(run_id)[what] for what in before} == before, "nothing was done twice"
    text = text_of(framework, await chunks(run_id))
    assert text.count("paid 5") <= 1, "nobody who follows it sees a chunk twice"


async def test_a_refusal_reaches_the_agent(system, app, framework, done):
    await system.worker(app)
    run_id = await system.submit(framework, {"prompt": "first pay"})
    await system.reaches(run_id, Status.INTERRUPTED)
    await system.queue.resume_run(run_id, False)
    run = await system.ended(run_id)
    assert run.status is Status.SUCCEEDED
    assert done(run_id)["pay"] == 0
    assert "paid 5" not in str(run.result)


@pytest.mark.parametrize("framework", ["pydantic_ai", "openai_agents"])
async def test_an_answer_that_makes_no_sense_is_asked_for_again(system, app, framework, done):
    await system.worker(app)
    run_id = await system.submit(framework, {"prompt": "pay"})
    await system.reaches(run_id, Status.INTERRUPTED)
    await system.queue.resume_run(run_id, "perhaps")
    await until(lambda: system.queue.get(run_id), lambda found: "problem" in str(found.interrupt))
    asked = (await system.queue.get(run_id)).interrupt
    (call,) = asked["question"]["approvals"]
    await system.queue.resume_run(run_id, {call["id"]: {"approved": False, "message": "too much"}})
    run = await system.ended(run_id)
    assert run.result == "1: too much"
    assert done(run_id)["pay"] == 0


async def test_a_cancelled_run_stops_in_the_middle_of_a_tool(system, app, framework, done, does):
    await system.worker(app)
    run_id = await system.submit(framework, {"prompt": "first slow"})
    await does("slow", run_id)
    await system.queue.cancel(run_id)
    run = await system.ended(run_id)
    assert run.status is Status.CANCELLED
    await does("stopped", run_id)
    assert done(run_id)["last"] == 0


@pytest.mark.parametrize("framework", ["langgraph"])
async def test_a_run_that_is_cancelled_while_it_writes_a_chunk_leaves_no_node_behind(
    attempts, app, framework, does, monkeypatch
):
    """One node has ended, and its chunk is being written; the node beside it goes on until it is stopped."""
    writing = asyncio.Event()

    async def write(_: str, chunk: Any) -> None:
        if chunk["mode"] == "updates" and "beside" in chunk["data"]:
            writing.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(attempts, "_emit", write)
    running = asyncio.create_task(attempts.run(app.get(framework).call, {"prompt": "first slow"}))
    await writing.wait()
    running.cancel()
    await asyncio.wait([running])
    await does("stopped", "run")


async def test_a_worker_that_leaves_hands_the_run_on_between_two_calls(
    system, app, framework, done, does, gate
):
    first = await system.worker(app, "first")
    run_id = await system.submit(framework, {"prompt": "first slow"})
    await does("slow", run_id)
    first.process.request_stop()
    await until(
        lambda: system.queue.redis.hget("member:worker:first", "state"), lambda found: found == b"draining"
    )
    gate.touch()
    await asyncio.wait_for(first.task, 30)
    assert (await system.queue.get(run_id)).status is Status.QUEUED
    await system.worker(app, "second")
    run = await system.ended(run_id)
    assert (run.status, run.attempt) == (Status.SUCCEEDED, 1), "a hand-back is no failed attempt"
    assert max(done(run_id).values()) == 1, "nothing was done twice"
    assert "handed_back" in await system.events(run_id)


async def test_runs_of_one_thread_continue_one_conversation(system, app, framework):
    await system.worker(app)
    results = [
        (await system.ended(await system.submit(framework, {"prompt": "first"}, thread_id="t"))).result
        for _ in range(2)
    ]
    if framework == "langgraph":
        assert results[1]["seen"] == results[0]["seen"] * 2
    else:
        assert [result[0] for result in results] == ["1", "2"]  # the prompts that the model saw
    alone = await system.ended(await system.submit(framework, {"prompt": "first"}, thread_id="other"))
    assert alone.result == results[0]


async def test_a_failure_is_tried_again_from_where_it_happened(system, app, framework, done, does, gate):
    """The attempt ends by its worker's deadline: the next one does not start from nothing."""
    hasty = await system.worker(app, timeout_seconds=600.0)
    run_id = await system.submit(framework, {"prompt": "first slow"})
    await does("slow", run_id)
    hasty.reach_deadline()
    run = await system.ended(run_id)
    assert run.status is Status.TIMED_OUT
    await hasty.stop()
    gate.touch()
    await system.worker(app)
    await system.queue.replay(run_id)
    run = await system.ended(run_id)
    assert run.status is Status.SUCCEEDED, run.error
    assert (done(run_id)["first"], done(run_id)["slow"]) == (1, 2)


async def test_an_attempt_that_wakes_up_behind_another_adds_nothing(
    attempts, app, framework, done, does, gate
):
    """Nothing stops it here but the fence of what it writes."""
    agent, payload = app.get(framework).call, {"prompt": "first slow"}
    zombie = asyncio.create_task(attempts.run(agent, payload))
    await does("slow", "run")
    heir = asyncio.create_task(attempts.run(agent, payload))
    await does("slow", "run", 2)
    gate.touch()
    with pytest.raises(LeaseLost):
        await zombie
    assert await heir == WAITED[framework]
    assert done("run")["last" if framework == "langgraph" else "model2"] == 1


async def test_no_call_begins_after_the_end_of_the_lease(attempts, app, framework, done, does, gate):
    """As after a freeze: nothing has stopped the framework yet, and another worker may have the run."""
    lease = [float("inf")]
    agent = app.get(framework).call
    running = asyncio.create_task(
        attempts.run(agent, {"prompt": "first slow"}, trust=Trust(lambda: lease[0]))
    )
    await does("slow", "run")
    lease[0] = 0.0
    gate.touch()
    with pytest.raises(LeaseLost):
        await running
    assert done("run")["last" if framework == "langgraph" else "model2"] == 0
    if framework != "langgraph":  # whose node may end before anything stops it
        assert done("run")["stopped"] == 1, "a tool takes no further step"


@pytest.mark.parametrize("framework", ["pydantic_ai", "openai_agents"])
async def test_no_model_is_asked_after_the_end_of_the_lease(attempts, app, framework, done, monkeypatch):
    lease = [float("inf")]
    put = Replay.put

    async def put_too_late(self: Replay, name: str, value: bytes) -> None:
        await put(self, name, value)
        if ":tool:" in name:
            lease[0] = 0.0

    monkeypatch.setattr(Replay, "put", put_too_late)
    with pytest.raises(LeaseLost):
        await attempts.run(app.get(framework).call, {"prompt": "first"}, trust=Trust(lambda: lease[0]))
    assert (done("run")["first"], done("run")["model1"]) == (1, 0)


class TestOnPostgreSQL:
    @pytest.fixture
    def database(self, postgres_url) -> DatabaseSettings:
        return DatabaseSettings(url=postgres_url)

    @pytest.fixture(autouse=True)
    async def migrated(self, database):
        from holdfast.store.open import open_store

        await (await open_store(database, migrate=True)).aclose()

    async def test_an_approval_waits_there_too(self, system, app, framework, done):
        await system.worker(app)
        run_id = await system.submit(framework, {"prompt": "first pay"})
        await system.reaches(run_id, Status.INTERRUPTED)
        await system.queue.resume_run(run_id, True)
        run = await system.ended(run_id)
        assert (run.status, run.result) == (Status.SUCCEEDED, PAID[framework])
        assert (done(run_id)["first"], done(run_id)["pay"]) == (1, 1)


def test_no_framework_is_imported_unless_an_agent_is_one():
    code = (
        "import sys, holdfast, holdfast.agents.app, holdfast.agents.frameworks, holdfast.services.worker\n"
        "app = holdfast.App('a'); app.register('f', lambda ctx: None)\n"
        "found = {'langgraph', 'langchain_core', 'pydantic_ai', 'pydantic', 'agents', 'openai'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
