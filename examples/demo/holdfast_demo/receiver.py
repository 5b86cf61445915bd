"""The Event API of the demo: a small HTTP server that keeps what it takes, and can be made to fail."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from types import TracebackType

UP, DOWN, FAILING = "up", "down", "answers 500"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event that was taken; ``id`` is the one it has in its run's feed."""

    run_id: str
    id: str
    type: str


class Receiver:
    """Takes events over HTTP, on one port for as long as it lives."""

    def __init__(self) -> None:
        self.state = DOWN
        self.taken: list[Delivery] = []
        self.refused = 0
        self._distinct: set[tuple[str, str]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._place: socket.socket | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where events are to be sent."""
        return f"http://127.0.0.1:{self.port}/events"

    def counts(self) -> Counter[str]:
        """How many different events of each run were taken."""
        return Counter(run_id for run_id, _ in self._distinct)

    async def __aenter__(self) -> Self:
        # Bound but never listening: the port stays ours while the server is down.
        self._place = _bound(0)
        self.port = self._place.getsockname()[1]
        await self.come_up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_down()
        if self._place is not None:
            self._place.close()

    async def come_up(self, state: str = UP) -> None:
        """Listen; from now on every event is taken, or answered 500 if it is ``FAILING``."""
        self.state = state
        if self._server is None:
            self._server = await asyncio.start_server(self._attend, sock=_bound(self.port))

    def go_down(self) -> None:
        """Break every connection off, and refuse new ones."""
        self.state = DOWN
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while body := await _request(reader):
                    writer.write(f"HTTP/1.1 {self._judge(body)}\r\ncontent-length: 0\r\n\r\n".encode())
                    await writer.drain()
        finally:
            self._writers.discard(writer)
            writer.close()

    def _judge(self, body: bytes) -> str:
        if self.state != UP:
            self.refused += 1
            return "500 Internal Server Error"
        data: dict[str, Any] = msgspec.json.decode(body)["data"]
        delivery = Delivery(data["run_id"], data["event_id"], data["type"])
        self.taken.append(delivery)
        self._distinct.add((delivery.run_id, delivery.id))
        return "204 No Content"


async def _request(reader: asyncio.StreamReader) -> bytes:
    """The body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if line)
    return await reader.readexactly(int(fields[b"content-length"]))


def _bound(port: int) -> socket.socket:
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", port))
    return place
