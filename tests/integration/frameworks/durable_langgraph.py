"""A graph: first, then two nodes side by side, then one that asks, then the last."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

from durable_tools import first_tool, pay_tool, slow_tool, write
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from holdfast import App

app = App("langgraph")


class Work(TypedDict, total=False):
    prompt: str
    seen: Annotated[list[str], operator.add]


async def first_node(_: Work) -> Work:
    model = FakeListChatModel(responses=["look around"])
    write("model0")
    await model.ainvoke("what next?")
    return {"seen": [await first_tool()]}


async def beside_node(_: Work) -> Work:
    write("beside")
    return {"seen": ["beside"]}


async def slow_node(state: Work) -> Work:
    return {"seen": [await slow_tool()] if "slow" in state["prompt"] else []}


async def pay_node(state: Work) -> Work:
    if "pay" not in state["prompt"]:
        return {}
    approved = interrupt({"approve": 5})
    return {"seen": [await pay_tool(5) if approved else "not paid"]}


async def last_node(_: Work) -> Work:
    write("last")
    return {"seen": ["last"]}


graph = StateGraph(Work)
graph.add_node("first", first_node)
graph.add_node("beside", beside_node)
graph.add_node("slow", slow_node)
graph.add_node("pay", pay_node)
graph.add_node("last", last_node)
graph.add_edge(START, "first")
graph.add_edge("first", "beside")
graph.add_edge("first", "slow")
graph.add_edge(["beside", "slow"], "pay")
graph.add_edge("pay", "last")
app.register("langgraph", graph)
