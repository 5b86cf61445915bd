"""Pydantic AI: every request to a model and every call of a tool is in the journal, whatever it gave."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, ToolReturn
from pydantic_ai.exceptions import CallDeferred, ToolFailed
from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from holdfast.agents.frameworks.pydantic_ai import PydanticAIAgent
from holdfast.agents.frameworks.replay import warn_that_it_can_not_stream
from holdfast.errors import InputError, LeaseLost
from holdfast.leases.trust import Trust


class Crash(Exception):
    pass


def scripted(*answers, crash=None, log=None):
    """A model that gives one answer after the other by the length of the conversation."""

    async def stream(messages, _):
        done = sum(isinstance(message, ModelResponse) for message in messages)
        if log is not None:
            log.append(f"model{done}")
        if crash == [done]:
            crash.clear()
            raise Crash
        answer = answers[done]
        if callable(answer):
            answer = answer(messages)
        if isinstance(answer, str):
            for word in answer.split(" "):
                yield word
        else:
            yield dict(enumerate(answer))

    return FunctionModel(stream_function=stream)


def call(tool, arguments="{}", call_id="c1"):
    return DeltaToolCall(tool, arguments, tool_call_id=call_id)


def last(messages):
    return "; ".join(str(part.content) for part in messages[-1].parts)


async def twice(attempts, agent, log, crash, payload="go"):
    """Attempt, crash, attempt again; return what it gives and what was done in the second attempt."""
    with pytest.raises(Crash):
        await attempts.run(agent, payload)
    log.clear()
    assert crash == [], "the crash was where it should be"
    return await attempts.run(agent, payload), log


@pytest.mark.parametrize("falls_back", [False, True], ids=["one", "fallback"])
@pytest.mark.parametrize("words", [0, 1, 2])
async def test_a_model_that_streams_asks_nothing_more_after_the_end_of_the_lease(attempts, words, falls_back):
    """Fails if only the beginning is checked: a provider that waits between two tries would ask once more."""
    lease, log = [float("inf")], []

    async def stream(*_):
        for _ in range(words):
            yield "word "
        lease[0] = 0.0
        await asyncio.sleep(0)
        log.append("asked")
        yield "again"

    model = FunctionModel(stream_function=stream)
    agent = PydanticAIAgent(Agent(FallbackModel(model, TestModel()) if falls_back else model))
    with pytest.raises(LeaseLost):
        await attempts.run(agent, "go", trust=Trust(lambda: lease[0]))
    assert log == [], "the model was asked under a lease that had ended"


async def test_tools_that_run_side_by_side_are_told_apart(attempts):
    log, crash = [], [1]
    calls = [call("look", f'{{"x": {x}}}', f"c{x}") for x in range(3)]
    agent = Agent(scripted(calls, last, crash=crash, log=log))

    @agent.tool_plain
    async def look(x: int) -> int:
        log.append(f"look{x}")
        return x * 10

    assert await twice(attempts, agent, log, crash) == ("0;10;20", ["model1"])


async def test_a_retry_and_a_failure_that_tools_ask_for_are_not_asked_for_again(attempts):
    log, crash = [], [2]
    agent = Agent(
        scripted([call("again", call_id="c1")], [call("fails", call_id="c2")], last, crash=crash, log=log)
    )

    @agent.tool_plain(retries=3)
    async def again() -> str:
        log.append("again")
        raise ModelRetry("write it differently")

    @agent.tool_plain
    async def fails() -> str:
        log.append("fails")
        raise ToolFailed("there is no such thing")

    result, done = await twice(attempts, agent, log, crash)
    assert done == ["model2"]
    assert "thereisnosuchthing" in result


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, None, "ü"]},
        None,
        ToolReturn(return_value="shown", content=["more"], metadata={"kept": True}),
        BinaryContent(b"\x89PNG", media_type="image/png"),
    ],
    ids=["json", "none", "tool return", "image"],
)
async def test_what_a_tool_returned_comes_back_as_it_was(attempts, value):
    crash, seen = [1], []

    def answer(messages):
        seen.append(messages[-1].parts)
        return "done"

    agent = Agent(scripted([call("give")], answer, crash=crash))

    @agent.tool_plain
    async def give():
        return value

    with pytest.raises(Crash):
        await attempts.run(agent, "go")
    await attempts.run(agent, "go")  # from the journal
    await attempts.run(agent, "go", run_id="other")  # in one go
    contents = [[getattr(part, "content", None) for part in parts] for parts in seen]
    assert contents[0] == contents[1]


class Measured(BaseModel):
    value: float


@pytest.mark.parametrize(
    "value",
    [
        {"a": float("nan")},
        float("inf"),
        Measured(value=float("nan")),
        ToolReturn(return_value=[float("nan")]),
    ],
    ids=["json", "number", "model", "tool return"],
)
async def test_what_json_does_not_have_is_refused_as_a_step_refuses_it(attempts, value):
    agent = Agent(scripted([call("give")], last))

    @agent.tool_plain
    async def give():
        return value

    with pytest.raises(InputError, match=r"what tool 'give' gave can't be written as JSON: .*(nan|inf)"):
        await attempts.run(agent, "go")


async def test_a_call_that_is_done_elsewhere_waits_for_its_result(attempts):
    log = []
    agent = Agent(scripted([call("elsewhere", '{"x": 1}')], last, log=log))

    @agent.tool_plain
    async def elsewhere(x: int) -> str:
        raise CallDeferred(metadata={"ticket": x})

    asked = await attempts.asks(agent, "go")
    assert asked == {
        "approvals": [],
        "calls": [{"id": "c1", "tool": "elsewhere", "args": {"x": 1}, "metadata": {"ticket": 1}}],
    }
    attempts.answers.append({"status": "sent"})
    assert "sent" in await attempts.run(agent, "go")
    assert log == ["model0", "model1"]


async def test_an_approval_may_change_the_arguments(attempts):
    agent = Agent(scripted([call("pay", '{"amount": 500}')], last))

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        return f"paid-{amount}"

    await attempts.asks(agent, "go")
    attempts.answers.append({"c1": {"approved": True, "args": {"amount": 5}}})
    assert await attempts.run(agent, "go") == "paid-5"


async def test_dependencies_are_made_for_each_run(attempts):
    agent = Agent(scripted([call("who")], last), deps_type=dict)

    @agent.tool
    async def who(ctx: RunContext[dict]) -> str:
        return f"{ctx.deps['run']}-{ctx.deps['for']}"

    made = PydanticAIAgent(agent, deps=lambda ctx, payload: {"run": ctx.run_id, "for": payload["for"]})
    assert await attempts.run(made, {"for": "Ada"}) == "run-Ada"


async def test_without_streaming_the_journal_is_the_same(attempts):
    log, crash = [], [1]

    async def answer(messages, _):
        done = sum(isinstance(message, ModelResponse) for message in messages)
        log.append(f"model{done}")
        if crash == [done]:
            crash.clear()
            raise Crash
        if done == 0:
            return ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id="c1")])
        return ModelResponse(parts=[TextPart(last(messages))])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    async def look() -> str:
        log.append("look")
        return "seen"

    assert await twice(attempts, PydanticAIAgent(agent, stream=False), log, crash) == ("seen", ["model1"])
    assert attempts.chunks == []


async def test_a_structured_output_becomes_json(attempts):
    class City(BaseModel):
        name: str
        people: int

    agent = Agent(TestModel(custom_output_args={"name": "Bern", "people": 3}), output_type=City)
    assert await attempts.run(agent, "where?") == {"name": "Bern", "people": 3}


async def test_a_second_attempt_sees_the_conversation_as_the_first_one_did(attempts):
    """The thread's messages are written at the end; a worker may die right after that."""
    lengths = []

    def count(messages):
        lengths.append(len(messages))
        return "ok"

    agent = Agent(scripted(count, count))
    for _ in range(2):  # the same run twice, as if its settle had been lost
        await attempts.run(agent, "one", thread_id="t")
    await attempts.run(agent, "two", thread_id="t", run_id="next")
    assert lengths == [1, 3]


async def test_a_model_that_can_not_stream_is_asked_without_and_that_is_logged_once(attempts, log_lines):
    """The mistake: a model that works by itself failed because it was asked to stream."""
    warn_that_it_can_not_stream.cache_clear()
    asked = []

    def answer(messages, _):
        asked.append(len(messages))
        return ModelResponse([TextPart("all at once")])

    agent = Agent(FunctionModel(answer))
    assert await attempts.run(agent, "go") == "all at once"
    assert await attempts.run(agent, "go") == "all at once"
    assert len(asked) == 1, "the second attempt has the answer from the journal"
    warned = [line for line in log_lines() if "can't stream" in line["event"]]
    assert [line["model"] for line in warned] == ["FunctionModel"]
