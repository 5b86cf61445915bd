"""A proxy between a client and a Redis server that fails on demand; it runs on a thread of its own.

It speaks just enough RESP2 to know which reply answers which command, so that exactly that one can be lost.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, Literal, Self, TypeVar

import hiredis

from tests.support.listener import Listener

T = TypeVar("T")
_PATIENCE_SECONDS = 60.0
Direction = Literal["both", "requests", "replies"]


@dataclasses.dataclass
class _Drop:
    """Lose the reply to commands that begin with ``words`` (any if none) once ``after`` of them have passed."""

    words: list[bytes]
    after: int
    times: int
    silently: bool


@dataclasses.dataclass(eq=False)
class _Link:
    """One client's connection and its twin to the server."""

    writer: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    asked: collections.deque[list[bytes]] = dataclasses.field(default_factory=collections.deque)
    """The first words of what is not answered yet."""


class FaultProxy:
    """Listens on loopback (``port``, ``url``) in front of a unix path or a (host, port).

    ``heal`` passes everything on; ``stall`` holds bytes back without closing; ``drop_replies`` lets the
    server execute a command and loses its reply; ``reset`` sends RST; ``refuse`` closes the door;
    ``delay`` makes replies late. Every method returns when the fault is in force.
    """

    def __init__(self, target: str | tuple[str, int], *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.accepted = 0
        self.dropped = 0
        self.commands: collections.Counter[bytes] = collections.Counter()
        self._tls = tls
        self._drop: _Drop | None = None
        self._delay = 0.0
        self._links: set[_Link] = set()
        self._listener = Listener(self._accept, tls=tls)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return f"redis{'s' if self._tls else ''}://127.0.0.1:{self.port}/0"

    @property
    def open_connections(self) -> int:
        return len(self._links)

    def start(self) -> FaultProxy:
        self._thread.start()
        self._run(self._prepare())
        return self

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def heal(self) -> None:
        """Pass everything on again, also what was held back, and listen again."""
        self._run(self._heal())

    def stall(self, direction: Direction = "both") -> None:
        """Hold back what is sent from now on in that direction; connections stay open and may be made."""
        self._run(self._stall(direction))

    def drop_replies(
        self, command: str = "", *, after: int = 0, times: int = 1, silently: bool = False
    ) -> None:
        """Lose replies after ``after`` commands: the connection is closed, or just silent.

        ``command`` is a name, or a name and its first argument: one script is ``EVALSHA <its hash>``.
        """
        words = [word.encode() for word in command.upper().split()]
        self._run(self._set_drop(_Drop(words, after, times, silently)))

    def delay(self, seconds: float) -> None:
        """Hand over every reply that much later."""
        self._run(self._set_delay(seconds))

    def reset(self) -> None:
        """Send RST on every open connection; new ones are accepted."""
        self._run(self._reset())

    def refuse(self) -> None:
        """Reset every connection and refuse new ones until ``heal``."""
        self._run(self._refuse())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    async def _prepare(self) -> None:
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        await self._heal()

    async def _end(self) -> None:
        await self._listener.close()
        await self._loop.shutdown_asyncgens()

    async def _heal(self) -> None:
        self._drop, self._delay = None, 0.0
        self._requests.set()
        self._replies.set()
        self._listener.listen()

    async def _stall(self, direction: Direction) -> None:
        if direction != "replies":
            self._requests.clear()
        if direction != "requests":
            self._replies.clear()

    async def _set_drop(self, drop: _Drop) -> None:
        self._drop = drop

    async def _set_delay(self, seconds: float) -> None:
        self._delay = seconds

    async def _reset(self) -> None:
        for link in self._links:
            if link.server is not None:
                link.server.transport.abort()
        await self._listener.reset()

    async def _refuse(self) -> None:
        self._listener.refuse()
        await self._reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer)
        self._links.add(link)
        try:
            await self._serve(link, reader)
        except (OSError, asyncio.CancelledError):
            pass  # one of the two sides is gone, or the proxy is closing
        finally:
            self._links.discard(link)
            if link.server is not None:
                transport = link.server.transport
                transport.abort() if transport.is_closing() else transport.close()

    async def _serve(self, link: _Link, client: asyncio.StreamReader) -> None:
        if isinstance(self.target, str):
            server, link.server = await asyncio.open_unix_connection(self.target)
        else:
            server, link.server = await asyncio.open_connection(*self.target)
        requests = asyncio.ensure_future(self._pass_requests(link, client))
        replies = asyncio.ensure_future(self._pass_replies(link, server))
        try:
            await asyncio.wait((requests, replies), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in (requests, replies):
                pump.cancel()
            await asyncio.gather(requests, replies, return_exceptions=True)

    async def _pass_requests(self, link: _Link, client: asyncio.StreamReader) -> None:
        assert link.server is not None
        commands = hiredis.Reader()
        while data := await client.read(65536):
            await self._requests.wait()
            commands.feed(data)
            while isinstance(command := commands.gets(), list):
                words = [bytes(word).upper() for word in command[:2]]
                self.commands[words[0]] += 1
                link.asked.append(words)
            link.server.write(data)
            await link.server.drain()

    async def _pass_replies(self, link: _Link, server: asyncio.StreamReader) -> None:
        replies = hiredis.Reader(notEnoughData=_NOTHING)
        while data := await server.read(65536):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._replies.wait()
            replies.feed(data)
            while replies.gets() is not _NOTHING:
                if self._loses(link.asked.popleft() if link.asked else []):
                    self.dropped += 1
                    if self._drop is not None and self._drop.silently:
                        await asyncio.Event().wait()
                    return
            link.writer.write(data)
            await link.writer.drain()

    def _loses(self, asked: list[bytes]) -> bool:
        drop = self._drop
        if drop is None or drop.times == 0 or asked[: len(drop.words)] != drop.words:
            return False
        if drop.after > 0:
            drop.after -= 1
            return False
        drop.times -= 1
        return True


_NOTHING = object()
