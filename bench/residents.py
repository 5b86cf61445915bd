"""The resident that is measured, and the same in a process of its own and as an actor of Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import pydantic.main

from holdfast import App, Context

app = App("bench-residents")


class Asked(pydantic.main.BaseModel):
    """What makes it import pydantic."""

    name: str = ""


@app.resident
class Echo:
    """Says what it is told."""

    def __init__(self, asked: dict[str, Any] | None = None) -> None:
        self.asked = Asked.model_validate(asked or {})

    async def receive(self, ctx: Context, message: Any) -> Any:
        del ctx
        return message


def spawned(agent_id: str, ready: Any, stop: Any) -> None:
    """The same resident in a process by ``multiprocessing`` spawn: ready when it can receive."""
    from holdfast.services import resident  # noqa: PLC0415 - a host's processes have it imported

    spec = {"id": agent_id, "resident": "Echo", "name": "Echo"}
    resident.run({"agent_spec": spec}, Piped(agent_id, ready, stop))  # pyright: ignore[reportArgumentType]


class Piped:
    """What a host's process has to talk with its host, over pipes."""

    fence = 1

    def __init__(self, agent_id: str, ready: Any, stop: Any) -> None:
        self.agent_id = agent_id
        self.labels = {"app": "bench.residents:app"}
        self._ready, self._stop = ready, stop

    def ready(self, **info: Any) -> None:
        self._ready.send(info)

    def report(self, *args: Any, **data: Any) -> None:
        """Nobody asks."""

    async def stopped(self) -> None:
        await asyncio.to_thread(self._stop.recv)
