"""The logs of the process that tests run in, as they were before."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import structlog

from holdfast.telemetry.logs import LateLogger


@contextlib.contextmanager
def restored_logs() -> Iterator[None]:
    """Undo what ``configure`` does, at the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        structlog.reset_defaults()
        LateLogger.epoch += (
            1  # back at 0, a logger would take the stream of an earlier test for the current one
        )
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(capture=False)
