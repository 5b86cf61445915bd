"""An agent of the OpenAI Agents SDK whose model follows the plan in the prompt."""

from __future__ import annotations

from typing import Any

from agents import Agent, Model, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from durable_tools import first_tool, pay_tool, plan, slow_tool, write

from holdfast import App

app = App("openai-agents")

set_tracing_disabled(True)


def respond(call: Any) -> Any:
    items = [dict(item) for item in call.input]
    prompts = [item["content"] for item in items if item.get("role") == "user"]
    last = max(at for at, item in enumerate(items) if item.get("role") == "user")
    done = sum(item.get("type") == "function_call_output" for item in items[last:])
    write(f"model{done}")
    tools = plan(str(prompts[-1]))
    if done < len(tools):
        arguments = {"amount": 5} if tools[done] == "pay" else {}
        return [function_call(tools[done], arguments, call_id=f"call-{len(prompts)}-{done}")]
    return [assistant_message(f"{len(prompts)}: {items[-1].get('output')}")]


class Scripted(Model):
    """Answers each call by the conversation, like a real model: it remembers nothing itself."""

    respond = staticmethod(respond)

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        return await ScriptedModel([ModelStep.respond(self.respond)]).get_response(*args, **kwargs)

    async def stream_response(self, *args: Any, **kwargs: Any):
        async for event in ScriptedModel([ModelStep.respond(self.respond)]).stream_response(*args, **kwargs):
            yield event


worker = Agent(
    name="worker",
    model=Scripted(),
    tools=[
        function_tool(first_tool, name_override="first"),
        function_tool(slow_tool, name_override="slow"),
        function_tool(pay_tool, name_override="pay", needs_approval=True),
    ],
)
app.register("openai_agents", worker)


def delegate(call: Any) -> Any:
    """Hand the prompt on to the worker, and tell what it said."""
    items = [dict(item) for item in call.input]
    told = [item["output"] for item in items if item.get("type") == "function_call_output"]
    write(f"boss{len(told)}")
    if told:
        return [assistant_message(f"it said {told[-1]}")]
    return [function_call("ask_worker", {"input": str(items[-1]["content"])}, call_id="ask-1")]


class Boss(Scripted):
    """Delegates everything."""

    respond = staticmethod(delegate)


app.register(
    "openai_nested", Agent(name="boss", model=Boss(), tools=[worker.as_tool("ask_worker", "Does the work.")])
)
