"""An app with a resident that writes down what it receives."""

from __future__ import annotations

import asyncio
import os

from holdfast import App, Context

app = App("faults")


@app.resident
class Scribe:
    """Appends a line for each message: when it begins with it and when it is done, the number, its process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _write(self, what: str, number: int) -> None:
        os.write(self._file, f"{what} {number} {os.getpid()}\n".encode())

    async def receive(self, ctx: Context, message: dict) -> int:
        self._write("begin", message["n"])
        await asyncio.sleep(message.get("seconds", 0))
        self._write("done", message["n"])
        return message["n"]
