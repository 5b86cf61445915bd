"""One lifecycle for every process: its event loop, its errors, its signals and its exit code.

A service stops in two stages: the first SIGTERM or SIGINT asks it to stop, the second one to stop at once.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.services.signals import ignore_signals
from holdfast.telemetry import traces
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

    from holdfast.config import Settings

_GC_THRESHOLDS = (50_000, 20, 100)
_THREADS_SECONDS = 1.0
"""How long idle threads may take to end."""
_log = get_logger(__name__)


def loop_factory(settings: Settings) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the event loop that the settings name."""
    if settings.worker.event_loop == "asyncio":
        return asyncio.new_event_loop
    import uvloop  # noqa: PLC0415  two megabytes, only for a worker that uses it

    return uvloop.new_event_loop


def run_process(
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    when_it_dies: str = "",
) -> int:
    """Run a service until it has stopped; return its exit code.

    A HoldfastError is raised as itself, for the command to print; any other error is logged first if
    ``when_it_dies`` has the log line.
    """
    try:
        with _plain_errors(), asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(work())
    except HoldfastError:
        raise
    except BaseException as exc:
        # Also SystemExit from a task that an agent started: asyncio lets it end the process silently.
        if when_it_dies:
            _log.critical(when_it_dies, error=repr(exc))
        raise
    ignore_signals()
    return 0


def calm_collector() -> None:
    """Collect garbage less often: start-up objects stay, a run's objects are freed by reference counts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


@contextlib.asynccontextmanager
async def leaving_past_threads() -> AsyncGenerator[None]:
    """At the end, exit at once if threads of agents still run: the interpreter would wait for them."""
    # An executor of our own: the shutdown of the loop's executor waits for its threads.
    executor = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="holdfast")
    asyncio.get_running_loop().set_default_executor(executor)
    yield
    executor.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + _THREADS_SECONDS
    while (left := _threads()) and time.monotonic() < deadline:  # noqa: ASYNC110  no event at their end
        await asyncio.sleep(0.01)  # threads that were stopped need a moment to end
    if left:
        _log.warning("agent threads still running, exiting without them", threads=left)
        leave_at_once()  # guard: exit-without-threads


def _threads() -> list[str]:
    main = threading.main_thread()
    return [each.name for each in threading.enumerate() if each is not main and not each.daemon]


@contextlib.contextmanager
def _plain_errors() -> Generator[None]:
    """Raise a HoldfastError as itself, not as a group of one: the command prints it as one line."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours = group.subgroup(HoldfastError)
        while isinstance(ours, BaseExceptionGroup):
            ours = ours.exceptions[0]
        raise ours or group from group


def leave_at_once() -> None:
    """Exit 0 without waiting for tasks and threads; their runs have been handed back."""
    traces.finish()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
