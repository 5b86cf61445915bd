"""An agent of Pydantic AI whose model follows the plan in the prompt."""

from __future__ import annotations

from typing import Any

from durable_tools import first_tool, pay_tool, plan, slow_tool, write
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from holdfast import App

app = App("pydantic-ai")


async def model(messages: list[Any], _: Any):
    asked = [m for m in messages if isinstance(m, ModelRequest)]
    prompts = [p.content for m in asked for p in m.parts if isinstance(p, UserPromptPart)]
    last = max(at for at, m in enumerate(messages) if any(isinstance(p, UserPromptPart) for p in m.parts))
    done = sum(isinstance(m, ModelResponse) for m in messages[last:])
    write(f"model{done}")
    tools = plan(prompts[-1])
    if done < len(tools):
        arguments = '{"amount": 5}' if tools[done] == "pay" else "{}"
        yield {0: DeltaToolCall(tools[done], arguments, tool_call_id=f"call-{len(prompts)}-{done}")}
        return
    yield f"{len(prompts)}: "
    yield ", ".join(str(p.content) for p in messages[-1].parts)


agent = Agent(FunctionModel(stream_function=model))
agent.tool_plain(first_tool, name="first")
agent.tool_plain(slow_tool, name="slow")
agent.tool_plain(pay_tool, name="pay", requires_approval=True)
app.register("pydantic_ai", agent)
