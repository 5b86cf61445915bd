"""A connection of the API that nobody can hold for ever: what uvicorn does not limit by itself.

::

    first byte ─> head ─> body    all within api.request_seconds, else 408; a head over max_head_bytes: 431
    answer     ─> taken           a client that takes nothing for api.send_seconds is dropped

Invariant: a request that arrives in one piece, as most do, costs no timer.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import termios
from typing import TYPE_CHECKING, Any, Final, cast

from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.api import problems
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send
    from uvicorn import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from holdfast.config import ApiSettings

_LINGER_SECONDS: Final = 2.0
"""How long what a client still sends is thrown away, so that it reads our answer before its line is cut."""
_LEAVING_SECONDS: Final = 1.0
"""How long a client may take nothing once this process leaves."""

_log = get_logger(__name__)


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits on time and size."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        settings: ApiSettings,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._settings = settings
        self._patience = settings.send_seconds
        self._whole = self._headed = self._refused = False
        self._head_bytes = 0
        self._arriving: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._untaken = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._arrived()
        self._taken()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Leave; whoever takes nothing of its answer now holds up nobody."""
        super().shutdown()
        self._patience = min(self._patience, _LEAVING_SECONDS)  # guard: drain-write-timeout
        if self.transport.get_write_buffer_size():
            self._taken()
            self._await_taking()

    # -- what arrives

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request; what follows one that was refused is thrown away."""
        if self._refused:
            return
        if self._whole:
            self._begin()
        if not self._headed:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self._headed and not self._whole and self.cycle.transport is self.transport:
            # Its answer may come before the rest of its body.
            self.cycle.transport = cast("asyncio.Transport", _Parting(self.transport, self._part))
        if self._whole:  # guard: request-timer-reset
            self._arrived()
        # guard: endless-head-limit
        elif not self._headed and self._head_bytes > self._settings.max_head_bytes:
            self._refuse(431, _too_large(self._settings))
        elif self._arriving is None:  # guard: request-timer-once
            self._expect()

    def on_message_begin(self) -> None:
        """Note that another request begins, maybe in the same piece as the last one ended."""
        if self._whole:
            self._begin()
        self._head_bytes = max(self._head_bytes, 1)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Let the request in, unless its head came in one piece that is too large."""
        self._headed = True
        # The count may have a part of the body in it: only then the head itself is measured.
        if (
            self._head_bytes > self._settings.max_head_bytes
            and self._head_size() > self._settings.max_head_bytes  # guard: head-size-without-body
        ):
            # guard: large-head-refused
            self.app = self._answer_too_large  # the connection ends with this answer
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that a request is here."""
        self._whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, unless this connection ends."""
        if not self._refused:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Say that it was no HTTP, as a problem like all others."""
        self._refuse(400, f"{msg} Send HTTP/1.1 as RFC 9112 has it.")

    def _begin(self) -> None:
        self._whole = self._headed = False
        self._head_bytes = 0

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    async def _answer_too_large(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = HTTPException(431, _too_large(self._settings), headers={"Connection": "close"})
        await problems.answer(refusal)(scope, receive, send)

    # -- time

    def _expect(self) -> None:
        self._arriving = self.loop.call_later(self._settings.request_seconds, self._overdue)

    def _arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _overdue(self) -> None:
        self._arriving = None
        if self.transport.is_closing() or self._refused:
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answered = cycle is None or cycle.response_complete
        late = f"the request was not here after {self._settings.request_seconds:g} s (api.request_seconds)"
        if self.pipeline or not (answered or self._headed):
            self._expect()  # an earlier request is still being answered: its time is not the client's fault
        elif not self._headed and self._head_bytes:  # guard: head-timeout
            self._refuse(408, f"{late}: its head is not whole")
        elif cycle is None or answered:
            # guard: silent-connection-closed
            self.transport.close()  # nothing was said at all, or it was answered without its body
        elif not cycle.response_started:  # guard: body-timeout
            self._refuse(408, f"{late}: its body is not whole")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer here, whatever the application is about, and end the connection once that has been read."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                # An answer inside that of an earlier request would be taken for a part of it.
                self._refused = True
                self.pipeline.clear()
                self.transport.abort()
                return
        self._arrived()
        answer = problems.answer(HTTPException(status, detail, headers={"Connection": "close"}))
        head = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + bytes(answer.body))
        self._linger()

    def _part(self) -> None:
        """End the connection after an answer that may have come before the whole request."""
        if self._whole or self.transport.is_closing():
            self.transport.close()
        elif not self._refused:
            self._linger()

    def _linger(self) -> None:
        """Throw away what still comes: to close would reset the line before our answer is read."""
        self._refused = True
        self.pipeline.clear()
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)

    # -- what is taken

    def pause_writing(self) -> None:
        """Begin to wait for the client to take what was written."""
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        """Go on: it was taken."""
        self._taken()
        super().resume_writing()

    def _await_taking(self) -> None:
        self._untaken = self._left()
        self._taking = self.loop.call_later(self._patience, self._check_taking)

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _left(self) -> int:
        """What the client has not taken yet; the kernel's part moves long before ours does."""
        line = array.array("i", [0])
        with contextlib.suppress(OSError, AttributeError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, line)
        return self.transport.get_write_buffer_size() + line[0]

    def _check_taking(self) -> None:
        if self._left() < self._untaken:  # guard: slow-client-kept
            self._await_taking()  # slowly, but it takes
            return
        self._taking = None
        _log.info("a client takes nothing: dropped", client=self.client, seconds=self._patience)
        # To close would wait for it to take what is left.
        self.transport.abort()  # guard: stalled-client-aborted


class _Parting:
    """A transport whose ``close`` is another."""

    __slots__ = ("_transport", "close")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _too_large(settings: ApiSettings) -> str:
    return f"a request's head may have {settings.max_head_bytes} bytes (api.max_head_bytes): send less"
