"""A fallback that is a URL: messages are posted there, as JSON, each with its id as ``Idempotency-Key``.

A message is sent again only under the same key, so a receiver that knows the key does it once.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
from yarl import URL

from holdfast.client.transports.http.calls import pause_seconds
from holdfast.client.transports.http.problems import retry_after
from holdfast.errors import AccessDenied, ApiUnavailable, ConfigError, HoldfastError, InputError, Refused
from holdfast.redaction import redact_url
from holdfast.runs.message import encode_value
from holdfast.telemetry.traces import inject

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from holdfast.config import ClientSettings
    from holdfast.runs.run import Submission

_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_AGAIN: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY})


class HttpFallback:
    """Posts messages to one URL; any answer of 200 to 299 means that the message was taken."""

    def __init__(self, url: str, settings: ClientSettings) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"the fallback must be an http:// or https:// URL, got {redact_url(url)!r}")
        self._url = url
        self._timeout_seconds = settings.timeout_seconds
        self._tries = 1 + settings.max_retries
        self._session: Any = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def __call__(self, message: Submission) -> None:
        """Post one message, again if the receiver could not take it."""
        body = encode_value(message.input, f"message {message.run_id}")
        for tries in range(1, self._tries + 1):
            try:
                return await self._post(message, body)
            except ApiUnavailable:
                if tries == self._tries:
                    raise
            await asyncio.sleep(pause_seconds(tries))
        raise AssertionError("the last try returns or raises")

    async def _post(self, message: Submission, body: bytes) -> None:
        headers = {
            **inject(),
            "Content-Type": "application/json",
            "Idempotency-Key": message.run_id,
            **({"X-Tenant": message.tenant} if message.tenant else {}),
        }
        try:
            async with self._session.post(
                URL(self._url),
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
                allow_redirects=False,
            ) as response:
                if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                    said = await response.text(errors="replace")
                    raise self._error(response.status, response.headers, said)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            why = " ".join(str(exc).split())[:200] or type(exc).__name__
            raise ApiUnavailable(
                f"the fallback at {redact_url(self._url)} can't be reached ({why}): message {message.run_id} "
                "was not taken, send it again under the same id"
            ) from exc

    def _error(self, status: int, headers: Mapping[str, str], text: str) -> HoldfastError:
        said = f"the fallback at {redact_url(self._url)} answered {status}: {' '.join(text.split())[:200]}"
        if status in _DENIED:
            return AccessDenied(said)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return Refused(said, retry_after=retry_after(headers))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _AGAIN:
            return ApiUnavailable(said, retry_after=retry_after(headers))
        return InputError(said) if status >= HTTPStatus.BAD_REQUEST else ConfigError(f"{said}, a redirect")
