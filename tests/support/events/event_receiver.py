"""A receiver of events for tests: it records what it gets, and fails, hangs, resets or dies when told to."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tests.support.listener import Listener, send_reset


@dataclasses.dataclass(frozen=True)
class Got:
    """One POST that arrived, whether or not it was answered well."""

    path: str
    headers: dict[str, str]
    body: bytes
    answered: int

    @functools.cached_property
    def event(self) -> dict[str, Any]:
        # Once: a test that polls for events shares its loop with the relay and would leave it no time.
        return json.loads(self.body)


class Receiver:
    """An HTTP server in this loop. ``behave(got) -> int | "hang" | "reset"`` decides about each POST."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.status: int | str = 204
        self.headers: dict[str, str] = {}
        self.behave: Callable[[str, bytes], int | str] = lambda path, body: self.status
        self.open = 0
        self.most_open = 0
        self._released = asyncio.Event()
        self._listener = Listener(self._accept)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def listens(self) -> bool:
        return self._listener.listens

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events"

    @property
    def taken(self) -> list[Got]:
        """What was answered well, in the order of arrival."""
        return [got for got in self.got if 200 <= got.answered < 300]

    def ids(self, run_id: str = "", *, path: str = "") -> list[str]:
        """The ids of what was taken, of one run or path if wanted."""
        ids = [got.event["id"] for got in self.taken if path in got.path]
        return [each for each in ids if each.startswith(f"{run_id}/")] if run_id else ids

    async def __aenter__(self) -> Self:
        await self.revive()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self._listener.close()

    async def revive(self) -> None:
        """Listen, on the same port as before."""
        self._listener.listen()

    async def die(self) -> None:
        """Reset every connection and listen no more."""
        self._listener.refuse()
        await self._listener.reset()

    def release(self) -> None:
        """Answer what hangs."""
        self._released.set()
        self._released = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._serve(reader, writer):
                pass

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1]
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            answer = self.behave(path, body)
            if answer == "hang":
                self.got.append(Got(path, headers, body, 0))
                await _first(self._released.wait(), reader.read(1))  # a client that gave up has left
                return False
            if answer == "reset":
                self.got.append(Got(path, headers, body, 0))
                _reset(writer)
                return False
            status = int(answer)
            self.got.append(Got(path, headers, body, status))
            extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            writer.write(f"HTTP/1.1 {status} Said So\r\ncontent-length: 0\r\n{extra}\r\n".encode())
            await writer.drain()
        finally:
            self.open -= 1
        return True


async def _first(*waiting: Coroutine[Any, Any, object]) -> None:
    tasks = [asyncio.ensure_future(each) for each in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    send_reset(writer.get_extra_info("socket"))
    writer.transport.abort()


def in_order(ids: list[str]) -> bool:
    """Whether the events of every run came in order from the first on, but for repeats of the last one."""
    last: dict[str, int] = {}
    for each in ids:
        run_id, _, number = each.rpartition("/")
        if int(number) not in {last.get(run_id, 0), last.get(run_id, 0) + 1}:
            return False
        last[run_id] = int(number)
    return True
