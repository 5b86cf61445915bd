"""The host's end of one zygote: starts it, sends requests, receives exits. Used on the loop's thread only."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.processes import wire
from holdfast.processes.zygote import Config
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.processes.loop import Loop, Timer
    from holdfast.processes.options import ProcessOptions
    from holdfast.processes.wire import Message

_RETRY_SECONDS: Final = 0.01
_GRACE_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 5.0

_log = get_logger(__name__)


class Gone(Protocol):
    """The callback for the end of a zygote; ``lived`` is whether it had been ready."""

    def __call__(self, error: str, *, lived: bool) -> None:  # noqa: D102
        ...


class ZygoteClient:
    """One zygote. ``on_hello`` is called once, then ``on_exit`` for each child, at last ``on_gone``."""

    def __init__(
        self,
        loop: Loop,
        options: ProcessOptions,
        on_hello: Callable[[], None],
        on_exit: Callable[[Message], None],
        on_gone: Gone,
    ) -> None:
        self.ready = False
        self._loop = loop
        self._reply_timeout = options.zygote_timeout_seconds
        self._on_hello, self._on_exit, self._on_gone = on_hello, on_exit, on_gone
        self._error = ""
        self._closed = False
        self._outgoing: deque[tuple[Message, Sequence[int]]] = deque()
        self._pending: dict[int, tuple[Callable[[Message], None], Timer]] = {}
        self._requests = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = self._start(theirs)
        self._socket.settimeout(0)
        loop.watch(self._socket.fileno(), selectors.EVENT_READ, self._readable)
        self._hello = loop.later(options.preload_timeout_seconds, self._on_timeout)
        config = Config(
            entries=options.entries,
            preload=options.preload,
            prepare=options.prepare,
            prefixes=options.class_prefixes,
            path=options.path,
            freeze_seconds=options.freeze_seconds,
        )
        self._send(config.as_json(), ())

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def request(
        self, message: Message, descriptors: Sequence[int], on_reply: Callable[[Message], None]
    ) -> None:
        """Send a request; the descriptors are closed when they are sent."""
        self._requests = number = self._requests + 1
        overdue = self._loop.later(self._reply_timeout, lambda: self._overdue(number))
        self._pending[number] = (on_reply, overdue)
        self._send({**message, "request": number}, descriptors)

    def close(self) -> None:
        """End the zygote with its children and wait for its exit; ``on_gone`` is not called."""
        if self._closed:
            return
        self._forget()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            _log.warning("zygote stop timed out, killed", pid=self.pid)
            self._process.kill()
            self._process.wait()

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        # -P: no module is imported from the current directory of the host.
        command = [
            sys.executable,
            "-P",
            "-m",
            "holdfast.processes.zygote",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        return subprocess.Popen(  # noqa: S603
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is handled by the host
        )

    def _readable(self) -> None:
        # Read everything: after a freeze of the host, replies come before the timers of their requests.
        while not self._closed:
            try:
                received = wire.receive_packet(self._socket)
            except BlockingIOError:
                return
            except ConnectionError:
                received = None
            if received is None:
                self._gone()
                return
            self._dispatch(received[0])

    def _dispatch(self, message: Message) -> None:
        match message["kind"]:
            case "hello":
                self._hello.cancel()
                self.ready = True
                self._on_hello()
            case "broken":
                self._error = message["error"]
            case "exit":
                self._on_exit(message)
            case _:
                on_reply, overdue = self._pending.pop(message["request"])
                overdue.cancel()
                on_reply(message)

    def _send(self, message: Message, descriptors: Sequence[int]) -> None:
        waiting = bool(self._outgoing)
        self._outgoing.append((message, descriptors))
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        while self._outgoing and not self._closed:
            message, descriptors = self._outgoing[0]
            try:
                wire.send_packet(self._socket, message, descriptors)
            except BlockingIOError:
                self._loop.later(_RETRY_SECONDS, self._flush)
                return
            except ConnectionError:
                return  # the next read reports it
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:  # more descriptors on their way than the kernel allows
                    raise
                self._loop.later(_RETRY_SECONDS, self._flush)
                return
            self._outgoing.popleft()
            wire.close_all(descriptors)

    def _overdue(self, number: int) -> None:
        if number in self._pending:
            # A second timeout: if host and zygote were frozen together, the zygote needs a moment too.
            on_reply, _ = self._pending[number]
            self._pending[number] = (on_reply, self._loop.later(_GRACE_SECONDS, self._on_timeout))

    def _on_timeout(self) -> None:
        """Kill a zygote that does not respond: it can't start or end agents, and its children end with it."""
        self._error = self._error or "the zygote did not respond in time and was killed"
        _log.error("zygote unresponsive, killed", pid=self.pid)
        self._process.kill()  # guard: hung-zygote-killed

    def _gone(self) -> None:
        lived = self.ready
        self._forget()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        code = self._process.wait()
        how = "ended" if lived else "could not begin"
        self._on_gone(self._error or f"the zygote {how}: exit code {code}", lived=lived)

    def _forget(self) -> None:
        self._closed = True
        self.ready = False
        self._hello.cancel()
        for _, overdue in self._pending.values():
            overdue.cancel()
        self._pending.clear()
        for _, descriptors in self._outgoing:
            wire.close_all(descriptors)
        self._outgoing.clear()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
