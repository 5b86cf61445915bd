"""Steps and state: what is done stays done, over attempts and workers, and a zombie writes nothing."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App
from holdfast.errors import LeaseLost, RetryLater
from holdfast.runs.run import Multitask, Status
from holdfast.store.fences import Holder, register
from holdfast.store.lazy import LazyStore
from holdfast.store.names import incarnation
from tests.support.runs.system import System
from tests.support.waiting import until


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings, ttl=30.0) as system:
        yield system


@pytest.fixture
def app():
    return App("steps")


async def test_a_step_is_done_once_over_all_attempts(system, app):
    done = []

    @app.agent
    async def worker(ctx, n):
        async def plan(n: int) -> dict:
            done.append("plan")
            return {"plan": n, "key": ctx.idempotency_key("plan")}

        planned = await ctx.step("plan", plan, n)
        if ctx.attempt < 3:
            raise RetryLater(after=0.01)
        return planned

    run_id = await system.submit("worker", 7)
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.result, done) == ({"plan": 7, "key": f"{run_id}:plan"}, ["plan"])


async def test_a_name_used_again_is_another_step(system, app):
    @app.agent
    async def worker(ctx, urls):
        return [await ctx.step("fetch", lambda url=url: url.upper()) for url in urls]

    run_id = await system.submit("worker", ["a", "b", "a"])
    await system.worker(app)
    assert (await system.ended(run_id)).result == ["A", "B", "A"]


async def test_a_step_that_fails_is_not_remembered(system, app):
    tries = []

    @app.agent
    async def worker(ctx, _):
        def flaky() -> str:
            tries.append(1)
            if len(tries) < 2:
                raise ConnectionError("away")
            return "fine"

        return await ctx.step("flaky", flaky)

    run_id = await system.submit("worker")
    await system.worker(app)
    assert (await system.ended(run_id)).result == "fine"


async def test_a_sync_agent_has_steps_and_state_too(system, app):
    @app.agent
    def worker(ctx, n):
        ctx.state.set("seen", n)
        doubled = ctx.step("double", lambda: n * 2)
        return [doubled, ctx.state.get("seen"), ctx.state.all()]

    run_id = await system.submit("worker", 21)
    await system.worker(app)
    assert (await system.ended(run_id)).result == [42, 21, {"seen": 21}]


async def test_a_value_that_is_no_json_fails_the_run_for_good(system, app):
    @app.agent
    async def worker(ctx, _):
        return await ctx.step("odd", object)

    run_id = await system.submit("worker")
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.status, run.attempt) == (Status.FAILED, 1)
    assert "what step 'odd' gave can't be written as JSON" in run.error.message


async def test_a_step_whose_type_has_changed_since_says_so(system, app):
    @app.agent
    async def worker(ctx, _):
        if ctx.attempt == 1:

            def plan() -> str:
                return "text"

            await ctx.step("plan", plan)
            raise RetryLater(after=0.01)

        def other() -> int:
            return 1

        return await ctx.step("plan", other)

    run_id = await system.submit("worker")
    await system.worker(app)
    run = await system.ended(run_id)
    assert run.status is Status.FAILED
    assert "step 'plan' was done with a value that is not of type int" in run.error.message


async def test_what_a_paused_worker_writes_after_its_run_moved_on_is_refused(system, app):
    """A worker hangs, its run goes on elsewhere, and then it wakes up. Fails without the fence."""

    @app.agent
    async def worker(ctx, _):
        if ctx.fence == 1:
            await asyncio.Event().wait()
        await ctx.state.set("by", "second")
        return await ctx.step("pay", lambda: "second")

    run_id = await system.submit("worker")
    first = await system.worker(app, "first")
    await system.reaches(run_id, Status.RUNNING)
    door = LazyStore(system.settings.database)
    kept_as = incarnation(run_id, round((await system.queue.get(run_id)).submitted_at * 1000))
    zombie = door.memory(run_id=kept_as, thread_id="", fence=1, owner="first", queue=system.queue.name)
    assert await zombie.step("pay") is None
    first.process.request_stop()
    first.process.request_stop()
    await system.worker(app, "second")
    run = await system.ended(run_id)
    with pytest.raises(LeaseLost):
        await zombie.put_step("pay", b'"zombie"')
    with pytest.raises(LeaseLost):
        await zombie.put_state("by", b'"zombie"')
    await door.aclose()
    assert (run.result, run.fence) == ("second", 3)


async def test_state_belongs_to_the_thread_and_a_rollback_undoes_the_other_runs_part(system, app):
    @app.agent
    async def count(ctx, wait):
        number = await ctx.state.get("n", 0) + 1
        await ctx.state.set("n", number)
        if wait:
            await ctx.emit("counted", number)
            await asyncio.Event().wait()
        return number

    await system.worker(app)
    for expected in (1, 2):
        run_id = await system.submit("count", False, thread_id="t")
        assert (await system.ended(run_id)).result == expected
    waiting = await system.submit("count", True, thread_id="t")
    await until(lambda: system.events(waiting), lambda found: "counted" in found)
    run_id = await system.submit("count", False, thread_id="t", multitask=Multitask.ROLLBACK)
    assert (await system.ended(run_id)).result == 3
    assert (await system.queue.get(waiting)).status is Status.CANCELLED
    other = await system.submit("count", False, thread_id="another")
    assert (await system.ended(other)).result == 1


async def test_a_late_write_of_an_earlier_run_of_the_thread_is_refused(system, app):
    """A write waits in the database when its run times out, and arrives after the next run has written.

    Fails if the store compares only attempts of one run, and not the runs of a thread.
    """
    memories = {}

    @app.agent
    async def hang(ctx, touches_state):
        if touches_state:
            await ctx.state.set("x", "early")
        memories[touches_state] = ctx.state._memory
        await asyncio.Event().wait()

    @app.agent
    async def write(ctx, value):
        before = await ctx.state.get("x")
        await ctx.state.set("x", value)
        return before

    worker = await system.worker(app)
    for touches_state in (True, False):
        earlier = await system.submit("hang", touches_state, thread_id="t")
        await until(lambda wanted=touches_state: wanted in memories)
        worker.reach_deadline()
        assert (await system.ended(earlier)).status is Status.TIMED_OUT
    later = await system.submit("write", "new", thread_id="t")
    assert (await system.ended(later)).result == "early"
    for memory in memories.values():
        with pytest.raises(LeaseLost):
            await memory.put_state("x", b'"late"')
    last = await system.submit("write", "last", thread_id="t")
    assert (await system.ended(last)).result == "new"


async def test_a_run_whose_thread_was_taken_is_retried_as_after_any_failure(system, app):
    """Two systems on one database have one thread: neither run may begin again and again at once.

    Fails if it ends like a lost lease, which counts no attempt and has no pause.
    """

    @app.agent(max_attempts=2)
    async def talk(ctx, _):
        await ctx.state.set("attempt", ctx.attempt)
        memory = ctx.state._memory._memory
        holder = memory._holder
        other = Holder(
            "another system's", 1, "it", holder.scope, thread=holder.thread, generation=holder.generation + 1
        )
        await memory._do("register", lambda: register(other))
        await ctx.state.set("attempt", ctx.attempt)

    run_id = await system.submit("talk", thread_id="t")
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.status, run.attempt, run.fence) == (Status.FAILED, 2, 2)
    assert "another run of its thread has used the store since" in run.error.message


async def test_an_id_that_comes_again_has_none_of_the_steps_of_the_run_before(system, app):
    """Fails if the store knows runs by their ids alone: the second would be handed what the first did."""

    @app.agent
    async def secret(ctx, who):
        await ctx.state.set("who", who)
        return await ctx.step("plan", lambda: f"plan of {who}")

    await system.worker(app)
    for who in ("one", "two"):
        await system.submit("secret", who, run_id="order-7", tenant=who)
        assert (await system.ended("order-7")).result == f"plan of {who}"
        await system.queue.redis.delete(system.queue.keys.run("order-7"), system.queue.keys.feed("order-7"))
        await system.queue.redis.zrem(system.queue.keys.ended, "order-7")
