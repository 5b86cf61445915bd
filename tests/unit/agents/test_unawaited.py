"""A coroutine that nobody awaited is named to whoever forgot it, and does not warn about our own lines."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import InputError
from holdfast.agents.outcome import Failed
from holdfast.agents.steps import as_json
from holdfast.runs.message import encode_value


@pytest.fixture
def warned(recwarn):
    """What is warned of in this test; not what the collector finds of earlier ones."""
    gc.collect()
    recwarn.clear()
    return recwarn


async def make_plan(topic: str = "") -> str:
    return topic


@dataclass
class Plan:
    text: Any


@pytest.mark.parametrize("write", [encode_value, as_json])
@pytest.mark.parametrize(
    ("around", "place"),
    [
        (lambda it: it, ""),
        (lambda it: {"plan": it}, r" at \$\.plan"),
        (lambda it: [1, {"plans": (it,)}], r" at \$\[1\]\.plans\[0\]"),
        (Plan, r" at \$\.text"),
    ],
)
def test_a_result_with_a_coroutine_asks_for_await(warned, write, around, place):
    said = rf"the result holds the coroutine make_plan{place}: did you forget await\?"
    with pytest.raises(InputError, match=said):
        write(around(make_plan()), "the result")
    gc.collect()
    assert not warned.list


def test_what_holds_itself_is_refused_as_before():
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(InputError, match="the result can't be written as JSON"):
        encode_value(ring, "the result")


async def test_a_step_that_got_a_call_asks_for_the_function(warned, ctx):
    said = r"pass the function, not its call: ctx\.step\('plan', make_plan, \.\.\.\)"
    with pytest.raises(InputError, match=said):
        await ctx.step("plan", make_plan("x"))
    with pytest.raises(InputError, match=r"got a dict: .* ctx\.step\('plan', function, \.\.\.\)"):
        await ctx.step("plan", {"a": 1})
    assert await ctx.step("plan", make_plan, "x") == "x"
    gc.collect()
    assert not warned.list


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (lambda ctx: ctx.step("plan", make_plan("x")), "pass the function, not its call"),
        (lambda ctx: ctx.step("plan", make_plan, "x"), "a sync agent can't await"),
    ],
)
async def test_a_step_of_a_sync_agent_is_told_what_it_takes(warned, invocation, agent, said):
    outcome = await invocation(agent).run()
    assert isinstance(outcome, Failed)
    assert said in outcome.failure.message
    gc.collect()
    assert not warned.list
