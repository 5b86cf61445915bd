"""Attempts at one run without Redis: each has a new fence and a new context, on one store."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.agents.context import Context, RunInfo, Signals
from holdfast.agents.frameworks import adapt
from holdfast.agents.outcome import Asking
from holdfast.leases.trust import Trust
from holdfast.store.store import Store


class Attempts:
    """Runs agents of frameworks again and again, with the answers that were given so far."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.fence = 0
        self.answers: list[Any] = []
        self.chunks: list[Any] = []

    def context(self, run_id: str = "run", thread_id: str = "", trust: Trust | None = None) -> Context:
        self.fence += 1
        info = RunInfo(run_id, "agent", thread_id, 1, self.fence, datetime.now(UTC))
        memory = partial(
            self.store.memory, run_id=run_id, thread_id=thread_id, fence=self.fence, owner="worker"
        )
        return Context(info, self._emit, Signals(trust=trust), memory=memory, answers=self._answer)

    async def run(self, agent: Any, payload: Any = None, **context: Any) -> Any:
        """Return what an attempt gives, or raise what it raises."""
        call = adapt(agent) or agent
        return await call(self.context(**context), payload)

    async def asks(self, agent: Any, payload: Any = None, **context: str) -> Any:
        """Return what an attempt asks."""
        try:
            given = await self.run(agent, payload, **context)
        except Asking as asking:
            return msgspec.json.decode(asking.question.value)
        raise AssertionError(f"it asked nothing and gave {given!r}")

    async def _answer(self, index: int) -> bytes | None:
        return msgspec.json.encode(self.answers[index - 1]) if index <= len(self.answers) else None

    async def _emit(self, event_type: str, data: Any) -> None:
        assert event_type == "chunk"
        self.chunks.append(msgspec.json.decode(msgspec.json.encode(data)))
