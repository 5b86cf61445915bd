"""The resident that is measured, and the same in a process of its own and as an actor of Ray."""

from __future__ import annotations

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


def spawned(ready: Any, stop: Any) -> None:
    """The same under ``multiprocessing``: made, and ready to be told something over its pipe."""
    Echo()
    ready.send("ready")
    stop.recv()
