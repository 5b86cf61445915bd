"""The journal between the OpenAI Agents SDK and its models and tools: each is called once.

An agent is cloned for a run, with everything it can hand off to, and the clones go through the run's journal.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import time
import weakref
from typing import TYPE_CHECKING, Any, cast

import msgspec
from agents import Agent, FunctionTool, Handoff, Model, ModelProvider
from agents.agent_tool_state import drop_agent_tool_run_result, get_agent_tool_state_scope
from agents.items import ModelResponse
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemDoneEvent,
    ResponseUsage,
)
from pydantic import TypeAdapter

from holdfast.agents.frameworks.replay import warn_that_it_can_not_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from agents import RunContextWrapper
    from agents.items import TResponseStreamEvent
    from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
    from agents.tool import Tool
    from agents.tool_context import ToolContext

    from holdfast.agents.frameworks.replay import Replay

_responses = TypeAdapter(ModelResponse)
_STRUCTURED = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)


class Journalling:
    """Clones the agents of one run."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._clones: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return a clone whose models, tools and handoffs go through the journal; always the same one."""
        if id(agent) in self._clones:
            return self._clones[id(agent)][1]
        model = JournalledModel(agent.model, self._replay) if isinstance(agent.model, Model) else agent.model
        tools = _tools(agent.tools, self._replay)
        clone = agent.clone(model=model, model_settings=agent.model_settings, tools=tools)
        # Before its handoffs: two agents may hand off to each other.
        self._clones[id(agent)] = self._clones[id(clone)] = (agent, clone)
        clone.handoffs = [
            self.agent(each) if isinstance(each, Agent) else self._handoff(each) for each in agent.handoffs
        ]
        # Tools of MCP servers are made anew for each turn.
        mcp_tools = functools.partial(_mcp_tools, clone.get_mcp_tools, self._replay)
        clone.get_mcp_tools = mcp_tools  # pyright: ignore[reportAttributeAccessIssue]
        return clone

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Any:
            return self.agent(await handoff.on_invoke_handoff(context, arguments))

        clone = copy.copy(handoff)
        clone.on_invoke_handoff = invoke
        # By this the SDK finds the agents of a state by their names.
        target = handoff._agent_ref and handoff._agent_ref()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if isinstance(target, Agent):
            found: Any = weakref.ref(self.agent(cast("Agent[Any]", target)))
            clone._agent_ref = found  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return clone


async def _mcp_tools(
    get: Callable[[RunContextWrapper[Any]], Awaitable[list[Tool]]],
    replay: Replay,
    context: RunContextWrapper[Any],
) -> list[Tool]:
    return _tools(await get(context), replay)


def _tools(tools: list[Tool], replay: Replay) -> list[Tool]:
    return [_tool(tool, replay) if isinstance(tool, FunctionTool) else tool for tool in tools]


def _tool(tool: FunctionTool, replay: Replay) -> FunctionTool:
    """Return a tool that is called once per call of the model; its errors are results for the model too."""
    clone = copy.copy(tool)
    invoke = clone.on_invoke_tool

    async def invoke_once(context: ToolContext[Any], arguments: str) -> Any:
        name = replay.name(f"tool:{tool.name}:{context.tool_call_id}")
        known = await replay.get(name)
        if known is None:
            value = await replay.leased(functools.partial(invoke, context, arguments))
            if value is None and tool._is_agent_tool:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                return value  # it waits for an approval inside
            known = replay.written(_plain(value), tool.name)  # guard: openai-tool-value-json
            await replay.put(name, known)
        elif context.tool_call is not None:
            # Else the SDK would take an agent as a tool for one that still waits for its approval.
            drop_agent_tool_run_result(context.tool_call, scope_id=get_agent_tool_state_scope(context))
        return msgspec.json.decode(known)

    clone.on_invoke_tool = invoke_once
    return clone


def _plain(value: Any) -> Any:
    """What the model would be shown of a result, as JSON: the SDK takes the text of what it does not know."""
    if isinstance(value, _STRUCTURED):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list):
        return [_plain(each) for each in cast("list[Any]", value)]
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError):
        return str(value)
    return cast("Any", value) if isinstance(value, str | int | float | dict) else str(value)


_OPTIONAL = frozenset({"id", "status", "provider_data"})


def _named(kind: str, args: Any, kwargs: Any) -> str:
    """Name a request by what is asked, not by its turn: a tool that is done skips the requests inside it."""
    instructions = args[0] if args else kwargs.get("system_instructions")
    asked = args[1] if len(args) > 1 else kwargs.get("input")
    text = msgspec.json.encode(_essence([instructions, asked]), order="sorted")
    return f"{kind}:{hashlib.sha256(text).hexdigest()[:24]}"


def _essence(value: Any) -> Any:
    """What is asked, however it is written: an item from the journal has other optional fields."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {
            str(key): _essence(each) for key, each in items if key not in _OPTIONAL and each not in (None, [])
        }
    if isinstance(value, list | tuple):
        return [_essence(each) for each in cast("list[Any]", value)]
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__


class JournalledModel(Model):
    """Asks the model once: an answer in the journal is the answer."""

    def __init__(self, model: Model, replay: Replay) -> None:
        self._model = model
        self._replay = replay

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the model's response, or the one of an earlier attempt."""

        async def ask() -> bytes:
            self._replay.before_model_call()
            return _responses.dump_json(await self._model.get_response(*args, **kwargs), by_alias=True)

        return _responses.validate_json(await self._replay.once(_named("model", args, kwargs), ask))

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Stream the model's response; one of an earlier attempt comes whole, its chunks were seen then."""
        replay = self._replay
        name = replay.name(_named("model-stream", args, kwargs))
        known = await replay.get(name)
        if known is not None:
            yield ResponseCompletedEvent.model_validate_json(known)
            return
        replay.before_model_call()
        items: list[Any] = []
        async for event in self._streamed(*args, **kwargs):
            if isinstance(event, ResponseOutputItemDoneEvent):
                items.append(event.item)
            if isinstance(event, ResponseCompletedEvent):
                # Some models send their items beforehand and an empty response at the end.
                event.response.output = event.response.output or items
                await replay.put(name, event.model_dump_json(by_alias=True, warnings=False).encode())
            yield event

    async def _streamed(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Stream from the model; one that does not know how is asked for its whole response instead."""
        began = False
        try:
            pieces = self._model.stream_response(*args, **kwargs)
            async for event in self._replay.leased_stream(pieces):  # guard: openai-stream-needs-lease
                began = True
                yield event
        except NotImplementedError:
            if began:
                raise
            warn_that_it_can_not_stream(type(self._model).__name__)
            # The model may have waited before it raised: the lease may have ended since the first check.
            request = functools.partial(self._model.get_response, *args, **kwargs)
            yield _completed(await self._replay.leased(request))  # guard: whole-response-needs-lease

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return what the model advises about a failed request."""
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _completed(answer: ModelResponse) -> ResponseCompletedEvent:
    """A whole response as the last event of a stream."""
    used = answer.usage
    response = Response(
        id=answer.response_id or "",
        created_at=time.time(),
        model="",
        object="response",
        output=answer.output,
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
        usage=ResponseUsage(
            input_tokens=used.input_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens=used.output_tokens,
            output_tokens_details=used.output_tokens_details,
            total_tokens=used.total_tokens,
        ),
    )
    return ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed")


class JournalledProvider(ModelProvider):
    """Puts the journal in front of models that agents name by strings."""

    def __init__(self, provider: ModelProvider, replay: Replay) -> None:
        self._provider = provider
        self._replay = replay

    def get_model(self, model_name: str | None) -> Model:
        """Return the model of that name."""
        return JournalledModel(self._provider.get_model(model_name), self._replay)

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()
