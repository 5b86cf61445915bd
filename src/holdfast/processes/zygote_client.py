"""The host's end of one zygote: starts it, asks it, hears of its children. Used on the loop's thread only."""

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
    """Hears that a zygote has ended, and whether it had begun before."""

    def __call__(self, error: str, *, lived: bool) -> None:  # noqa: D102
        ...


class ZygoteClient:
    """One zygote's life. ``on_hello`` comes once, then ``on_exit`` for each child, at last ``on_gone``."""

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
        self._patience = options.zygote_timeout_seconds
        self._on_hello, self._on_exit, self._on_gone = on_hello, on_exit, on_gone
        self._error = ""
        self._closed = False
        self._outgoing: deque[tuple[Message, Sequence[int]]] = deque()
        self._answers: dict[int, tuple[Callable[[Message], None], Timer]] = {}
        self._requests = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = self._start(theirs)
        self._socket.settimeout(0)
        loop.watch(self._socket.fileno(), selectors.EVENT_READ, self._readable)
        self._hello = loop.later(options.preload_timeout_seconds, self._too_slow)
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
        self, message: Message, descriptors: Sequence[int], answer: Callable[[Message], None]
    ) -> None:
        """Ask for something; the descriptors are closed when they are sent."""
        self._requests = number = self._requests + 1
        overdue = self._loop.later(self._patience, lambda: self._overdue(number))
        self._answers[number] = (answer, overdue)
        self._send({**message, "request": number}, descriptors)

    def close(self) -> None:
        """Let it go, with whatever it still has, and wait until it is gone; without ``on_gone``."""
        if self._closed:
            return
        self._forget()
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            _log.warning("the zygote did not leave and is killed", pid=self.pid)
            self._process.kill()
            self._process.wait()

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        # -P: the directory that the host happens to be in holds none of the zygote's modules.
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
            start_new_session=True,  # Ctrl-C is the host's to hear
        )

    def _readable(self) -> None:
        # All that is there: after a pause of the host, the answers come before the timers that missed them.
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
            self._understand(received[0])

    def _understand(self, message: Message) -> None:
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
                answer, overdue = self._answers.pop(message["request"])
                overdue.cancel()
                answer(message)

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
                return  # reading says the same
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:  # more descriptors on their way than the kernel allows
                    raise
                self._loop.later(_RETRY_SECONDS, self._flush)
                return
            self._outgoing.popleft()
            wire.close_all(descriptors)

    def _overdue(self, number: int) -> None:
        if number in self._answers:
            # Once more: if all of us stood still together, the zygote needs a moment too.
            answer, _ = self._answers[number]
            self._answers[number] = (answer, self._loop.later(_GRACE_SECONDS, self._too_slow))

    def _too_slow(self) -> None:
        """A zygote that does not answer can neither start nor end anything: its end ends its children."""
        self._error = self._error or "the zygote did not answer in time and was killed"
        _log.error("the zygote does not answer and is killed", pid=self.pid)
        self._process.kill()  # guard: hung-zygote-killed

    def _gone(self) -> None:
        hello = self.ready
        self._forget()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        code = self._process.wait()
        how = "ended" if hello else "could not begin"
        self._on_gone(self._error or f"the zygote {how}: exit code {code}", lived=hello)

    def _forget(self) -> None:
        self._closed = True
        self.ready = False
        self._hello.cancel()
        for _, overdue in self._answers.values():
            overdue.cancel()
        self._answers.clear()
        for _, descriptors in self._outgoing:
            wire.close_all(descriptors)
        self._outgoing.clear()
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
