"""A Pydantic AI agent: every request to the model and every tool call happens once; a refund needs approval.

pip install 'holdfast[pydantic-ai]'   # once it is published; in a clone `make setup` has it
holdfast dev examples/pydantic_ai_agent.py
holdfast submit support '"refund order 7"' --follow
holdfast runs resume RUN_ID true
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import App, current_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic_ai.models.function import DeltaToolCalls

app = App("pydantic-ai")


async def pretend(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Stand in for a real model: looks the order up, refunds it, and tells."""
    answered = sum(isinstance(message, ModelResponse) for message in messages)
    if answered == 0:
        yield {0: DeltaToolCall("find_order", '{"number": 7}', tool_call_id="call-1")}
    elif answered == 1:
        yield {0: DeltaToolCall("refund", '{"number": 7, "amount": 30}', tool_call_id="call-2")}
    else:
        results = [part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        for word in f"Done: {results[0]}".split(" "):
            yield f"{word} "


agent = Agent(FunctionModel(stream_function=pretend), instructions="You help customers with their orders.")


@agent.tool_plain
async def find_order(number: int) -> dict[str, int]:
    """Look an order up."""
    return {"number": number, "paid": 30}


@agent.tool_plain(requires_approval=True)
async def refund(number: int, amount: int) -> str:
    """Pay money back, under a key that is the same on every attempt."""
    return f"{amount} for order {number} under {current_context().idempotency_key('refund')}"


app.register("support", agent, timeout="1h", description="Answers customers; refunds need approval.")
