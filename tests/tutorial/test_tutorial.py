"""Holdfast, one idea per test. Read from top to bottom."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import App, Context, GiveUp, QueueFull, RetryLater, RunCancelled, RunFailed, RunTimedOut
from tests.support.waiting import until


async def test_1_an_agent_is_a_function_and_a_run_is_one_call_of_it(client, start):
    app = App("tutorial")

    @app.agent
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    await start(app)
    run = await client.submit("greet", "Ada")
    assert await run.result(timeout=30) == "Hello, Ada!"


async def test_2_a_run_waits_in_the_queue_until_there_is_a_worker(client, start):
    app = App("tutorial")

    @app.agent
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    run = await client.submit("greet", "early")
    assert await run.status() == "queued"
    await start(app)
    assert await run.result(timeout=30) == "Hello, early!"


async def test_3_an_agent_tells_what_it_does_and_everybody_may_listen(client, start):
    app = App("tutorial")

    @app.agent
    async def think(ctx: Context, question: str) -> int:
        await ctx.emit("thinking", {"about": question})
        await ctx.stream("almost ")
        await ctx.stream("there")
        return 42

    await start(app)
    run = await client.submit("think", "everything")
    heard = [event.type async for event in run.events()]
    assert heard == ["submitted", "started", "thinking", "chunk", "chunk", "succeeded"]


async def test_4_a_run_is_submitted_once_however_often_it_is_sent(client):
    first = await client.submit("pay", {"amount": 5}, idempotency_key="invoice-7")
    again = await client.submit("pay", {"amount": 5}, idempotency_key="invoice-7")
    assert again.run_id == first.run_id


async def test_5_what_fails_is_tried_again(client, start):
    app = App("tutorial")

    @app.agent
    async def flaky(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ConnectionError("the model is not there")
        if ctx.attempt == 2:
            raise RetryLater("the model is busy", after=0.1)
        return f"done at attempt {ctx.attempt}"

    await start(app)
    run = await client.submit("flaky")
    assert await run.result(timeout=30) == "done at attempt 3"


async def test_6_what_cannot_succeed_is_given_up_and_kept_in_the_dead_letters(client, start, system):
    app = App("tutorial")

    @app.agent
    async def hopeless() -> None:
        raise GiveUp("there is no such customer")

    await start(app)
    run = await client.submit("hopeless")
    with pytest.raises(RunFailed, match="no such customer"):
        await run.result(timeout=30)
    assert (await system.queue.depth()).dead == 1


async def test_7_a_run_has_a_deadline(client, start):
    app = App("tutorial")

    @app.agent(timeout="100ms")
    async def slow() -> None:
        await asyncio.Event().wait()

    await start(app)
    run = await client.submit("slow")
    with pytest.raises(RunTimedOut):
        await run.result(timeout=30)


async def test_8_a_run_can_be_cancelled_while_it_waits_and_while_it_runs(client, start):
    app, running = App("tutorial"), asyncio.Event()

    @app.agent
    async def endless() -> None:
        running.set()
        await asyncio.Event().wait()

    waiting = await client.submit("endless")
    await waiting.cancel("not needed")
    await start(app)
    run = await client.submit("endless")
    await running.wait()
    await run.cancel("enough")
    for cancelled in (waiting, run):
        with pytest.raises(RunCancelled):
            await cancelled.result(timeout=30)


async def test_9_a_dead_workers_run_runs_again_elsewhere_under_a_higher_fence(client, start):
    app, fences = App("tutorial"), []

    @app.agent
    async def survivor(ctx: Context) -> str:
        fences.append(ctx.fence)
        if len(fences) == 1:
            await asyncio.Event().wait()  # its worker dies here
        return "finished"

    first = await start(app, "first")
    run = await client.submit("survivor")
    await until(lambda: fences)
    await first.vanish()
    await start(app, "second")
    assert await run.result(timeout=30) == "finished"
    assert fences[1] > fences[0]


async def test_a_worker_that_leaves_hands_its_runs_back_and_no_attempt_is_lost(client, start):
    app, attempts = App("tutorial"), []

    @app.agent
    async def long(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            await ctx.wait_draining()  # a good moment to write things down
            await asyncio.Event().wait()
        return "finished"

    first = await start(app, "first")
    run = await client.submit("long")
    await until(lambda: attempts)
    await start(app, "second")
    await first.stop()
    assert await run.result(timeout=30) == "finished"
    assert attempts == [1, 1]


async def test_b_a_full_queue_says_so_instead_of_forgetting(redis, redis_settings):
    from holdfast import Client
    from tests.support.runs.system import System

    async with System(redis_settings, max_depth=1) as small, Client(settings=small.settings) as client:
        await client.submit("anything")
        with pytest.raises(QueueFull) as refused:
            await client.submit("anything")
        assert refused.value.retry_after > 0


async def test_c_an_outside_effect_happens_once_if_it_carries_the_runs_key(client, start):
    app, charged = App("tutorial"), {}

    @app.agent
    async def charge(ctx: Context, amount: int) -> int:
        charged[ctx.idempotency_key("charge")] = amount  # the payment provider knows the key
        if ctx.attempt == 1:
            raise ConnectionError("after the charge, before the answer")
        return len(charged)

    await start(app)
    run = await client.submit("charge", 5)
    assert await run.result(timeout=30) == 1
