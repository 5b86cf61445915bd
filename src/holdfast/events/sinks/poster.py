"""Sends requests over kept-alive connections; a network failure is a response, not an exception.

For a guarded request, every address that its name resolves to is checked when it connects.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from holdfast.events.sinks.addresses import is_literal, is_public
from holdfast.events.sinks.request import SinkResponse, retry_after_of
from holdfast.redaction import redact

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from aiohttp.abc import ResolveResult

    from holdfast.config import RelaySettings
    from holdfast.events.sinks.request import SinkRequest

_KEEP_ALIVE_SECONDS = 4.0
"""Less than the 5 s after which many servers close: a POST on a closed connection fails."""
_READ_MOST = 65536
_SHOWN = 200
_SLICES = 10
_UNITS_PER_SLICE = 2
"""The units that a slice of the timeout uses; a slice at whose end the event loop was late uses 1."""
_PRIVATE = "the receiver has a private address: set relay.private_webhooks=true to allow it"


class PrivateAddressError(Exception):
    """A name resolves only to private addresses; not an OSError, which aiohttp would rewrite."""


class _PublicOnly(AbstractResolver):
    """Resolves names to public addresses only, so that an address can't change between check and call."""

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        public = [each for each in found if is_public(each["host"])]
        if not public:
            raise PrivateAddressError(_PRIVATE)
        return public

    async def close(self) -> None:
        await self._resolver.close()


class _AnswerTimeout:
    """Raises TimeoutError after ``seconds``, counted in slices; those in which the loop was late count half.

    After a pause of this process (no CPU, SIGSTOP) that is longer than the timeout, the response may be
    unread in the socket: a plain timeout would deliver the event again, and count as a failure.
    """

    def __init__(self, seconds: float) -> None:
        self._slice = seconds / _SLICES
        self._left = _SLICES * _UNITS_PER_SLICE
        self._extended = False
        self._due = 0.0
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, exc, trace)

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._slice
        self._timer = loop.call_at(self._due, self._count)  # guard: answer-timeout-slices

    def _count(self) -> None:
        late = asyncio.get_running_loop().time() > self._due + self._slice
        self._left -= 1 if late else _UNITS_PER_SLICE
        # After a late slice, one more slice lets the loop read a response that has arrived meanwhile.
        # guard: late-last-slice
        if self._left > 0 or (late and not self._extended):
            self._extended = self._left <= 0
            self._wait()
        else:
            self._timeout.reschedule(0.0)


class Poster:
    """The HTTP client of a relay: ``async with``."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._open: aiohttp.ClientSession | None = None
        self._guarded: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._open = self._session(None)
        self._guarded = None if self._settings.private_webhooks else self._session(_PublicOnly())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in (self._open, self._guarded):
            if session is not None:
                await session.close()

    def _session(self, resolver: AbstractResolver | None) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,  # the slots of the relay are the limit
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            resolver=resolver,
            use_dns_cache=resolver is None,
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),  # none: see _AnswerTimeout
            headers={"user-agent": "holdfast-relay"},
            trust_env=False,
        )

    async def post(self, request: SinkRequest) -> SinkResponse:
        """Send a request; return the response, or why there is none."""
        session = (self._guarded if request.guarded else None) or self._open
        assert session is not None
        if session is self._guarded and _is_private_literal(request.url):
            return SinkResponse(kind="address", error=_PRIVATE)
        try:
            async with (
                _AnswerTimeout(self._settings.timeout_seconds),
                session.post(
                    request.url, data=request.body, headers=request.headers, allow_redirects=False
                ) as response,
            ):
                return await _read(response)
        except TimeoutError:
            return SinkResponse(kind="timeout", error=f"no answer in {self._settings.timeout_seconds:g} s")
        except PrivateAddressError as exc:
            return SinkResponse(kind="address", error=str(exc))
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, ValueError) as exc:
            return SinkResponse(kind="address", error=f"it can't be called: {_why(exc)}")
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as exc:
            return SinkResponse(kind="connection", error=f"no connection: {_why(exc)}")


async def _read(response: aiohttp.ClientResponse) -> SinkResponse:
    """Read the response, up to a limit: after a longer one the connection is closed."""
    body = await response.content.read(_READ_MOST)
    if 200 <= response.status < 300:
        return SinkResponse(status=response.status)
    text = " ".join(body[: _SHOWN * 4].decode(errors="replace").split())[:_SHOWN]
    return SinkResponse(
        status=response.status,
        error=text,
        retry_after=retry_after_of(response.headers.get("retry-after", "")),
    )


def _is_private_literal(url: str) -> bool:
    """Return whether the host of a URL is a private IP address, which is not resolved."""
    try:
        host = URL(url).raw_host or ""
    except ValueError:
        return False  # the call raises the error
    return is_literal(host) and not is_public(host)


def _why(exc: BaseException) -> str:
    return redact(" ".join(str(exc).split()))[:_SHOWN] or type(exc).__name__
