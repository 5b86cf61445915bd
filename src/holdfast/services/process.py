"""What processes that run agents share: their event loop, a calm collector, and a last way out."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import Settings

_GC_THRESHOLDS = (50_000, 20, 100)


def loop_factory(settings: Settings) -> Callable[[], asyncio.AbstractEventLoop]:
    """The event loop that the settings ask for."""
    if settings.worker.event_loop == "asyncio":
        return asyncio.new_event_loop
    import uvloop  # noqa: PLC0415  two megabytes that a worker without it need not have

    return uvloop.new_event_loop


def calm_collector() -> None:
    """Collect garbage less often: what start-up made stays, and a run's objects end without the collector."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def leave_at_once() -> None:
    """Exit 0 past tasks and threads that ignore everything; the runs they had are with others by now."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
