"""Pydantic AI agents: every model request and every tool call is written to the run's journal.

After a crash the agent runs again from its start, and what the journal has is not done again. Tool calls that
need approval (or are done elsewhere) interrupt the run; chunks are the model's text as it comes.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec
from pydantic_ai import DeferredToolResults, ModelRetry, ToolApproved, ToolDenied, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import JSON_CODEC
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturnContent,
)
from pydantic_ai.models import CompletedStreamedResponse, Model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.toolsets import WrapperToolset
from pydantic_core import to_jsonable_python

from holdfast.agents.frameworks.current import entered
from holdfast.agents.frameworks.replay import Questions, Replay, warn_that_it_can_not_stream
from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Callable

    from pydantic_ai import AbstractToolset, DeferredToolRequests, RunContext
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ToolCallPart
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.toolsets import ToolsetTool

    from holdfast.agents.context import Context

_HISTORY = "pydantic-ai:messages"


class PydanticAIAgent:
    """A Pydantic AI agent as an agent of Holdfast.

    ``deps(ctx, input)`` makes the agent's dependencies. With ``stream=False`` models are not asked to stream.
    With ``memory`` the runs of one thread continue one conversation. The input is the prompt: a string, a
    dict with ``prompt``, or anything else as JSON.
    """

    def __init__(
        self,
        agent: AbstractAgent[Any, Any],
        *,
        deps: Callable[[Context, Any], Any] | None = None,
        stream: bool = True,
        memory: bool = True,
    ) -> None:
        self.agent = agent
        self._deps = deps
        self._stream = stream
        self._memory = memory

    async def __call__(self, ctx: Context, payload: Any) -> Any:
        """Run the agent, or go on with it; return its output as JSON."""
        replay = Replay(ctx, "pydantic-ai")
        questions = Questions(replay)
        durable = _StreamedDurability if self._stream else _Durability
        history = await self._history(ctx, replay)
        with entered(ctx), replay.ending_as_unwound():
            result = await self.agent.run(
                _prompt(payload),
                message_history=history,
                deps=None if self._deps is None else self._deps(ctx, payload),
                capabilities=[durable(context=ctx, replay=replay, questions=questions)],
            )
        if self._remembers(ctx):
            await ctx.state.set(_HISTORY, ModelMessagesTypeAdapter.dump_json(result.all_messages()).decode())
        return to_jsonable_python(result.output)

    def _remembers(self, ctx: Context) -> bool:
        return self._memory and bool(ctx.thread_id)

    async def _history(self, ctx: Context, replay: Replay) -> list[ModelMessage] | None:
        """Read the thread's messages as they were when the run began: a later attempt must see the same."""
        if not self._remembers(ctx):
            return None

        async def now() -> bytes:
            return (await ctx.state.get(_HISTORY, "[]")).encode()

        return ModelMessagesTypeAdapter.validate_json(await replay.once("history", now))


def _prompt(payload: Any) -> Any:
    if payload is None or isinstance(payload, str):
        return payload
    if isinstance(payload, dict) and isinstance(prompt := cast("dict[str, Any]", payload).get("prompt"), str):
        return prompt
    return msgspec.json.encode(payload).decode()


@dataclass
class _Durability(AbstractCapability[Any]):
    """Puts the journal between the agent and its models and tools, for one run."""

    context: Context
    replay: Replay
    questions: Questions

    def get_wrapper_model(self, model: Model) -> Model:
        return _JournalledModel(model, self.replay)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _JournalledToolset(toolset, self.replay)

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the hook's signature
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults:
        """Ask whoever follows the run, and wait for the answer without holding a worker."""
        pending = requests.approvals + requests.calls
        question = " ".join(sorted(call.tool_call_id for call in pending))
        payload = {
            "approvals": [_shown(call, requests) for call in requests.approvals],
            "calls": [_shown(call, requests) for call in requests.calls],
        }
        return await self.questions.ask(question, payload, lambda answer: _results(requests, answer))


@dataclass
class _StreamedDurability(_Durability):
    """The same, with the text of the models as chunks."""

    async def wrap_run_event_stream(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the hook's signature
        *,
        stream: AsyncIterable[AgentStreamEvent],
    ) -> AsyncGenerator[AgentStreamEvent]:
        async for event in stream:
            text = _text_of(event)
            if text:
                await self.context.stream(text)
            yield event


def _text_of(event: AgentStreamEvent) -> str:
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    return ""


class _JournalledModel(WrapperModel):
    """Asks the model once: an answer in the journal is the answer."""

    def __init__(self, wrapped: Model, replay: Replay) -> None:
        super().__init__(wrapped)
        self._replay = replay

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask() -> bytes:
            self._replay.before_model_call()
            return _encode(await self.wrapped.request(messages, model_settings, model_request_parameters))

        return _decode(await self._replay.once("model", ask))

    @contextlib.asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        name = self._replay.name("model")
        known = await self._replay.get(name)
        if known is not None:
            # Without its events: whoever follows the run has seen them when they happened.
            yield CompletedStreamedResponse(_decode(known), model_request_parameters=model_request_parameters)
            return
        self._replay.before_model_call()
        if not _can_stream(self.wrapped):
            request = functools.partial(
                self.wrapped.request, messages, model_settings, model_request_parameters
            )
            answer = await self._replay.leased(request)
            await self._replay.put(name, _encode(answer))
            yield CompletedStreamedResponse(answer, model_request_parameters=model_request_parameters)
            return
        stream = self.wrapped.request_stream(messages, model_settings, model_request_parameters, run_context)
        async with contextlib.AsyncExitStack() as stack:
            opening = functools.partial(stack.enter_async_context, stream)
            response = await self._replay.leased(opening)  # guard: stream-opening-needs-lease
            _keep_leased(response, self._replay)  # guard: pydantic-stream-needs-lease
            yield response
            await self._replay.put(name, _encode(response.get()))


def _keep_leased(response: Any, replay: Replay) -> None:
    """Have each event of a response awaited only while the lease is trusted."""
    begun, events = response._event_iterator, response._get_event_iterator  # noqa: SLF001
    if begun is None:
        response._get_event_iterator = lambda: replay.leased_stream(events())  # noqa: SLF001
    else:  # a model that falls back on others has looked at the first event
        response._event_iterator = replay.leased_stream(begun)  # noqa: SLF001


def _can_stream(model: Model) -> bool:
    """Whether a model knows how to stream; one that does not is named in the log, once."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    lacks = isinstance(model, FunctionModel) and model.stream_function is None
    if lacks or type(model).request_stream is Model.request_stream:
        warn_that_it_can_not_stream(type(model).__name__)
        return False
    return True


def _encode(response: ModelResponse) -> bytes:
    return ModelMessagesTypeAdapter.dump_json([response])


def _decode(value: bytes) -> ModelResponse:
    (response,) = ModelMessagesTypeAdapter.validate_json(value)
    assert isinstance(response, ModelResponse)
    return response


@dataclass
class _JournalledToolset(WrapperToolset[Any]):
    """Calls each tool once; what it returned, or told the model to try again, is in the journal."""

    replay: Replay = field(repr=False)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        async def call() -> bytes:
            return self.replay.written(await self._call(name, tool_args, ctx, tool), name)

        # By the id that the model gave the call, not by order: tools run side by side.
        return _outcome(msgspec.json.decode(await self.replay.once(f"tool:{name}:{ctx.tool_call_id}", call)))

    async def _call(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> dict[str, Any]:
        try:
            value = await self.wrapped.call_tool(name, tool_args, ctx, tool)
        except ModelRetry as exc:
            return {"kind": "retry", "message": exc.message}
        except ToolFailed as exc:
            return {"kind": "failed", "message": exc.message}
        # The codec writes NaN as null, so what is no JSON must be found before.
        self.replay.written(_inside(value), name)  # guard: pydantic-tool-value-json
        if isinstance(value, ToolReturn):
            return {"kind": "tool-return", "value": JSON_CODEC.dump(ToolReturn, value)}
        return {"kind": "value", "value": JSON_CODEC.dump(ToolReturnContent, value)}


def _inside(value: Any) -> Any:
    if isinstance(value, ToolReturn):
        value = [value.return_value, value.content, value.metadata]
    return to_jsonable_python(value, bytes_mode="base64", serialize_unknown=True)


def _outcome(entry: dict[str, Any]) -> Any:
    match entry["kind"]:
        case "retry":
            raise ModelRetry(entry["message"])
        case "failed":
            raise ToolFailed(entry["message"])
        case "tool-return":
            return JSON_CODEC.load(ToolReturn, entry["value"])
        case _:
            return JSON_CODEC.load(ToolReturnContent, entry["value"])


def _shown(call: ToolCallPart, requests: DeferredToolRequests) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": call.tool_call_id, "tool": call.tool_name, "args": call.args_as_dict()}
    metadata = requests.metadata.get(call.tool_call_id)
    return shown if metadata is None else {**shown, "metadata": to_jsonable_python(metadata)}


def _results(requests: DeferredToolRequests, answer: Any) -> DeferredToolResults:
    """Read an answer: a bool for all approvals, or ``{id: …}`` for each call.

    Of an approval: true, false, or ``{"approved": …, "args": …, "message": …}``. Of a call: its result.
    """
    approvals = [call.tool_call_id for call in requests.approvals]
    calls = [call.tool_call_id for call in requests.calls]
    by_id = _by_id(answer, approvals, calls)
    return DeferredToolResults(
        approvals={call_id: _approval(by_id[call_id]) for call_id in approvals},
        calls={call_id: by_id[call_id] for call_id in calls},
    )


def _by_id(answer: Any, approvals: list[str], calls: list[str]) -> dict[str, Any]:
    wanted = {*approvals, *calls}
    if isinstance(answer, dict):
        by_id = cast("dict[str, Any]", answer)
        if set(by_id) == wanted:
            return by_id
    if isinstance(answer, bool) and not calls:
        return dict.fromkeys(approvals, answer)
    if len(wanted) == 1 and calls:
        return {calls[0]: answer}
    ids = ", ".join([*approvals, *calls])
    raise InputError(f"answer with true, with false, or with an object that has an entry for each of: {ids}")


def _approval(answer: Any) -> ToolApproved | ToolDenied:
    if not isinstance(answer, dict):
        return ToolApproved() if answer is True else ToolDenied()
    said = cast("dict[str, Any]", answer)
    if said.get("approved") is True:
        return ToolApproved(override_args=said.get("args"))
    return ToolDenied(message=said["message"]) if said.get("message") else ToolDenied()
