"""Agents of other frameworks, each in a process of its own."""

from __future__ import annotations

import os
from typing import TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from pydantic_ai import Agent
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from holdfast import App

app = App("frameworks")


class Work(TypedDict, total=False):
    worker: int
    first: int
    answer: str


async def first(given: Work) -> Work:
    return {"first": os.getpid()}


async def ask(given: Work) -> Work:
    return {"answer": interrupt("go on?")}


graph = StateGraph(Work)
graph.add_node("first", first)
graph.add_node("ask", ask)
graph.add_edge(START, "first")
graph.add_edge("first", "ask")
app.register("graph", graph, isolation="process")


async def model(messages, _):
    if len(messages) == 1:
        yield {0: DeltaToolCall("where", "{}", tool_call_id="call")}
    else:
        yield str(messages[-1].parts[0].content)


agent = Agent(FunctionModel(stream_function=model))


@agent.tool_plain
async def where() -> str:
    return str(os.getpid())


app.register("model", agent, isolation="process")
