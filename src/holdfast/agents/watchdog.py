"""The watchdog logs when agent code blocks the event loop, and which line it is.

It watches from a thread of its own: whoever blocks the loop can't block that.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, TracebackType
    from typing import Self

    from holdfast.telemetry.metrics import Metrics

_FRAMES = 12

_log = get_logger(__name__)


class LoopWatchdog:
    """Watches the running loop while it is entered; 0 seconds watches nothing.

    ``whose`` tells more of a task by its name, such as the schedule whose turn it is.
    """

    def __init__(
        self,
        blocked_seconds: float,
        metrics: Metrics,
        whose: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._limit = blocked_seconds
        self._whose = whose
        self._blocked = metrics.loop_blocked_seconds
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._limit:
            watched = (asyncio.get_running_loop(), threading.get_ident())
            self._thread = threading.Thread(
                target=self._watch, args=watched, name="holdfast-watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._answered.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        while not self._stopping.wait(self._limit / 2):
            self._answered.clear()
            asked = time.monotonic()
            try:
                loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:
                return  # the loop is closed
            if not self._answered.wait(self._limit) and not self._stopping.is_set():
                self._bark(loop, thread_id)
                self._answered.wait()
                if not self._stopping.is_set():
                    self._calm_down(time.monotonic() - asked)

    def _bark(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        frame, task = sys._current_frames().get(thread_id), asyncio.current_task(loop)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return
        name = task.get_name() if task is not None else ""
        _log.warning(
            "the event loop is blocked: nothing else in this process can run, including its shutdown",
            seconds=self._limit,
            where=_place(frame),
            task=name,
            **self._whose(name),
            stack="".join(traceback.format_stack(frame)[-_FRAMES:]),
            advice="make the agent a plain `def`, which runs in a thread, or give it isolation='process', "
            "or await what takes long",
        )

    def _calm_down(self, seconds: float) -> None:
        self._blocked.observe(seconds)
        _log.info("the event loop goes on", blocked_seconds=round(seconds, 3))


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
