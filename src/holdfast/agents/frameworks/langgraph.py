"""LangGraph graphs: a checkpoint after every superstep, in Holdfast's store, under the run's fence.

After a crash the graph goes on from its last checkpoint; nodes of the superstep that had finished are not run
again. ``interrupt()`` waits without a worker. A worker that leaves hands the run on after a superstep.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import BaseMessageChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command
from pydantic_core import to_jsonable_python

from holdfast.agents.context import scope_of
from holdfast.agents.frameworks.current import entered
from holdfast.agents.frameworks.langgraph_saver import FencedSaver
from holdfast.agents.frameworks.replay import Questions, Replay
from holdfast.errors import HandBack
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

    from langchain_core.runnables import RunnableConfig
    from langgraph.types import Interrupt, StateSnapshot

    from holdfast.agents.context import Context


_NO_STREAM: Final = "No generations found in stream"
"""langchain's message for an empty stream; it has no exception type of its own."""
_FAKE: Final = "generic-fake-chat-model"
"""What langchain's GenericFakeChatModel, and what inherits from it, has as its type."""
_log = get_logger(__name__)


class LangGraphAgent:
    """A LangGraph graph, compiled or not, as an agent of Holdfast.

    ``stream`` names the stream modes whose chunks go to the feed, each as ``{"mode": …, "data": …}``.
    ``config`` is LangGraph's own (``recursion_limit``, ``configurable``, ``callbacks``), and
    ``context(ctx, input)`` makes the graph's runtime context. A checkpointer that the graph was compiled with
    is replaced.
    """

    def __init__(
        self,
        graph: Any,
        *,
        stream: Iterable[str] = ("updates", "messages", "custom"),
        config: RunnableConfig | None = None,
        context: Callable[[Context, Any], Any] | None = None,
    ) -> None:
        self.graph = graph.compile() if hasattr(graph, "compile") else graph
        self.modes = frozenset([stream] if isinstance(stream, str) else stream)
        """The stream modes that new attempts ask for."""
        self._has_streamed = False
        self._config: RunnableConfig = config or {}
        self._context = context

    async def __call__(self, ctx: Context, payload: Any) -> Any:
        """Run the graph, or go on with it; return its output as JSON."""
        rows = await scope_of(ctx).memory.checkpoints()
        saver = None if rows is None else FencedSaver(rows)
        graph = self.graph.copy({"checkpointer": InMemorySaver() if saver is None else saver})
        attempt = _Attempt(self, graph, saver, ctx, payload)
        with entered(ctx):
            return await attempt.run()

    def configured(self, thread: str, ctx: Context) -> RunnableConfig:
        """Return the configuration of a run in a thread."""
        configurable = {**self._config.get("configurable", {}), "thread_id": thread}
        callbacks = _with_handler(self._config.get("callbacks"), _NeedsLease(ctx))
        return cast("RunnableConfig", {**self._config, "configurable": configurable, "callbacks": callbacks})

    def runtime(self, ctx: Context, payload: Any) -> Any:
        """Return the graph's runtime context of a run."""
        return None if self._context is None else self._context(ctx, payload)

    def streamed(self) -> None:
        """Note that a model of the graph can stream."""
        self._has_streamed = True

    def can_not_stream(self) -> None:
        """Ask for no messages, which is what has models stream, unless one has streamed before."""
        if self._has_streamed or "messages" not in self.modes:
            return
        self.modes -= {"messages"}
        _log.warning(
            "a model of the graph can't stream, so its messages come without chunks: "
            "set stream=('updates', 'custom') to avoid this"
        )


class _Attempt:
    """One attempt at a run of a graph."""

    def __init__(
        self, agent: LangGraphAgent, graph: Any, saver: FencedSaver | None, ctx: Context, payload: Any
    ) -> None:
        self._agent = agent
        self._graph = graph
        self._saver = saver
        self._ctx = ctx
        self._payload = payload
        self._thread = ctx.thread_id or ctx.run_id
        self._config = agent.configured(self._thread, ctx)
        self._replay = Replay(ctx, "langgraph")
        self._questions = Questions(self._replay)
        self._modes = agent.modes
        self._output: Any = None

    async def run(self) -> Any:
        """Go on until the graph has ended, however many answers that takes."""
        source = await self._start()
        while True:
            await self._streamed(source)
            snapshot = await self._graph.aget_state(self._config)
            if not snapshot.next and not snapshot.interrupts:
                break
            source = await self._ask(snapshot)
        if self._saver is not None:
            await self._saver.finish(self._thread)
        return _plain(self._output)

    async def _start(self) -> Any:
        """Return what the graph starts with: the input, an answer it waited for, or nothing but its state."""
        if self._saver is None or not await self._saver.began(self._thread):
            return _given(self._payload, self._graph)
        snapshot = await self._graph.aget_state(self._config)
        if snapshot.interrupts:
            # A node that failed after it took its answer still shows the question: it has the answer already.
            asked = await self._replay.get(self._asking(await self._question(snapshot)))
            return None if asked is None else await self._ask(snapshot)
        return await self._ask(snapshot) if self._stops_before(snapshot) else None

    def _stops_before(self, snapshot: StateSnapshot) -> bool:
        """A breakpoint is passed by going on, so it must not look like a crash."""
        stops = self._graph.interrupt_before_nodes
        return bool(snapshot.next) and (stops == "*" or bool(set(stops) & set(snapshot.next)))

    async def _streamed(self, source: Any) -> None:
        """Go on to the next stop; if a model can't stream, from the last checkpoint without streaming."""
        if "messages" not in self._modes:
            return await self._stream(source, self._config)
        callbacks = _with_handler(self._config.get("callbacks"), _StreamsNoFake())
        try:
            return await self._stream(source, {**self._config, "callbacks": callbacks})
        except _FakeCanNotStream:
            _log.info("going on without chunks of messages", run_id=self._ctx.run_id)
        except ValueError as exc:
            if _NO_STREAM not in str(exc):
                raise
            _log.warning(
                "a model's stream was empty: calling it again, without chunks of messages",
                run_id=self._ctx.run_id,
            )
        self._modes -= {"messages"}
        self._agent.can_not_stream()
        return await self._stream(None, self._config)

    async def _stream(self, source: Any, config: RunnableConfig) -> None:
        async with _draining(self._ctx) as control:
            chunks = self._graph.astream(
                source,
                config,
                context=self._agent.runtime(self._ctx, self._payload),
                # The graph's output is the last of its values.
                stream_mode=sorted(self._modes | {"values"}),
                durability="sync",
                control=control,
            )
            try:
                # A run that is cancelled while it writes a chunk would leave its nodes running.
                async with contextlib.aclosing(chunks):  # guard: graph-closed-with-run
                    await self._show(chunks)
            except GraphDrained as exc:
                raise HandBack("its worker is leaving, and the graph is between two supersteps") from exc

    async def _show(self, chunks: AsyncIterator[tuple[str, Any]]) -> None:
        async for mode, chunk in chunks:
            if mode == "values":
                self._output = chunk
            if mode == "messages" and isinstance(chunk[0], BaseMessageChunk):
                self._agent.streamed()
            if mode in self._modes and not _told_before(mode, chunk):
                await self._ctx.stream({"mode": mode, "data": _shown(mode, chunk)})

    async def _ask(self, snapshot: StateSnapshot) -> Any:
        """Wait for the answer to what the graph asks, and return what to go on with."""
        question, pending = await self._question(snapshot), list(snapshot.interrupts)
        if not pending:  # a breakpoint: any answer lets it go on
            await self._questions.ask(question, {"next": list(snapshot.next)}, lambda _: None)
            return None
        await self._replay.put(self._asking(question), b"true")
        answers = await self._questions.ask(question, _asked(pending), lambda answer: _by_id(answer, pending))
        return Command(resume=answers)

    async def _question(self, snapshot: StateSnapshot) -> str:
        """Name a question: a node that asks twice does so at one checkpoint, with one answer more taken."""
        checkpoint = snapshot.config.get("configurable", {})["checkpoint_id"]
        taken = 0 if self._saver is None else await self._saver.answers(self._thread)
        return " ".join([checkpoint, str(taken), *sorted(each.id for each in snapshot.interrupts)])

    def _asking(self, question: str) -> str:
        return self._replay.at(f"asked {question}", 1)


class _NeedsLease(BaseCallbackHandler):
    """Lets no node, model or tool begin without a trusted lease: each has a task of its own."""

    raise_error = True
    run_inline = True

    def __init__(self, ctx: Context) -> None:
        self._scope = scope_of(ctx)

    def _begin(self, *_: Any, **__: Any) -> None:
        self._scope.require_open()  # guard: graph-node-needs-lease

    on_chain_start = on_chat_model_start = on_llm_start = on_tool_start = _begin


class _FakeCanNotStream(ValueError):
    """A graph that streams was about to call a GenericFakeChatModel; LangGraph retries no ValueError."""


class _StreamsNoFake(BaseCallbackHandler):
    """Stops a graph that streams before it calls a GenericFakeChatModel.

    The fake's stream leaves out calls of tools, and the answer that it took them from is not given again.
    """

    raise_error = True
    # An error inline would leave the calls of the handlers after it unawaited.
    run_inline = False

    def on_chat_model_start(
        self, *_: Any, invocation_params: dict[str, Any] | None = None, **__: Any
    ) -> None:
        """Raise before the fake has given an answer."""
        if (invocation_params or {}).get("_type") == _FAKE:  # guard: fake-model-not-streamed
            raise _FakeCanNotStream(
                "GenericFakeChatModel loses answers if it streams: set stream=('updates', 'custom')"
            )


def _with_handler(callbacks: Any, handler: BaseCallbackHandler) -> Any:
    """Add a handler to a graph's own callbacks: a list, a manager, or none."""
    if isinstance(callbacks, BaseCallbackManager):
        callbacks = callbacks.copy()
        callbacks.add_handler(handler)
        return callbacks
    return [*(callbacks or ()), handler]


@contextlib.asynccontextmanager
async def _draining(ctx: Context) -> AsyncGenerator[RunControl]:
    """Give the control that lets a graph stop after its superstep when the worker wants to leave."""
    control = RunControl()

    async def watch() -> None:
        await ctx.wait_draining()
        control.request_drain("the worker is leaving")

    watching = asyncio.create_task(watch())
    try:
        yield control
    finally:
        watching.cancel()


def _given(payload: Any, graph: Any) -> Any:
    """A string is a message to a graph that takes messages."""
    if isinstance(payload, str) and "messages" in graph.channels:
        return {"messages": [{"role": "user", "content": payload}]}
    return payload


def _asked(pending: list[Interrupt]) -> Any:
    if len(pending) == 1:
        return _plain(pending[0].value)
    return {"interrupts": [{"id": each.id, "value": _plain(each.value)} for each in pending]}


def _by_id(answer: Any, pending: list[Interrupt]) -> dict[str, Any]:
    """Read an answer: of several interrupts by their ids, or one for all of them."""
    ids = {each.id for each in pending}
    by_id = cast("dict[str, Any]", answer) if len(pending) > 1 and isinstance(answer, dict) else {}
    return by_id if by_id and set(by_id) <= ids else dict.fromkeys(ids, cast("Any", answer))


def _told_before(mode: str, chunk: Any) -> bool:
    """A node that finished before a crash is told again by LangGraph, when its superstep goes on."""
    return mode == "updates" and bool(chunk.get("__metadata__", {}).get("cached"))


def _shown(mode: str, chunk: Any) -> Any:
    if mode != "messages":
        return _plain(chunk)
    message, metadata = chunk
    node = metadata.get("langgraph_node")
    return {"id": message.id, "type": message.type, "node": node, "content": _plain(message.content)}


def _plain(value: Any) -> Any:
    """Write a value as JSON; what has no JSON is written as its text."""
    return to_jsonable_python(value, fallback=str)
