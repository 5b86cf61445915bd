"""An agent of the OpenAI Agents SDK: responses and tool calls happen once; a payment needs approval.

pip install 'holdfast[openai-agents]'   # once it is published; in a clone `make setup` has it
holdfast dev examples/openai_agents_agent.py
holdfast submit clerk '"pay the electrician"' --follow
holdfast runs resume RUN_ID true
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import Agent, Model, function_tool, handoff, set_tracing_disabled
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from holdfast import App

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

set_tracing_disabled(disabled=True)  # this example is offline
app = App("openai-agents")


class Pretend(Model):
    """Stand in for a real model: gives the answer that belongs to the state of the conversation."""

    def _respond(self, call: ModelCall) -> Any:
        results = [item for item in call.input if item.get("type") == "function_call_output"]
        if len(results) == 0:
            return [function_call("find_invoice", {"name": "electrician"}, call_id="call-1")]
        if len(results) == 1:
            return [function_call("transfer_to_cashier", {}, call_id="call-2")]
        if len(results) == 2:
            return [function_call("pay", {"invoice": "I-12"}, call_id="call-3")]
        return [assistant_message(f"Done: {results[-1]['output']}")]

    async def get_response(self, *args: Any, **options: Any) -> Any:
        return await ScriptedModel([ModelStep.respond(self._respond)]).get_response(*args, **options)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        model = ScriptedModel([ModelStep.respond(self._respond)])
        async for event in model.stream_response(*args, **options):
            yield event


@function_tool
async def find_invoice(name: str) -> dict[str, Any]:
    """Look an invoice up."""
    return {"invoice": "I-12", "of": name, "amount": 80}


@function_tool(needs_approval=True)
async def pay(invoice: str) -> str:
    """Pay an invoice."""
    return f"{invoice} is paid"


cashier = Agent(name="cashier", model=Pretend(), instructions="You pay.", tools=[pay])
clerk = Agent(
    name="clerk",
    model=Pretend(),
    instructions="You look after invoices.",
    tools=[find_invoice],
    handoffs=[handoff(cashier)],
)

app.register("clerk", clerk, timeout="1h", description="Finds invoices; payments need approval.")
