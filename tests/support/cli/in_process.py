"""A command of ours in the test's own process."""

from __future__ import annotations

import signal

from holdfast.cli import main
from tests.support.logs import restored_logs


def run_command(*arguments: str) -> int:
    """Run a command and return its exit code; what a process keeps until its end is undone: signal handlers, logs."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with restored_logs():
            return main(arguments)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
