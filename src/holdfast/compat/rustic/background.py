"""One event loop per process, on a thread of its own, for the blocking calls of Rustic AI.

Invariant: a forked process uses no loop of its parent, whose thread it does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.errors import ProcessError
from holdfast.hosts.factory import open_engine
from holdfast.redis.client import connect

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from holdfast.config import Settings
    from holdfast.hosts.engine import HostEngine

T = TypeVar("T")

_CLOSE_SECONDS: Final = 15.0
"""A local engine ends its agents in this time."""


class Background:
    """A loop, its thread and the engines on it, one for each pair of Redis and hosts settings."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-engine", daemon=True)
        self._thread.start()
        self._open: dict[bytes, HostEngine] = {}
        self._closing = contextlib.AsyncExitStack()

    def call(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it, from any other thread."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C ends the call on the loop, too
            raise

    async def engine(self, settings: Settings) -> HostEngine:
        """Return the engine for these settings; called on the loop only."""
        key = msgspec.json.encode((settings.redis, settings.hosts))
        engine = self._open.get(key)
        if engine is None:
            redis = connect(settings.redis)
            engine = self._open[key] = open_engine(settings, redis)
            self._closing.push_async_callback(redis.aclose)
            self._closing.push_async_callback(engine.close)
        return engine

    def close(self) -> None:
        """Close the engines and end the thread; agents go on."""
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._closing.aclose(), self._loop).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)


class _PerProcess:
    """The background loop of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.background: Background | None = None
        self.left: list[Background] = []

    def begin_anew(self) -> None:
        """Keep the parent's loop after a fork, without ever using or closing it."""
        self.lock = threading.Lock()
        if self.background is not None:
            self.left.append(self.background)
            self.background = None


_current = _PerProcess()
os.register_at_fork(after_in_child=_current.begin_anew)


def background() -> Background:
    """Return the loop of this process; the first call starts it."""
    with _current.lock:
        if _current.background is None:
            _current.background = Background()
            # Not atexit: the thread pools with which a local engine ends its agents are gone by then.
            threading._register_atexit(_close, os.getpid())  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return _current.background


def check_not_forked() -> None:
    """Raise in a fork of a process that has used gRPC: its next call would crash this process."""
    if _current.left:
        raise ProcessError(
            "This process was forked from one that had used the engine, and gRPC does not survive a fork: "
            "launch and stop agents in the parent, fork before the first, or start this process by spawn."
        )


def _close(pid: int) -> None:
    # A forked process runs the exit functions of its parent, too.
    if pid == os.getpid() and _current.background is not None:
        _current.background.close()
