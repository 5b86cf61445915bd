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

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        return await ScriptedModel([ModelStep.respond(respond)]).get_response(*args, **kwargs)

    async def stream_response(self, *args: Any, **kwargs: Any):
        async for event in ScriptedModel([ModelStep.respond(respond)]).stream_response(*args, **kwargs):
            yield event


app.register(
    "openai_agents",
    Agent(
        name="worker",
        model=Scripted(),
        tools=[
            function_tool(first_tool, name_override="first"),
            function_tool(slow_tool, name_override="slow"),
            function_tool(pay_tool, name_override="pay", needs_approval=True),
        ],
    ),
)
