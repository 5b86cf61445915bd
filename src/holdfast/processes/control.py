"""A child's side of its connection to the host: ready, reports, messages and the request to stop."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from holdfast.processes import wire
from holdfast.processes.wire import MAX_PAYLOAD_BYTES, MAX_REPORT_BYTES, Lines

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_CHUNK: Final = 65536


class LeaseEnd:
    """When the lease of a child ends, in memory that it shares with its zygote.

    The zygote writes each renewal there and kills the child at that time. After a freeze of both the child
    may run first: it reads the time here, without waiting for a message of the zygote.
    """

    def __init__(self, at: float) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._value = memoryview(self._memory).cast("d")
        self.at = at

    @property
    def at(self) -> float:
        """A ``boot_time()``, which all processes of a machine share."""
        return self._value[0]

    @at.setter
    def at(self, value: float) -> None:
        self._value[0] = value

    def close(self) -> None:
        """Give the memory back, in this process."""
        self._value.release()
        self._memory.close()


class ChildControl:
    """The second argument of an entry, beside its payload.

    ``stop`` is set by SIGTERM, by a stop message of the host, or by the host's end; also if the agent has
    replaced the handler of SIGTERM. ``fileno()`` becomes readable with it, ``await stopped()`` waits for it.
    """

    def __init__(
        self,
        agent_id: str,
        host: socket.socket,
        prefixes: tuple[str, ...],
        lease_end: LeaseEnd | None = None,
    ) -> None:
        self.agent_id = agent_id
        self._lease_end = lease_end
        self.class_prefixes = prefixes
        self.payload: Any = None
        self.fence = 0
        self.labels: dict[str, str] = {}
        self.stop = threading.Event()
        self._host = host
        self._lines = Lines(MAX_PAYLOAD_BYTES)
        self._sending = threading.RLock()
        self._outgoing: deque[bytes] = deque()
        self._busy = False
        self._ready = False
        self._messages_lock = threading.Lock()
        self._undelivered: list[dict[str, Any]] = []
        self._on_message: Callable[[dict[str, Any]], None] | None = None
        self._stopped = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def begin(self) -> None:
        """Receive the payload, then listen for messages and the request to stop."""
        # Setting an Event inside a signal handler can deadlock with a wait in the same thread: the handler
        # only wakes a thread. The wakeup descriptor does so even while the main thread is inside C code.
        signal.signal(signal.SIGTERM, self._wake)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # guard: child-signal-mask
        first, *more = self._first_lines()
        self.payload, self.fence, self.labels = first["payload"], first["fence"], first["labels"]
        threading.Thread(target=self._listen, args=(more,), name="holdfast-control", daemon=True).start()

    def trusted_until(self) -> float:
        """Return until when the lease of this process is trusted; for ever if it has none."""
        return float("inf") if self._lease_end is None else self._lease_end.at

    def ready(self, **info: Any) -> None:
        """Report to the host that the agent is ready; only then is its status running."""
        if self._ready:
            raise RuntimeError("control.ready() was called already: call it once")
        self._ready = True
        self._send({"kind": "ready", "info": info})

    def report(self, kind: str, **data: Any) -> None:
        """Send a report to the host: metrics, health, a log line (``kind="log"``, level, message)."""
        self._send({"kind": "report", "report": kind, "data": data})

    def hear(self, call: Callable[[dict[str, Any]], None]) -> None:
        """Pass every message of the host to ``call``, on another thread; also those received before."""
        with self._messages_lock:
            self._on_message = call
            for data in self._undelivered:
                call(data)
            self._undelivered.clear()

    def failed(self, trace: str, error: str, *, refused: bool = False) -> None:
        """Report to the host why this process ends; an error of the connection is ignored."""
        with contextlib.suppress(OSError):
            self._send({"kind": "failed", "traceback": trace, "type": error, "refused": refused})

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when it is time to stop, for select and event loops."""
        return self._stopped

    async def stopped(self) -> None:
        """Wait until it is time to stop."""
        import asyncio  # noqa: PLC0415 - an agent without an event loop does not need it

        loop, event = asyncio.get_running_loop(), asyncio.Event()
        own = os.dup(self._stopped)  # a loop has one reader for a descriptor, and several may wait
        loop.add_reader(own, event.set)
        try:
            await event.wait()
        finally:
            loop.remove_reader(own)
            os.close(own)

    def _wake(self, *_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    def _first_lines(self) -> list[wire.Message]:
        while True:
            data = self._host.recv(_CHUNK)
            if not data:
                raise ConnectionError("the host closed the connection before it sent the payload")
            if lines := self._messages(data):
                return lines

    def _messages(self, data: bytes) -> list[wire.Message]:
        return [wire.decode(line) for line, _ in self._lines.feed(data)[0]]

    def _listen(self, messages: list[wire.Message]) -> None:
        """Wait for the first of: a stop message, SIGTERM, the host's end."""
        while not self._stop_is_among(messages):
            messages = []
            readable, _, _ = select.select([self._host, self._woken], [], [])
            if self._woken in readable and self._received_sigterm():
                break
            if self._host not in readable:
                continue
            data = self._host.recv(_CHUNK)
            if not data:
                break
            messages = self._messages(data)
        self.stop.set()
        os.eventfd_write(self._stopped, 1)

    def _stop_is_among(self, messages: list[wire.Message]) -> bool:
        for message in messages:
            if message["op"] == "stop":
                return True
            with self._messages_lock:
                (self._on_message or self._undelivered.append)(message["data"])
        return False

    def _received_sigterm(self) -> bool:
        # The agent's own signal handlers write their numbers here too.
        signals = os.read(self._woken, 4096)
        return 0 in signals or signal.SIGTERM in signals  # guard: stop-signal

    def _send(self, message: wire.Message) -> None:
        try:
            line = wire.encode(message) + b"\n"
        except (TypeError, ValueError) as error:
            raise TypeError(f"a message to the host must be JSON: {error}") from error
        if len(line) > MAX_REPORT_BYTES:
            raise ValueError(
                f"a message of {len(line)} bytes is too long for the host: {MAX_REPORT_BYTES} at most"
            )
        self._outgoing.append(line)
        while self._outgoing:
            with self._sending:
                if self._busy:
                    return  # a signal handler's message: the call that it interrupted sends it too
                self._busy = True
                try:
                    while self._outgoing:
                        self._host.sendall(self._outgoing.popleft())
                finally:
                    self._busy = False
