"""Runs one embedded server while any process uses it; ``embedded`` starts this module as a plain script.

Invariant: the server never outlives its users, however they end, because the kernel releases their locks.
Only the standard library is imported here: this process runs beside the server and must stay small.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1
GRACE_SECONDS = 10


def main(users_file: str, server_lock: int, command: list[str]) -> int:
    """Start the server, end it when the last user's lock is gone, and return its exit code."""
    if os.fork():
        return 0  # the starter waits for this process only, so the child never becomes a zombie
    os.setsid()  # a Ctrl-C in the starter's terminal must not end the server
    users = os.open(users_file, os.O_RDWR)  # before the server starts: without it the server would not end
    server = _start(command, server_lock)
    threading.Thread(target=_end_when_unused, args=(users, server), daemon=True).start()
    return server.wait()


def _start(command: list[str], server_lock: int) -> subprocess.Popen[bytes]:
    # The server inherits the lock, so no second server starts on its directory while it runs,
    # even if this process is killed. Standard error is the server's log file.
    return subprocess.Popen(  # noqa: S603 - the command comes from embedded.py
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        pass_fds=(server_lock,),
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - no thread has been started yet
    )


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_when_unused(users: int, server: subprocess.Popen[bytes]) -> None:
    fcntl.flock(users, fcntl.LOCK_EX)  # held to the end: a new user waits until the server is gone
    server.terminate()
    try:
        server.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
