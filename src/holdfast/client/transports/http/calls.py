"""Calls of the API: timeouts, retries and errors are decided here, once for all of them.

A call is made again only if twice is the same as once, or if the first certainly did not arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
from yarl import URL

from holdfast.client.transports.http.address import checked_url, headers, origin
from holdfast.client.transports.http.problems import SETTING, error_of, not_ours
from holdfast.errors import ApiUnavailable
from holdfast.reliability.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from types import TracebackType

    from holdfast.config import ClientSettings

_SSE: Final = "text/event-stream"
_CALLS_AT_ONCE: Final = 100
_LARGE_BYTES: Final = 256 << 10
_SILENCE_SECONDS: Final = 45.0
"""A stream says every 15 s that it lives; one that says nothing for so long is asked for again."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API answered, and how often it had to be asked."""

    status: int
    body: bytes
    tries: int


class Calls:
    """The API at one URL, with one key."""

    def __init__(self, settings: ClientSettings) -> None:
        self.url = checked_url(settings.url)
        self._headers = headers(settings.key)
        self._timeout_seconds = settings.timeout_seconds
        self.tries = 1 + settings.max_retries
        self._turns = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._session: Any = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Turns say how many call at once; whoever only waits or listens must not take theirs.
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        key: str = "",
        wait_seconds: float = 0.0,
        repeatable: bool = True,
    ) -> Answer:
        """Ask, again if that does no harm, and return an answer that is no error.

        ``key`` makes it idempotent; ``wait_seconds`` is how long the API was asked to wait.
        """
        for tries in range(1, self.tries + 1):
            try:
                async with self._turns if not wait_seconds else contextlib.nullcontext():
                    return await self._ask(method, path, body, key, wait_seconds, tries)
            except ApiUnavailable as exc:
                never_arrived = isinstance(exc.__cause__, aiohttp.ClientConnectorError)
                if tries == self.tries or not (repeatable or never_arrived):
                    raise
            await asyncio.sleep(pause_seconds(tries))
        raise AssertionError("the last try returns or raises")

    async def _ask(
        self, method: str, path: str, body: bytes | None, key: str, wait_seconds: float, tries: int
    ) -> Answer:
        seconds, large = self._timeout_seconds, body is not None and len(body) > _LARGE_BYTES
        with self._reaching():
            async with self._session.request(
                method,
                self._at(path),
                data=io.BytesIO(body) if body is not None and large else body,
                headers={**origin(), **({"Idempotency-Key": key} if key else {})},
                timeout=aiohttp.ClientTimeout(total=seconds + wait_seconds, sock_connect=seconds),
                allow_redirects=False,
                # Else an API that won't read so much has gone before we hear why.
                expect100=large,
            ) as response:
                return Answer(response.status, await self._body(response), tries)

    @contextlib.asynccontextmanager
    async def stream(self, path: str, last_event_id: str) -> AsyncGenerator[Pieces | None]:
        """Ask once for a stream after an event; None if there will be nothing more."""
        seconds = self._timeout_seconds
        with self._reaching():
            async with asyncio.timeout(seconds):
                response = await self._session.get(
                    self._at(path),
                    # Compressed, events would wait in somebody's buffer.
                    headers={"Accept": _SSE, "Accept-Encoding": "identity", "Last-Event-ID": last_event_id},
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=seconds, sock_read=_SILENCE_SECONDS
                    ),
                    allow_redirects=False,
                )
        async with response:
            if response.status == 204:
                yield None
                return
            if response.status != 200 or response.content_type != _SSE:
                with self._reaching():
                    await self._body(response)
                raise not_ours(self.url, f"its events are {response.content_type[:80]}")
            yield Pieces(self, response)

    async def read(self, response: aiohttp.ClientResponse) -> bytes:
        """Read what there is of a stream; nothing when it has ended."""
        with self._reaching():
            return await response.content.readany()

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = await response.read()
        if response.status >= 300:
            raise error_of(self.url, response.status, response.headers, body)
        return body

    def _at(self, path: str) -> URL:
        return URL(self.url + path, encoded=True)

    @contextlib.contextmanager
    def _reaching(self) -> Generator[None]:
        """Let none of aiohttp's errors through."""
        try:
            yield
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            why = " ".join(str(exc).split())[:200] or type(exc).__name__
            told = f"the API at {self.url} can't be reached ({why})"
            raise ApiUnavailable(f"{told}: check that it runs and that {SETTING} is right") from exc


class Pieces:
    """A stream that is open, as the network brings it."""

    def __init__(self, calls: Calls, response: aiohttp.ClientResponse) -> None:
        self._calls = calls
        self._response = response

    async def read(self) -> bytes:
        """Read what there is; nothing when the stream has ended."""
        return await self._calls.read(self._response)


def pause_seconds(failures: int) -> float:
    """Return the pause after so many failures in a row; random, so that callers spread out."""
    pause = backoff_seconds(failures, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
    return pause * random.uniform(0.5, 1.0)  # noqa: S311
