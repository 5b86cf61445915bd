"""Every example agent does what its docstring says, on a real worker."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.runs.run import Status
from tests.support.runs.system import System
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "support_desk.py"


@pytest.fixture
def app() -> App:
    return load_app(f"{EXAMPLE}:app")


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings, slots=4, ttl=10.0) as system:  # no lease ends on a busy machine
        yield system


def test_every_agent_is_described(app):
    assert set(app.agents) == {
        "greet", "research", "lookup", "refund", "draft", "invoice", "approve", "survivor",
    }  # fmt: skip
    assert all(spec.description for spec in app.agents.values())


async def test_greet_answers_at_once(system, app):
    await system.worker(app)
    run = await system.ended(await system.submit("greet", {"name": "Ada"}))
    assert run.result == "Hello Ada, how can we help?"


async def test_research_tells_its_progress(system, app):
    await system.worker(app)
    run_id = await system.submit("research", {"sources": 3, "seconds_each": 0.01})
    run = await system.ended(run_id)
    assert run.result == {"read": 3, "complete": True}
    assert (await system.events(run_id)).count("progress") == 3


async def test_research_wraps_up_when_its_worker_wants_to_leave(system, app):
    worker = await system.worker(app)
    run_id = await system.submit("research", {"sources": 10_000, "seconds_each": 0.01})
    await until(lambda: system.events(run_id), lambda found: "progress" in found)
    await worker.stop()
    run = await system.ended(run_id)
    assert run.status is Status.SUCCEEDED
    assert run.result["complete"] is False
    assert 0 < run.result["read"] < 10_000


async def test_lookup_fails_twice_and_then_works(system, app):
    await system.worker(app)
    run_id = await system.submit("lookup", {"number": 7})
    run = await system.ended(run_id)
    assert run.result == {"order": 7, "state": "shipped", "attempts": 3}
    assert (await system.events(run_id)).count("retrying") == 2


async def test_refund_ends_in_the_dead_letters_after_three_attempts(system, app):
    await system.worker(app)
    run = await system.ended(await system.submit("refund", {"number": 7}))
    assert (run.status, run.attempt) == (Status.FAILED, 3)
    (letter,) = await system.queue.redis.xrange(system.queue.keys.deadletter)
    assert letter[1][b"run_id"].decode() == run.id


async def test_draft_streams_its_answer(system, app):
    await system.worker(app)
    run_id = await system.submit("draft", {"name": "Ada"})
    run = await system.ended(run_id)
    chunks = (await system.events(run_id)).count("chunk")
    assert run.result.startswith("Dear Ada,")
    assert chunks == len(run.result.split())


async def test_invoice_runs_in_a_thread_beside_the_others(system, app, monkeypatch):
    printed = threading.Event()
    printer = SimpleNamespace(sleep=lambda seconds: printed.wait(60))  # as slow as the greeting needs
    monkeypatch.setitem(app.agents["invoice"].call.__globals__, "time", printer)
    await system.worker(app)
    invoice = await system.submit("invoice", {"number": 5})
    await until(lambda: system.events(invoice), lambda found: "printing" in found)
    await system.ended(await system.submit("greet", {"name": "Ada"}))
    assert (await system.queue.get(invoice)).status is Status.RUNNING
    printed.set()
    run = await system.ended(invoice)
    assert run.result == {"order": 5, "pages": 3}


@pytest.mark.parametrize(("answer", "paid"), [("yes", 40), ("no", 0)])
async def test_approve_waits_without_a_worker_until_it_is_answered(system, app, answer, paid):
    worker = await system.worker(app)
    run_id = await system.submit("approve", {"name": "Ada", "amount": 40})
    run = await system.reaches(run_id, Status.INTERRUPTED)
    assert run.interrupt == {"question": "Pay 40 EUR to Ada?"}
    await worker.stop()
    await system.queue.resume_run(run_id, answer)
    await system.worker(app)
    assert (await system.ended(run_id)).result == {"paid": paid}


async def test_a_survivor_finishes_on_another_worker_and_repeats_no_finished_step(redis, redis_settings, app):
    # The lease of the worker that vanishes is waited out.
    async with System(redis_settings, slots=4, ttl=4.0) as system:
        first = await system.worker(app, "first")
        run_id = await system.submit("survivor", {"seconds": 1.0})
        await until(lambda: system.events(run_id), lambda found: "progress" in found)
        await first.vanish()
        await system.worker(app, "second")
        run = await system.ended(run_id)
        assert run.result["fence"] == run.fence > 1
        feed = await system.queue.redis.xrange(system.queue.keys.feed(run_id))
        done = [json.loads(fields[b"data"])["step"] for _, fields in feed if fields[b"type"] == b"working"]
        assert set(done) == {1, 2, 3, 4}
        assert done.count(1) == 1
