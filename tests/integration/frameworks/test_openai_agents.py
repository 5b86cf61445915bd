"""OpenAI Agents SDK: responses of models and calls of tools are in the journal, approvals keep the RunState."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import Agent, Model, RunConfig, RunContextWrapper, function_tool, handoff, set_tracing_disabled
from agents.mcp import MCPServer
from agents.models.interface import ModelProvider
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from agents.tool import ToolOutputText
from mcp.types import CallToolResult, TextContent, Tool
from pydantic import BaseModel

from holdfast.agents.frameworks.openai_agents import OpenAIAgent
from holdfast.agents.frameworks.replay import warn_that_it_can_not_stream
from holdfast.errors import InputError, LeaseLost
from holdfast.leases.trust import Trust

set_tracing_disabled(True)


class Crash(Exception):
    pass


class Spoken(Model):
    """Answers by how many tool calls the conversation has; it remembers nothing itself."""

    def __init__(self, *answers: Any, crash: list[int] | None = None, log: list[str] | None = None) -> None:
        self.answers = answers
        self.crash = crash
        self.log = log

    def respond(self, call: Any) -> Any:
        items = [dict(item) for item in call.input] if isinstance(call.input, list) else []
        done = sum(item.get("type") == "function_call_output" for item in items)
        if self.log is not None:
            self.log.append(f"model{done}")
        if self.crash == [done]:
            self.crash.clear()
            raise Crash
        answer = self.answers[done]
        return [assistant_message(str(items[-1].get("output")))] if answer is LAST else answer

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        return await ScriptedModel([ModelStep.respond(self.respond)]).get_response(*args, **kwargs)

    async def stream_response(self, *args: Any, **kwargs: Any):
        async for event in ScriptedModel([ModelStep.respond(self.respond)]).stream_response(*args, **kwargs):
            yield event


LAST = object()


async def twice(attempts, agent, log, crash):
    with pytest.raises(Crash):
        await attempts.run(agent, "go")
    log.clear()
    assert crash == [], "the crash was where it should be"
    return await attempts.run(agent, "go"), log


@pytest.mark.parametrize("stream", [True, False])
async def test_what_was_done_before_a_crash_is_not_done_again(attempts, stream):
    log, crash = [], [1]

    @function_tool
    async def look(x: int) -> dict:
        log.append("look")
        return {"x": x}

    model = Spoken([function_call("look", {"x": 1}, call_id="c1")], LAST, crash=crash, log=log)
    agent = OpenAIAgent(Agent(name="a", model=model, tools=[look]), stream=stream)
    assert await twice(attempts, agent, log, crash) == ("{'x': 1}", ["model1"])


class Whole(Spoken):
    """A model that can't stream, as many of one's own can't."""

    async def stream_response(self, *args: Any, **kwargs: Any):
        raise NotImplementedError
        yield


async def test_a_model_that_can_not_stream_is_asked_for_whole_responses(attempts, log_lines):
    """Fails if the run fails: streaming is the default, and such a model knows nothing of it."""
    warn_that_it_can_not_stream.cache_clear()
    log, crash = [], [1]

    @function_tool
    async def look(x: int) -> dict:
        log.append("look")
        return {"x": x}

    model = Whole([function_call("look", {"x": 1}, call_id="c1")], LAST, crash=crash, log=log)
    agent = OpenAIAgent(Agent(name="a", model=model, tools=[look]))
    assert await twice(attempts, agent, log, crash) == ("{'x': 1}", ["model1"])
    told = [line for line in log_lines() if "can't stream" in line["event"]]
    assert [line["model"] for line in told] == ["Whole"], "once for each kind of model"


async def test_a_model_that_can_not_stream_is_not_asked_after_the_end_of_the_lease(attempts):
    """Fails if the lease is checked only before the model is asked to stream: it may wait before it refuses."""
    lease, log = [float("inf")], []

    class Late(Whole):
        async def stream_response(self, *args: Any, **kwargs: Any):
            lease[0] = 0.0
            raise NotImplementedError
            yield

    agent = OpenAIAgent(Agent(name="a", model=Late(LAST, log=log)))
    with pytest.raises(LeaseLost):
        await attempts.run(agent, "go", trust=Trust(lambda: lease[0]))
    assert log == [], "the model was asked under a lease that had ended"


async def test_a_model_that_streams_asks_nothing_more_after_the_end_of_the_lease(attempts):
    """Fails if only the beginning is checked: a provider that waits between two tries would ask once more."""
    lease, log = [float("inf")], []

    class Tries(Spoken):
        async def stream_response(self, *args: Any, **kwargs: Any):
            lease[0] = 0.0
            await asyncio.sleep(0)
            async for event in super().stream_response(*args, **kwargs):
                yield event

    agent = OpenAIAgent(Agent(name="a", model=Tries(LAST, log=log)))
    with pytest.raises(LeaseLost):
        await attempts.run(agent, "go", trust=Trust(lambda: lease[0]))
    assert log == [], "the model was asked under a lease that had ended"


@pytest.mark.parametrize("stream", [True, False])
async def test_agents_that_hand_off_to_each_other_go_on_after_an_approval(attempts, stream):
    """The RunState names the agent that asked: it is found again among the handoffs, both ways round."""
    log = []

    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        log.append("pay")
        return f"paid {amount}"

    payer = Agent(
        name="payer",
        model=Spoken(None, [function_call("pay", {"amount": 5}, call_id="c2")], LAST, log=log),
        tools=[pay],
    )
    clerk = Agent(
        name="clerk",
        model=Spoken([function_call("transfer_to_payer", {}, call_id="c1")], log=log),
        handoffs=[handoff(payer)],
    )
    payer.handoffs = [clerk]
    agent = OpenAIAgent(clerk, stream=stream)
    asked = await attempts.asks(agent, "go")
    assert asked == {"approvals": [{"id": "c2", "tool": "pay", "args": {"amount": 5}, "agent": "payer"}]}
    attempts.answers.append({"c2": True})
    assert await attempts.run(agent, "go") == "paid 5"
    assert log == ["model0", "model1", "pay", "model2"]
    log.clear()
    assert await attempts.run(agent, "go") == "paid 5", "once more, as if its settle had been lost"
    assert log == []


async def test_models_that_are_named_by_strings_are_journalled_too(attempts):
    log, crash = [], [1]

    @function_tool
    async def look() -> str:
        log.append("look")
        return "seen"

    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            assert model_name == "some-model"
            return Spoken([function_call("look", {}, call_id="c1")], LAST, crash=crash, log=log)

    agent = OpenAIAgent(
        Agent(name="a", model="some-model", tools=[look]), run_config=RunConfig(model_provider=Provider())
    )
    assert await twice(attempts, agent, log, crash) == ("seen", ["model1"])


class Own:
    def __init__(self, name: str) -> None:
        self.name = name


async def test_the_context_is_made_anew_for_each_attempt(attempts):
    @function_tool(needs_approval=True)
    async def who(context: RunContextWrapper[Own]) -> str:
        return context.context.name

    agent = OpenAIAgent(
        Agent(name="a", model=Spoken([function_call("who", {}, call_id="c1")], LAST), tools=[who]),
        context=lambda ctx, payload: Own(f"{ctx.run_id} {payload['for']}"),
    )
    payload = {"for": "Ada", "input": "who?"}
    await attempts.asks(agent, payload)
    attempts.answers.append(True)
    assert await attempts.run(agent, payload) == "run Ada"


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (7, "7"),
        ({"a": 1}, "{'a': 1}"),
        (Odd(), "odd"),
        (ToolOutputText(text="t"), "'text': 't'"),
    ],
)
async def test_the_model_is_shown_the_same_of_a_tool_before_and_after_a_crash(attempts, value, shown):
    crash = [1]

    @function_tool
    async def give() -> Any:
        return value

    model = Spoken([function_call("give", {}, call_id="c1")], LAST, crash=crash)
    agent = Agent(name="a", model=model, tools=[give])
    with pytest.raises(Crash):
        await attempts.run(agent, "go")
    after = await attempts.run(agent, "go")
    assert after == await attempts.run(agent, "go", run_id="in one go")
    assert shown in after


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("value", [{"a": [float("nan")]}, float("-inf")])
async def test_what_json_does_not_have_is_refused_as_a_step_refuses_it(attempts, value, stream):
    @function_tool
    async def give() -> Any:
        return value

    model = Spoken([function_call("give", {}, call_id="c1")], LAST)
    agent = OpenAIAgent(Agent(name="a", model=model, tools=[give]), stream=stream)
    with pytest.raises(InputError, match=r"what tool 'give' gave can't be written as JSON: .*(nan|inf)"):
        await attempts.run(agent, "go")


async def test_an_agent_as_a_tool_is_one_step_and_its_approvals_are_asked_for(attempts):
    log = []

    @function_tool(needs_approval=True)
    async def pay() -> str:
        log.append("pay")
        return "paid"

    inner = Agent(
        name="inner", model=Spoken([function_call("pay", {}, call_id="i1")], LAST, log=log), tools=[pay]
    )
    outer = Agent(
        name="outer",
        model=Spoken([function_call("ask_inner", {"input": "do it"}, call_id="c1")], LAST),
        tools=[inner.as_tool("ask_inner", "asks the other one")],
    )
    asked = await attempts.asks(outer, "go")
    assert [call["tool"] for call in asked["approvals"]] == ["pay"]
    attempts.answers.append(True)
    assert await attempts.run(outer, "go") == "paid"
    assert log.count("pay") == 1
    assert await attempts.run(outer, "go") == "paid"
    assert log.count("pay") == 1


async def test_a_structured_output_becomes_json(attempts):
    class City(BaseModel):
        name: str

    model = Spoken([assistant_message('{"name": "Bern"}')])
    assert await attempts.run(Agent(name="a", model=model, output_type=City), "where?") == {"name": "Bern"}


class FakeServer(MCPServer):
    """A server of tools in this process."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    @property
    def name(self) -> str:
        return "fake"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context=None, agent=None) -> list[Tool]:
        return [Tool(name="look", input_schema={"type": "object", "properties": {}})]

    async def call_tool(self, tool_name, arguments, meta=None) -> CallToolResult:
        self.log.append(tool_name)
        return CallToolResult(content=[TextContent(type="text", text="seen")])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, name, arguments=None) -> Any: ...


async def test_tools_of_mcp_servers_are_called_once_too(attempts):
    log, crash = [], [1]
    model = Spoken([function_call("look", {}, call_id="c1")], LAST, crash=crash, log=log)
    agent = Agent(name="a", model=model, mcp_servers=[FakeServer(log)])
    result, done = await twice(attempts, agent, log, crash)
    assert "seen" in result
    assert done == ["model1"]
