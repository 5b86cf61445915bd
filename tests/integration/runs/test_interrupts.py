"""A run that asks somebody: it leaves its worker, waits, and goes on with the answer."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast import App
from holdfast.errors import Conflict, NotFound
from holdfast.runs.retention import Retention
from holdfast.runs.run import Status
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.system import System


@pytest.fixture
async def system(redis_settings):
    async with System(redis_settings, ttl=30.0) as system:
        yield system


@pytest.fixture
def app():
    app = App("asking")

    @app.agent
    async def approve(ctx, plan):
        first = await ctx.interrupt({"approve": plan})
        second = await ctx.interrupt("sure?")
        return [first, second]

    @app.agent
    def in_a_thread(ctx, plan):
        return ctx.interrupt({"approve": plan})

    @app.agent
    async def careless(ctx, plan):
        try:
            return await ctx.interrupt(plan)
        except Exception:
            return "swallowed"

    @app.agent
    async def in_a_group(ctx, plan):
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ctx.interrupt(plan))
        return asked.result()

    @app.agent
    async def swallows_all(ctx, plan):
        try:
            return await ctx.interrupt(plan)
        except BaseException:
            return "swallowed"

    @app.agent
    async def two_at_once(ctx, plan):
        return await asyncio.gather(ctx.interrupt("a"), ctx.interrupt("b"))

    @app.agent
    async def unwritable(ctx, plan):
        return await ctx.interrupt(object())

    return app


async def interrupted(system, run_id):
    return await system.reaches(run_id, Status.INTERRUPTED)


async def test_a_run_waits_for_each_of_its_answers_without_a_worker(system, app):
    run_id = await system.submit("approve", "plan A")
    worker = await system.worker(app)
    run = await interrupted(system, run_id)
    assert (run.interrupt, run.owner, run.entry) == ({"approve": "plan A"}, "", "")
    assert worker.process.running() == []
    await worker.stop()  # it may go away meanwhile
    await system.queue.resume_run(run_id, {"yes": True})
    await system.worker(app)
    assert (await interrupted(system, run_id)).interrupt == "sure?"
    await system.queue.resume_run(run_id, "yes")
    run = await system.ended(run_id)
    assert (run.status, run.result, run.interrupt) == (Status.SUCCEEDED, [{"yes": True}, "yes"], None)


@pytest.mark.parametrize("agent", ["in_a_thread", "careless", "in_a_group", "swallows_all"])
async def test_every_kind_of_agent_can_ask(system, app, agent):
    run_id = await system.submit(agent, "plan")
    await system.worker(app)
    await interrupted(system, run_id)
    await system.queue.resume_run(run_id, 42)
    assert (await system.ended(run_id)).result == 42


async def test_asking_does_not_use_up_attempts(system, app):
    run_id = await system.submit("approve", "plan")
    await system.worker(app)
    for answer in (1, 2):
        assert (await interrupted(system, run_id)).attempt == 1
        await system.queue.resume_run(run_id, answer)
    assert (await system.ended(run_id)).attempt == 1


async def test_only_an_interrupted_run_can_be_resumed(system, app):
    run_id = await system.submit("approve", "plan")
    with pytest.raises(Conflict, match="is queued: only an interrupted run takes an answer"):
        await system.queue.resume_run(run_id, 1)
    with pytest.raises(NotFound):
        await system.queue.resume_run("nobody", 1)


async def test_an_interrupted_run_can_be_cancelled(system, app):
    run_id = await system.submit("approve", "plan")
    await system.worker(app)
    await interrupted(system, run_id)
    assert await system.queue.cancel(run_id) == "cancelled"
    assert (await system.queue.get(run_id)).status is Status.CANCELLED


async def test_a_question_that_is_no_json_fails_the_run(system, app):
    run_id = await system.submit("unwritable")
    await system.worker(app)
    run = await system.ended(run_id)
    assert run.status is Status.FAILED
    assert "what an interrupt asks can't be written as JSON" in run.error.message


async def test_the_feed_tells_of_question_and_answer(system, app):
    run_id = await system.submit("in_a_thread", "plan")
    await system.worker(app)
    await interrupted(system, run_id)
    await system.queue.resume_run(run_id, "yes")
    await system.ended(run_id)
    feed = await system.queue.redis.xrange(system.queue.keys.feed(run_id))
    told = {fields[b"type"].decode(): msgspec.json.decode(fields[b"data"]) for _, fields in feed}
    assert told["interrupted"] == {"index": 1, "value": {"approve": "plan"}}
    assert told["resumed"] == {"index": 1, "value": "yes"}


async def test_a_producer_in_any_language_answers_by_an_entry_that_says_resume(system, app):
    run_id = await system.submit("in_a_thread", "plan")
    await system.worker(app)
    await interrupted(system, run_id)
    message = msgspec.json.encode({"action": "RESUME", "input": {"list": [], "yes": True}})
    fields = {"message_data": message, "agent_id": "in_a_thread", "task_id": run_id, "correlation_id": run_id}
    await system.queue.redis.xadd(system.queue.keys.stream, fields)
    run = await system.ended(run_id)
    assert (run.status, run.result, run.input) == (Status.SUCCEEDED, {"list": [], "yes": True}, "plan")
    await system.nothing_left()


async def test_an_answer_to_a_run_that_nobody_knows_says_so_among_the_dead_letters(system, app):
    """Fails if its action, which is known, is called unknown."""
    message = msgspec.json.encode({"action": "RESUME", "input": True})
    fields = {"message_data": message, "agent_id": "in_a_thread", "correlation_id": "nobody"}
    await system.queue.redis.xadd(system.queue.keys.stream, fields)
    await system.worker(app)
    run = await system.adopted("nobody")
    assert (run.status, run.error.kind) == (Status.FAILED, "malformed")
    assert run.error.message.startswith("no run 'nobody' waits for an answer")


async def test_an_interrupted_run_is_no_lost_one_and_does_not_expire(system, app):
    run_id = await system.submit("approve", "plan")
    await system.worker(app)
    await interrupted(system, run_id)
    retention = Retention(system.queue, Metrics(), ttl_seconds=0.0)
    swept = await retention.run_once()
    assert (swept.restored, swept.expiring, swept.left) == ([], 0, 0)
    assert (await system.queue.get(run_id)).status is Status.INTERRUPTED


async def test_two_questions_at_once_are_asked_one_after_the_other(system, app):
    """Fails if a question looks up its number again after it has waited."""
    run_id = await system.submit("two_at_once")
    await system.worker(app)
    for question, answer in (("a", 1), ("b", 2)):
        assert (await interrupted(system, run_id)).interrupt == question
        await system.queue.resume_run(run_id, answer)
    assert (await system.ended(run_id)).result == [1, 2]


async def test_a_question_larger_than_a_message_may_be_fails_the_run(system, app):
    @app.agent
    async def large(ctx, _):
        await ctx.interrupt("x" * (system.settings.queue.max_payload_bytes + 1))

    run_id = await system.submit("large")
    await system.worker(app)
    assert "more than max_payload_bytes" in (await system.ended(run_id)).error.message


async def test_the_same_message_once_more_is_no_answer(redis, system, app):
    """Its input may have any words in it. Fails if the word RESUME anywhere is taken for the action."""
    await system.submit("in_a_thread", {"action": "RESUME"}, run_id="r1")
    ((_, entry),) = await redis.xrange(system.queue.keys.stream)
    await system.worker(app)
    await interrupted(system, "r1")
    await redis.xadd(system.queue.keys.stream, entry)
    await system.submit("careless", 1, run_id="behind")
    await system.reaches("behind", Status.INTERRUPTED)
    assert (await system.queue.get("r1")).status is Status.INTERRUPTED
