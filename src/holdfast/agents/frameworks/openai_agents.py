"""OpenAI Agents SDK agents: model responses and tool calls are written to the run's journal.

After a crash the agent runs again from its start (or from its last approval), and what the journal has is not
done again. A tool that needs approval interrupts the run, whose RunState is kept meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, cast

import msgspec
from agents import Agent, Model, RunConfig, RunContextWrapper, Runner, RunState
from agents.items import ItemHelpers
from openai.types.responses import ResponseTextDeltaEvent
from pydantic_core import to_jsonable_python

from holdfast.agents.frameworks.current import entered
from holdfast.agents.frameworks.openai_journal import JournalledModel, JournalledProvider, Journalling
from holdfast.agents.frameworks.replay import Questions, Replay
from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.items import ToolApprovalItem, TResponseInputItem

    from holdfast.agents.context import Context

_HISTORY = "openai-agents:items"


class OpenAIAgent:
    """An agent of the OpenAI Agents SDK as an agent of Holdfast.

    ``context(ctx, input)`` makes what the SDK hands to tools as its context. With ``stream=False`` models are
    not asked to stream. With ``memory`` the runs of one thread continue one conversation. The input is a
    string, a list of input items, a dict with ``input``, or anything else as JSON.
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        context: Callable[[Context, Any], Any] | None = None,
        run_config: RunConfig | None = None,
        max_turns: int = 50,
        stream: bool = True,
        memory: bool = True,
    ) -> None:
        self.agent = agent
        self._context = context
        self._run_config = run_config
        self._max_turns = max_turns
        self._stream = stream
        self._memory = memory

    async def __call__(self, ctx: Context, payload: Any) -> Any:
        """Run the agent, or go on with it; return its final output as JSON."""
        replay = Replay(ctx, "openai-agents")
        with entered(ctx), replay.ending_as_unwound():
            result = await self._until_final(ctx, payload, replay)
        if self._remembers(ctx):
            await ctx.state.set(_HISTORY, to_jsonable_python(result.to_input_list()))
        return to_jsonable_python(result.final_output)

    async def _until_final(self, ctx: Context, payload: Any, replay: Replay) -> Any:
        """Run until there is a final output; each approval that is asked for is a checkpoint."""
        agent = Journalling(replay).agent(self.agent)
        own = None if self._context is None else self._context(ctx, payload)
        approvals = _Approvals(agent, replay)
        source: Any = await approvals.resumed(own)
        if source is None:
            source = await self._input(ctx, payload, replay)
        while True:
            result = await self._run(agent, source, own, replay)
            if not result.interruptions:
                return result
            source = await approvals.decided(result.to_state())

    async def _run(self, agent: Agent[Any], source: Any, own: Any, replay: Replay) -> Any:
        context = None if isinstance(cast("object", source), RunState) else own
        options: Any = {"context": context, "run_config": self._config(replay), "max_turns": self._max_turns}
        if not self._stream:
            return await Runner.run(agent, source, **options)
        result = Runner.run_streamed(agent, source, **options)
        try:
            async for event in result.stream_events():
                if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                    await replay.ctx.stream(event.data.delta)
        except BaseException:
            result.cancel()
            raise
        return result

    def _config(self, replay: Replay) -> RunConfig:
        base = RunConfig() if self._run_config is None else self._run_config
        model = JournalledModel(base.model, replay) if isinstance(base.model, Model) else base.model
        provider = JournalledProvider(base.model_provider, replay)
        return dataclasses.replace(base, model=model, model_provider=provider)

    async def _input(self, ctx: Context, payload: Any, replay: Replay) -> list[TResponseInputItem]:
        """Put the input behind the thread's items, as those were when the run began."""
        items = ItemHelpers.input_to_new_input_list(_given(payload))
        if not self._remembers(ctx):
            return items

        async def now() -> bytes:
            return msgspec.json.encode(await ctx.state.get(_HISTORY, []))

        return [*msgspec.json.decode(await replay.once("history", now)), *items]

    def _remembers(self, ctx: Context) -> bool:
        return self._memory and bool(ctx.thread_id)


def _given(payload: Any) -> Any:
    if isinstance(payload, dict) and "input" in payload:
        payload = cast("dict[str, Any]", payload)["input"]
    return cast("Any", payload) if isinstance(payload, str | list) else msgspec.json.encode(payload).decode()


class _Approvals:
    """Asks about tool calls that need approval, and keeps the RunState while nobody has answered."""

    def __init__(self, agent: Agent[Any], replay: Replay) -> None:
        self._agent = agent
        self._replay = replay
        self._questions = Questions(replay)
        self._kept = 0

    async def resumed(self, own: Any) -> RunState[Any] | None:
        """Return the last state that was kept, with its answer; None if the run never asked."""
        kept: bytes | None = None
        while (found := await self._replay.get(self._replay.at("state", self._kept + 1))) is not None:
            kept, self._kept = found, self._kept + 1
        if kept is None:
            return None
        saved = msgspec.json.decode(kept)
        self._replay.go_on_from(saved["used"])
        context = RunContextWrapper(own)
        state = await RunState.from_json(self._agent, saved["state"], context_override=context)
        return await self._answered(state)

    async def decided(self, state: RunState[Any]) -> RunState[Any]:
        """Keep the state, ask, and return the state with what was decided."""
        saved = {"used": self._replay.used, "state": state.to_json(context_serializer=_no_context)}
        self._kept += 1
        await self._replay.put(self._replay.at("state", self._kept), msgspec.json.encode(saved))
        return await self._answered(state)

    async def _answered(self, state: RunState[Any]) -> RunState[Any]:
        pending = {item.call_id or str(at): item for at, item in enumerate(state.get_interruptions())}
        payload = {"approvals": [_shown(call_id, item) for call_id, item in pending.items()]}
        decisions = await self._questions.ask(
            " ".join(pending), payload, lambda answer: _by_id(answer, list(pending))
        )
        for call_id, decision in decisions.items():
            _decide(state, pending[call_id], decision)
        return state


def _no_context(_: Any) -> dict[str, Any]:
    """The context is made anew by whoever resumes."""
    return {}


def _shown(call_id: str, item: ToolApprovalItem) -> dict[str, Any]:
    arguments: Any = item.arguments
    with contextlib.suppress(msgspec.DecodeError):  # then what the model wrote is shown as it is
        arguments = msgspec.json.decode(arguments or "{}")
    return {"id": call_id, "tool": item.tool_name, "args": arguments, "agent": item.agent.name}


def _by_id(answer: Any, pending: list[str]) -> dict[str, Any]:
    if isinstance(answer, bool):
        return dict.fromkeys(pending, answer)
    if isinstance(answer, dict) and set(by_id := cast("dict[str, Any]", answer)) == set(pending):
        return by_id
    ids = ", ".join(pending)
    raise InputError(f"answer with true, with false, or with an object that has an entry for each of: {ids}")


def _decide(state: RunState[Any], item: ToolApprovalItem, decision: Any) -> None:
    """Approve by true or ``{"approved": true}``; all else rejects, with its ``message`` for the model."""
    said = cast("dict[str, Any]", decision) if isinstance(decision, dict) else {"approved": decision}
    if said.get("approved") is True:
        state.approve(item)
    else:
        state.reject(item, rejection_message=said.get("message"))
