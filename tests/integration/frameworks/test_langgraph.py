"""LangGraph: what graphs can do, they can do as agents of Holdfast."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, TypedDict

import pytest
from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.language_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send, interrupt

from holdfast import App
from holdfast.agents.context import scope_of
from holdfast.agents.frameworks import adapt, current_context
from holdfast.agents.frameworks.langgraph import LangGraphAgent
from holdfast.errors import AppError, LeaseLost
from holdfast.leases.trust import Trust


class Seen(TypedDict, total=False):
    n: int
    seen: Annotated[list, operator.add]


class Crash(Exception):
    pass


def line(*nodes, **compiled):
    """A graph of functions one after the other."""
    graph = StateGraph(Seen)
    before = START
    for node in nodes:
        name = getattr(node, "__name__", "inner")
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.compile(**compiled) if compiled else graph


async def test_a_builder_a_compiled_graph_and_one_with_a_checkpointer_all_work(attempts):
    async def one(_):
        return {"seen": ["one"]}

    graphs = [line(one), line(one).compile(), line(one, checkpointer=InMemorySaver())]
    results = [
        await attempts.run(graph, {"n": number}, run_id=f"run-{number}")
        for number, graph in enumerate(graphs)
    ]
    assert results == [{"n": number, "seen": ["one"]} for number in range(3)]
    assert (await attempts.store.sizes())["fences"] == 3, "each kept its checkpoints in the store"


@pytest.mark.parametrize("kind", ["async", "sync", "subgraph", "callbacks"])
async def test_no_node_begins_after_the_end_of_the_lease(attempts, kind):
    """Without chunks, nothing but the node itself looks at the lease."""
    lease, begun = [float("inf")], []

    async def frozen(_):
        lease[0] = 0.0
        return {}

    async def charge(_):
        begun.append(1)

    def charge_in_a_thread(_):
        begun.append(1)

    last = charge_in_a_thread if kind == "sync" else charge
    graph = line(line(frozen, last).compile()) if kind == "subgraph" else line(frozen, last)
    callbacks = AsyncCallbackManager([]) if kind == "callbacks" else None
    agent = LangGraphAgent(graph, stream=(), config={"callbacks": callbacks})
    with pytest.raises(LeaseLost):
        await attempts.run(agent, {"n": 1}, trust=Trust(lambda: lease[0]))
    assert begun == []


async def test_sync_nodes_run_beside_the_loop_and_know_their_run(attempts):
    def one(_):
        return {"seen": [current_context().run_id]}

    assert await attempts.run(line(one), {"n": 1}) == {"n": 1, "seen": ["run"]}


def test_only_a_node_or_a_tool_has_a_current_run():
    with pytest.raises(AppError, match="outside of a run"):
        current_context()


async def test_a_finished_run_that_is_attempted_again_only_tells_its_result(attempts):
    """Its worker died after the last checkpoint and before the settle."""
    done = []

    async def one(_):
        done.append("one")
        return {"seen": [1]}

    graph = line(one)
    assert await attempts.run(graph, {"n": 1}) == await attempts.run(graph, {"n": 1})
    assert done == ["one"]


async def test_a_node_that_asks_twice_the_same_gets_two_answers(attempts):
    async def ask(_):
        return {"seen": [interrupt("sure?"), interrupt("sure?")]}

    graph = line(ask)
    assert await attempts.asks(graph, {"n": 1}) == "sure?"
    attempts.answers.append("first")
    assert await attempts.asks(graph, {"n": 1}) == "sure?"
    attempts.answers.append(None)
    assert (await attempts.run(graph, {"n": 1}))["seen"] == ["first", None]


async def test_an_answer_that_was_taken_before_a_crash_is_taken_again(attempts):
    crash = [True]

    async def ask(_):
        answer = interrupt("sure?")
        if crash:
            raise Crash
        return {"seen": [answer]}

    async def again(_):
        return {"seen": [interrupt("and now?")]}

    graph = line(ask, again)
    await attempts.asks(graph, {"n": 1})
    attempts.answers.append({})
    with pytest.raises(Crash):
        await attempts.run(graph, {"n": 1})
    crash.clear()
    assert await attempts.asks(graph, {"n": 1}) == "and now?"
    attempts.answers.append("yes")
    assert (await attempts.run(graph, {"n": 1}))["seen"] == [{}, "yes"]


@pytest.mark.parametrize("answer", ["each", "all", "one by one"])
async def test_several_interrupts_at_once_are_answered_by_their_ids_or_together(attempts, answer):
    async def ask(state):
        return {"seen": [f"{state['n']}={interrupt(state['n'])}"]}

    graph = StateGraph(Seen)
    graph.add_node("ask", ask)
    graph.add_conditional_edges(START, lambda _: [Send("ask", {"n": n}) for n in (1, 2)], ["ask"])
    asked = await attempts.asks(graph, {"n": 0})
    ids = {each["value"]: each["id"] for each in asked["interrupts"]}
    if answer == "each":
        attempts.answers.append({ids[1]: "a", ids[2]: "b"})
    elif answer == "all":
        attempts.answers.append("b")
    else:
        attempts.answers.append({ids[1]: "a"})
        assert await attempts.asks(graph, {"n": 0}) == 2
        attempts.answers.append("b")
    seen = (await attempts.run(graph, {"n": 0}))["seen"]
    assert seen == (["1=b", "2=b"] if answer == "all" else ["1=a", "2=b"])


async def test_a_graph_inside_a_graph_asks_and_leaves_nothing_behind(attempts):
    done = []

    async def before(_):
        done.append("before")
        return {"n": 1}

    async def ask(_):
        return {"n": interrupt("inside")}

    graph = StateGraph(Seen)
    graph.add_node("inner", line(before, ask).compile())
    graph.add_edge(START, "inner")
    assert await attempts.asks(graph, {"n": 0}) == "inside"
    attempts.answers.append(7)
    assert (await attempts.run(graph, {"n": 0}))["n"] == 7
    assert done == ["before"]
    rows = await (await scope_of(attempts.context()).memory.checkpoints()).select(None)
    assert [row.ns for row in rows] == [""]


async def test_a_breakpoint_waits_for_any_answer_also_after_a_crash(attempts):
    done = []

    async def one(_):
        done.append("one")
        return {"seen": [1]}

    async def two(_):
        done.append("two")
        return {"seen": [2]}

    graph = line(one, two, interrupt_before=["two"])
    for _ in range(2):
        assert await attempts.asks(graph, {"n": 1}) == {"next": ["two"]}
    attempts.answers.append("go on")
    assert (await attempts.run(graph, {"n": 1}))["seen"] == [1, 2]
    assert done == ["one", "two"]


async def test_the_stream_modes_that_are_asked_for_become_chunks(attempts):
    from langgraph.config import get_stream_writer

    async def speak(_):
        get_stream_writer()({"progress": 1})
        model = FakeListChatModel(responses=["hello you"])
        return {"messages": [await model.ainvoke("hi")]}

    graph = StateGraph(MessagesState)
    graph.add_node("speak", speak)
    graph.add_edge(START, "speak")
    await attempts.run(graph, "hi", run_id="default")
    modes = {chunk["mode"] for chunk in attempts.chunks}
    assert modes == {"updates", "messages", "custom"}
    words = [chunk["data"] for chunk in attempts.chunks if chunk["mode"] == "messages"]
    assert "".join(word["content"] for word in words) == "hello you"
    assert {word["node"] for word in words} == {"speak"}
    attempts.chunks.clear()
    result = await attempts.run(LangGraphAgent(graph, stream="custom"), "hi", run_id="custom")
    assert attempts.chunks == [{"mode": "custom", "data": {"progress": 1}}]
    assert [message["content"] for message in result["messages"]] == ["hi", "hello you"]
    attempts.chunks.clear()
    await attempts.run(LangGraphAgent(graph, stream=()), "hi", run_id="none")
    assert attempts.chunks == []


async def test_configuration_and_context_reach_the_nodes(attempts):
    async def one(_, config, runtime):
        return {"seen": [config["configurable"]["flavour"], runtime.context]}

    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime

    one.__annotations__.update(config=RunnableConfig, runtime=Runtime)
    graph = StateGraph(Seen, context_schema=dict)
    graph.add_node("one", one)
    graph.add_edge(START, "one")
    agent = LangGraphAgent(
        graph,
        config={"configurable": {"flavour": "mint"}, "recursion_limit": 3},
        context=lambda ctx, payload: {"run": ctx.run_id, "n": payload["n"]},
    )
    assert (await attempts.run(agent, {"n": 4}))["seen"] == ["mint", {"run": "run", "n": 4}]


async def test_the_functional_api_is_a_graph_too(attempts):
    done = []

    @task
    async def work(n: int) -> int:
        done.append(n)
        return n * 2

    @entrypoint()
    async def flow(n: int) -> dict:
        doubled = await work(n)
        return {"doubled": doubled, "answer": interrupt("sure?")}

    assert await attempts.asks(flow, 4) == "sure?"
    attempts.answers.append("yes")
    assert await attempts.run(flow, 4) == {"doubled": 8, "answer": "yes"}
    assert done == [4], "a finished task is not done again"


def test_a_registered_graph_is_an_async_agent():
    async def one(_):
        return {"seen": []}

    spec = App("a").register("graph", line(one))
    assert (spec.is_async, spec.wants_context, spec.wants_input) == (True, True, True)


def test_what_belongs_to_no_framework_is_left_alone():
    assert adapt(lambda: None) is None
    assert adapt(object()) is None


def test_an_agent_of_ones_own_is_taken_for_nobody_elses():
    agent = type("Agent", (), {"__module__": "agents", "__call__": lambda self, ctx: None})()
    assert adapt(agent) is None
    assert App("a").register("own", agent).call is agent


SILENT = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c1"}])
"""A message that the fake models can't stream: they send no chunk of it."""


class Silent(GenericFakeChatModel):
    """A model of its own type, which streams text, and nothing of a call of a tool."""

    @property
    def _llm_type(self) -> str:
        return "silent"


def asking(model, before=None):
    """A graph that asks a model once."""

    async def ask(state):
        if before is not None:
            await before()
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")


async def test_a_model_that_can_not_stream_is_asked_without_and_that_is_logged_once(attempts, log_lines):
    """The mistake: a graph that works by itself failed because its model was made to stream."""
    agent = LangGraphAgent(asking(Silent(messages=iter([SILENT] * 5))))
    for run_id in ("first", "second"):
        given = await attempts.run(agent, "go", run_id=run_id)
        assert [message["type"] for message in given["messages"]] == ["human", "ai"]
    assert len([line for line in log_lines() if "can't stream" in line["event"]]) == 1
    assert {chunk["mode"] for chunk in attempts.chunks} == {"updates"}


async def test_two_runs_at_once_whose_model_can_not_stream_both_succeed(attempts, log_lines):
    """The mistake: the first fallback ended streaming for all, and the other run took its error for another."""
    both, first_tries = asyncio.Barrier(2), iter(range(2))

    async def together():
        if next(first_tries, None) is not None:
            await both.wait()

    agent = LangGraphAgent(asking(Silent(messages=iter([SILENT] * 4)), together))
    given = await asyncio.gather(*(attempts.run(agent, "go", run_id=run_id) for run_id in ("a", "b")))
    assert [[message["type"] for message in each["messages"]] for each in given] == [["human", "ai"]] * 2
    assert len([line for line in log_lines() if "can't stream" in line["event"]]) == 1


async def test_one_empty_stream_does_not_end_streaming_for_later_runs(attempts, log_lines):
    answers = [AIMessage("hello you", id="m"), SILENT, SILENT, AIMessage("good day", id="n")]
    agent = LangGraphAgent(asking(Silent(messages=iter(answers))))
    for run_id in ("streams", "is-silent", "streams-again"):
        await attempts.run(agent, "go", run_id=run_id)
    words = [chunk["data"]["content"] for chunk in attempts.chunks if chunk["mode"] == "messages"]
    assert "".join(words) == "hello yougood day"
    assert not [line for line in log_lines() if "can't stream" in line["event"]]


class Bound(GenericFakeChatModel):
    """The fake as tests of graphs with tools inherit from it."""

    def bind_tools(self, tools, **kwargs):
        return self


def shipping(model):
    """A graph that calls a tool when its model asks for one, and the list of what the tool did."""
    shipped = []

    def ship(order: str) -> str:
        """Ship an order."""
        shipped.append(order)
        return "done"

    async def call(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node("call", call).add_node("tools", ToolNode([ship]))
    graph.add_edge(START, "call").add_conditional_edges("call", tools_condition).add_edge("tools", "call")
    return graph, shipped


@pytest.mark.parametrize("text", ["", "let me see"])
@pytest.mark.parametrize("fake", [GenericFakeChatModel, Bound])
async def test_a_fake_model_that_calls_a_tool_loses_no_answer_to_a_try_at_streaming(
    attempts, fake, text, log_lines
):
    """The mistakes: a stream without chunks took the first answer, and one of text alone left out the tool."""
    asks = AIMessage(text, tool_calls=[{"name": "ship", "args": {"order": "7"}, "id": "c1"}])
    answers = [answer.model_copy() for _ in range(3) for answer in (asks, AIMessage("It is shipped."))]
    graph, shipped = shipping(fake(messages=iter(answers)))
    agent = LangGraphAgent(graph)
    for run_id in ("first", "second", "third"):
        given = await attempts.run(agent, "ship 7", run_id=run_id)
        assert [message["type"] for message in given["messages"]] == ["human", "ai", "tool", "ai"]
    assert shipped == ["7"] * 3
    assert len([line for line in log_lines() if "can't stream" in line["event"]]) == 1


async def test_a_fake_model_loses_no_answer_beside_a_model_that_streams(attempts):
    """Runs go on streaming then, so each of them has to find out before it calls the fake."""
    asks = AIMessage("", tool_calls=[{"name": "ship", "args": {"order": "7"}, "id": "c1"}])
    fake = GenericFakeChatModel(messages=iter([asks, AIMessage("It is shipped.")] * 3))
    graph, shipped = shipping(fake)

    async def greet(_):
        return {"messages": [await FakeListChatModel(responses=["hello"]).ainvoke("hi")]}

    whole = StateGraph(MessagesState).add_node("greet", greet).add_node("ship", graph.compile())
    whole.add_edge(START, "greet").add_edge("greet", "ship")
    agent = LangGraphAgent(whole)
    for run_id in ("first", "second", "third"):
        await attempts.run(agent, "ship 7", run_id=run_id)
    assert shipped == ["7"] * 3
    words = [chunk["data"]["content"] for chunk in attempts.chunks if chunk["mode"] == "messages"]
    assert "".join(words) == "hello" * 3
