"""Runs a command that can't outlive the process that starts it; ``leashed`` puts this script in front of one.

Invariant: when that process is gone, so is the command, however it went: the kernel sees to it.
Only the standard library is imported here, and the script becomes the command, so it costs one short start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str]) -> list[str]:
    """Return a command that runs ``command`` and is killed when this process ends.

    Start it from the main thread: the kernel counts the end of the starting thread as the parent's.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    """Ask the kernel for the signal, then become the command."""
    if sys.platform == "linux":
        # SIGKILL: nobody is left to wait for a drain, and what is killed here is leased and runs elsewhere.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # it was gone before the kernel knew
    os.execv(command[0], command)  # noqa: S606 - the command comes from our own caller


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
