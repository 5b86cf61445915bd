"""A command of ours in the test's own process."""

from __future__ import annotations

import signal

from holdfast.cli import main


def run_command(*arguments: str) -> int:
    """Run a command and return its exit code; the signal handlers that a process keeps until its end are removed."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return main(arguments)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
