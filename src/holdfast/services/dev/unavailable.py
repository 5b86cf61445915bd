"""Responds to HTTP requests with 503 while the API of ``holdfast dev`` can't be started.

Without it, requests would wait in the socket's backlog until the API can be started: for ever, if the code is
broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator

_BACKLOG = 2048
_REQUEST_SECONDS = 5.0


@contextlib.asynccontextmanager
async def answering_unavailable(
    listener: socket.socket | None, detail: str, retry_seconds: float
) -> AsyncGenerator[None]:
    """Respond to each request with 503 inside of the block; without a listener do nothing."""
    if listener is None:
        yield
        return
    response = _response(detail, retry_seconds)
    # A copy: closing it leaves the listener open for the next process.
    server = await asyncio.start_server(partial(_respond, response), sock=listener.dup(), backlog=_BACKLOG)
    try:
        yield
    finally:
        server.close()


def _response(detail: str, retry_seconds: float) -> bytes:
    problem = {"type": "about:blank", "title": "Service Unavailable", "status": 503, "detail": detail}
    body = msgspec.json.encode(problem)
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        f"Retry-After: {max(1, math.ceil(retry_seconds))}",
        "Connection: close",
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def _respond(response: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_REQUEST_SECONDS):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
            writer.write_eof()
            while await reader.read(65536):  # closing with unread data would discard the response
                pass
    writer.close()
