"""A server socket for tests that refuse and reset connections while clients connect.

``asyncio.start_server`` can't: closed while a connection is being accepted, Python 3.11 leaves that connection's
socket to the garbage collector, which is a ResourceWarning in whichever test runs then. And one that was accepted a
moment before is not known yet to code that resets all connections, so it survives.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

_BACKLOG = 128


@dataclasses.dataclass(eq=False)
class _Connection:
    """Known from the moment it is accepted; ``writer`` comes with its first turn of the loop."""

    socket: socket.socket
    task: asyncio.Task[None] | None = None
    writer: asyncio.StreamWriter | None = None


class Listener:
    """Listens on a port of loopback, which stays its own until ``close``, also while it refuses connections."""

    def __init__(self, serve: Serve, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._serve = serve
        self._tls = tls
        self._reserved: socket.socket | None = None
        self._listening: socket.socket | None = None
        self._connections: set[_Connection] = set()

    @property
    def listens(self) -> bool:
        return self._listening is not None

    def listen(self) -> None:
        """Accept connections on the running loop; again on the same port after ``refuse``."""
        if self._listening is not None:
            return
        if self._reserved is None:
            # Bound and never listening: nobody else is given this port, and connections to it are refused.
            self._reserved = _bound(0)
            self.port = self._reserved.getsockname()[1]
        self._listening = _bound(self.port)
        self._listening.setblocking(False)
        self._listening.listen(_BACKLOG)
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    async def reset(self) -> None:
        """Send RST on every connection that was accepted; return when they are closed."""
        young: list[asyncio.Task[None]] = []
        for connection in self._connections:
            send_reset(connection.socket)
            if connection.writer is not None:
                connection.writer.transport.abort()
            elif connection.task is not None:
                connection.task.cancel()
                young.append(connection.task)
        await asyncio.gather(*young, return_exceptions=True)
        await asyncio.sleep(0)  # a transport closes its socket in the next turn of the loop

    async def close(self) -> None:
        """Refuse and reset everything, end what serves, and give the port away."""
        self.refuse()
        await self.reset()
        tasks = [each.task for each in self._connections if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        accepted.setblocking(False)
        connection = _Connection(accepted)
        self._connections.add(connection)
        connection.task = asyncio.get_running_loop().create_task(self._attend(connection))
        connection.task.add_done_callback(lambda task: self._ended(connection, task))

    async def _attend(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection.socket, ssl=self._tls)
        connection.writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(reader, connection.writer)
        finally:
            transport.abort() if transport.is_closing() else transport.close()

    def _ended(self, connection: _Connection, task: asyncio.Task[None]) -> None:
        self._connections.discard(connection)
        if connection.writer is None:
            connection.socket.close()
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, OSError):
            context = {"message": "what serves a connection failed", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(context)


def send_reset(connection: socket.socket) -> None:
    """Have a socket send RST when it is closed."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
