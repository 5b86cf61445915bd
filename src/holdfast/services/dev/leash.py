"""Runs a command that can't outlive the process that starts it; ``leashed`` puts this script in front of one.

Invariant: when that process ends, for any reason, the kernel kills the command.
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

    Start it from the main thread: for the kernel the parent ends when the starting thread ends.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    """Request the signal from the kernel, then execute the command."""
    if sys.platform == "linux":
        # SIGKILL: no process is left to wait for a drain, and the runs are leased and run elsewhere.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)  # the parent ended before the request
    os.execv(command[0], command)  # noqa: S606 - the command comes from our own caller


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
