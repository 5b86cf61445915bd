"""The door of the API: who calls, how much it sends, its request id, and that every error is a problem.

Pure ASGI: the requests of a busy API pass here, and a task or a copied body for each would double their cost.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from holdfast.api import problems
from holdfast.api.auth import Denied
from holdfast.api.tracing import trace_of
from holdfast.telemetry.logs import get_logger, run_context
from holdfast.telemetry.traces import record_response, request_span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from holdfast.api.auth import Caller, Keyring
    from holdfast.telemetry.traces import Span

PUBLIC: Final = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""Probes have no keys, and the description of the API is no secret."""

_UNTRACED: Final = PUBLIC | {"/metrics"}
"""Probes and scrapes would be most of all traces."""

_LONGEST_LENGTH = 18
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")

_log = get_logger(__name__)


class TooLarge(Denied):
    """The body is larger than ``api.max_body_bytes``."""

    def __init__(self, limit: int) -> None:
        detail = f"a body may have {limit} bytes (api.max_body_bytes): send less, or a reference to it"
        # What was not read of the body must not be taken for the next request.
        super().__init__(413, detail, headers={"Connection": "close"})  # guard: too-large-closes-connection


class RequestMiddleware:
    """ASGI middleware around all routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keyring: Keyring,
        max_body_bytes: int,
        redis_url: str,
        closing: Callable[[], bool],
        count: Callable[[str, int, float], None],
        express: Mapping[tuple[str, str], ASGIApp],
    ) -> None:
        self._app = app
        self._express = express
        self._keyring = keyring
        self._limit = max_body_bytes
        self._redis_url = redis_url
        self._closing = closing
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in _UNTRACED:
            await self._serve(scope, receive, send, None)
            return
        with request_span(scope["method"], lambda: trace_of(Headers(scope=scope))) as span:
            await self._serve(scope, receive, send, span)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, span: Span | None) -> None:
        started = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else os.urandom(12).hex().encode()
        named = scope["request_id"] = request_id.decode()
        visit = _Exchange(receive, send, request_id, self._limit, closing=self._closing())
        run_context.set({"request_id": named})
        failed: Exception | None = None
        try:
            length = headers.get(b"content-length", b"0")
            if len(length) > _LONGEST_LENGTH or (length.isdigit() and int(length) > self._limit):
                # guard: content-length-limit
                raise TooLarge(self._limit)  # noqa: TRY301  answered as any other error
            if scope["path"] not in PUBLIC:
                scope["caller"] = self._keyring.caller(scope, headers)
            # The busiest routes go past the framework, whose ways cost more than what they do.
            app = self._express.get((scope["method"], scope["path"]), self._app)
            await app(scope, visit.receive, visit.send)
        except ClientDisconnect:
            return
        except Exception as exc:
            if visit.status:
                _log.error("response failed after headers were sent", path=scope["path"], exc_info=exc)
                raise
            failed = exc
            caller: Caller | None = scope.get("caller")
            response = problems.answer(
                exc,
                request_id=named,
                redis_url=self._redis_url,
                candid=caller is not None and caller.operates,
            )
            await response(scope, visit.receive, visit.send)
        finally:
            seconds, route = time.perf_counter() - started, self._route(scope)
            self._count(route or "other", visit.status, seconds)
            record_response(span, scope["method"], route, visit.status, failed)
            del failed  # it refers to this frame
            _log.debug(
                "request", method=scope["method"], path=scope["path"], status=visit.status, seconds=seconds
            )

    def _route(self, scope: Scope) -> str:
        """The route that a request took, for counts and spans, '' if none: a path as such may be anything."""
        path: str = getattr(scope.get("route"), "path", "")
        return path or (scope["path"] if (scope["method"], scope["path"]) in self._express else "")


class _Exchange:
    """One request on its way in and out."""

    __slots__ = ("_limit", "_read", "_receive", "_send", "extra", "status")

    def __init__(self, receive: Receive, send: Send, request_id: bytes, limit: int, *, closing: bool) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        self._read = 0
        self.status = 0
        self.extra: list[tuple[bytes, bytes]] = [(b"x-request-id", request_id)]
        if closing:
            self.extra.append((b"connection", b"close"))

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._limit:  # guard: body-read-limit
                raise TooLarge(self._limit)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[Any] = list(message.get("headers", ()))
            message["headers"] = headers + self.extra
        await self._send(message)
