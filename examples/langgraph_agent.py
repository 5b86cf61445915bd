"""A LangGraph graph as an agent: a checkpoint after every superstep, and an approval with ``interrupt()``.

pip install 'holdfast[langgraph]'   # once it is published; in a clone `make setup` has it
holdfast dev examples/langgraph_agent.py
holdfast submit writer '{"topic": "lighthouses"}' --follow
holdfast runs resume RUN_ID '"publish"'
"""

from __future__ import annotations

from typing import TypedDict

from langchain_core.language_models import FakeListChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from holdfast import App

app = App("langgraph")


class Article(TypedDict, total=False):
    """What the nodes pass on."""

    topic: str
    draft: str
    published: bool


def model_for(topic: str) -> FakeListChatModel:
    """Stand in for a real chat model: always the same text, letter by letter."""
    return FakeListChatModel(responses=[f"All there is to know about {topic}."])


async def write(article: Article) -> Article:
    answer = await model_for(article["topic"]).ainvoke(f"Write about {article['topic']}")
    return {"draft": str(answer.content)}


async def review(article: Article) -> Article:
    """Wait for an editor, without holding a worker."""
    verdict = interrupt({"draft": article["draft"], "answers": ["publish", "reject"]})
    return {"published": verdict == "publish"}


builder = StateGraph(Article)
builder.add_node("write", write)
builder.add_node("review", review)
builder.add_edge(START, "write")
builder.add_edge("write", "review")
builder.add_edge("review", END)

app.register("writer", builder.compile(), timeout="1h", description="Writes an article and has it reviewed.")
