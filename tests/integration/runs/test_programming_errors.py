"""A programming error of an agent's first attempt ends its run: trying it again shows the same traceback."""

from __future__ import annotations

import pytest

from holdfast import App, Context
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.run import Status
from tests.support.runs.system import System

app = App("wrong")


@app.agent
async def misspelt(ticket: dict) -> str:
    return ticket["nmae"]


@app.agent(retry_programming_errors=True, max_attempts=3)
def stubborn(ticket: dict) -> str:
    return ticket["nmae"]


@app.agent(max_attempts=4)
async def later(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("the service is away")
    if ctx.attempt == 2:
        raise KeyError("what the service had not written yet")
    return ctx.attempt


@app.agent(max_attempts=3)
async def undecided(ticket: dict) -> str:
    return ticket["nmae"]


@app.agent(retry_programming_errors=False)
async def decided(ticket: dict) -> str:
    return ticket["nmae"]


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings) as system:
        await system.worker(app)
        yield system


async def test_it_fails_at_once_and_is_a_dead_letter(system):
    run = await system.ended(await system.submit("misspelt", {}))
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "programming_error")
    assert run.error.message == "KeyError: 'nmae'"
    [letter] = (await DeadLetters(system.queue).list()).letters
    assert letter.reason == "programming_error"


async def test_an_agent_may_have_them_tried_again(system):
    run = await system.ended(await system.submit("stubborn", {}))
    assert (run.attempt, run.error.kind) == (3, "programming_error")


async def test_one_of_a_later_attempt_is_tried_again(system):
    run = await system.ended(await system.submit("later"))
    assert (run.status, run.result) == (Status.SUCCEEDED, 3)


async def test_a_queue_may_have_them_tried_again_and_an_agent_knows_better(redis, redis_settings):
    async with System(redis_settings, retry_programming_errors=True) as system:
        await system.worker(app)
        assert (await system.ended(await system.submit("undecided", {}))).attempt == 3
        assert (await system.ended(await system.submit("decided", {}))).attempt == 1
