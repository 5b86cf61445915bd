"""A load balancer for tests: one address in front of replicas, which come and go, and links that break."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

from tests.support.listener import Listener


class Balancer:
    """Passes each connection to the first replica that takes it.

    ``cut`` breaks every link that is open; ``lose_answers`` passes requests on and breaks the link
    instead of passing the answer back; ``hold_answers`` keeps answers back and leaves the link open.
    """

    def __init__(self, *urls: str) -> None:
        self.ports = [int(url.rpartition(":")[2]) for url in urls]
        self.lose_answers = 0
        self.hold_answers = False
        self.attempts = 0
        self.links = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener = Listener(self._link)

    async def __aenter__(self) -> Self:
        self._listener.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.port}"

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        try:
            await self._pass_on(reader, writer)
        finally:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = await self._replica()
        if found is None:
            return
        answers, requests = found
        ours = {writer, requests}
        self._writers |= ours
        self.links += 1  # from here on it can be cut
        try:
            there = asyncio.ensure_future(self._copy(reader, requests, answers=False))
            back = asyncio.ensure_future(self._copy(answers, writer, answers=True))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for half in (there, back):
                    half.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        finally:
            self._writers -= ours
            requests.transport.abort()

    async def _replica(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in self.ports:
            with contextlib.suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if answers and self.lose_answers:
                    self.lose_answers -= 1
                    return
                if answers and self.hold_answers:
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()
            # What the other side was sent must reach it before the link is closed.
            writer.write_eof()
            await asyncio.sleep(0)
