"""An event loop on a thread of its own, one in each process: what Rustic AI calls and waits for runs there.

Invariant: a fork has none of its parent's. A loop whose thread stayed behind would never answer.
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
    from holdfast.hosts.engine import Engine

T = TypeVar("T")

_CLOSE_SECONDS: Final = 15.0
"""A local engine ends its agents then."""


class Background:
    """A loop and its thread, and the engines on it, which are shared by all who name the same hosts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-engine", daemon=True)
        self._thread.start()
        self._open: dict[bytes, Engine] = {}
        self._closing = contextlib.AsyncExitStack()

    def call(self, what: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop and wait for it, from any other thread."""
        future = asyncio.run_coroutine_threadsafe(what, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C here ends it there
            raise

    async def engine(self, settings: Settings) -> Engine:
        """The engine for these settings; on the loop only."""
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


class _Here:
    """What one process has of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.background: Background | None = None
        self.left: list[Background] = []

    def begin_anew(self) -> None:
        """After a fork: what was the parent's is kept, untouched, and never used."""
        self.lock = threading.Lock()
        if self.background is not None:
            self.left.append(self.background)
            self.background = None


_here = _Here()
os.register_at_fork(after_in_child=_here.begin_anew)


def background() -> Background:
    """The loop of this process, started when it is first asked for."""
    with _here.lock:
        if _here.background is None:
            _here.background = Background()
            # Not atexit: pools of threads, which a local engine ends its agents with, are gone by then.
            threading._register_atexit(_close, os.getpid())  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        return _here.background


def check_not_forked() -> None:
    """Refuse what needs gRPC in a fork of a process that has used it: gRPC would end this process there."""
    if _here.left:
        raise ProcessError(
            "This process was forked from one that had used the engine, and gRPC does not survive a fork: "
            "launch and stop agents in the parent, fork before the first, or start this process by spawn."
        )


def _close(pid: int) -> None:
    # A fork of ours runs what was registered before it, too.
    if pid == os.getpid() and _here.background is not None:
        _here.background.close()
