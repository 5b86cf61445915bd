"""One thread that reads every pipe, runs every timer and makes every change, so that no state needs a lock.

No asyncio: the host's event loop may be busy or absent, and children must be watched regardless.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

_TICK: Final = 0.1
_CHUNK: Final = 65536

_log = get_logger(__name__)


class Timer:
    """A call that is due once, unless it is cancelled."""

    __slots__ = ("call", "cancelled")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        """Prevent the call."""
        self.cancelled = True


class Loop:
    """The thread. ``post`` may be called from any thread, the other methods only on this one."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ, self._empty_pipe)
        self._posted: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        self._stopping = False
        self._closed = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def inside(self) -> bool:
        """Whether the caller is on this thread, and so must not wait for it."""
        return threading.current_thread() is self._thread

    def post(self, call: Callable[[], None]) -> bool:
        """Schedule a call on the thread; return False if it has ended."""
        with self._closed:
            if self._stopping:
                return False
            self._posted.append(call)
            with contextlib.suppress(BlockingIOError):  # a full pipe wakes it too
                os.write(self._waker, b"\0")
            return True

    def stop(self) -> None:
        """End the thread after what was posted; waits for it unless called on it."""
        with self._closed:
            if not self._stopping:
                self._stopping = True
                os.write(self._waker, b"\0")
        if not self.inside:
            self._thread.join()

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Schedule a call after a delay."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._count), timer))
        return timer

    def watch(self, descriptor: int, events: int, call: Callable[[], None]) -> None:
        """Register a call for whenever a descriptor is ready."""
        self._selector.register(descriptor, events, call)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self._selector.unregister(descriptor)

    def _run(self) -> None:
        while self._posted or not self._stopping:
            for key, _ in self._selector.select(self._select_timeout()):
                # An earlier call of this round may have closed it.
                if self._selector.get_map().get(key.fd) is key:
                    self._guarded(key.data)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                if not timer.cancelled:
                    self._guarded(timer.call)
            for _ in range(len(self._posted)):
                self._guarded(self._posted.popleft())
        self._selector.close()
        os.close(self._woken)
        os.close(self._waker)

    def _select_timeout(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._posted:
            return 0.0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            # An error in the step of one agent must not leave the other agents unwatched.
            _log.exception("process supervisor step failed")

    def _empty_pipe(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, _CHUNK)


class Reader:
    """Reads a descriptor within a rate limit: a child that floods blocks on its pipe and delays no other."""

    def __init__(
        self, loop: Loop, descriptor: int, on_data: Callable[[bytes], None], bytes_per_second: int
    ) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._on_data = on_data
        self._allowance = max(1, int(bytes_per_second * _TICK))
        self._left = self._allowance
        self._until = 0.0
        self._pause: Timer | None = None
        self._open = True
        os.set_blocking(descriptor, False)
        loop.watch(descriptor, selectors.EVENT_READ, self._readable)

    def drain(self, most: int) -> None:
        """Read the buffered data, up to ``most`` bytes: the sender has ended."""
        while self._open and most > 0:
            data = self._read(min(_CHUNK, most))
            if not data:
                return
            most -= len(data)
            self._on_data(data)

    def close(self) -> None:
        """Stop reading; the descriptor stays open."""
        if self._open:
            self._open = False
            if self._pause is None:
                self._loop.unwatch(self._descriptor)
            else:
                self._pause.cancel()

    def _readable(self) -> None:
        now = time.monotonic()
        if now >= self._until:
            self._left, self._until = self._allowance, now + _TICK
        data = self._read(min(_CHUNK, self._left))
        if data is None:
            return
        if not data:
            self.close()
            return
        self._left -= len(data)
        if self._left <= 0:
            self._loop.unwatch(self._descriptor)
            self._pause = self._loop.later(self._until - now, self._resume)
        self._on_data(data)

    def _resume(self) -> None:
        self._pause = None
        self._loop.watch(self._descriptor, selectors.EVENT_READ, self._readable)

    def _read(self, size: int) -> bytes | None:
        try:
            return os.read(self._descriptor, size)
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""  # the child died with unread messages
