"""The few Linux calls that Python does not offer, and the state of processes from /proc."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

from holdfast.clock import CLOCK

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_TIMER_ABSTIME: Final = 1

# Loaded before any fork: a child should not have to search for a library first.
_libc = ctypes.CDLL(None, use_errno=True)
# Before version 2.34 glibc has timers in a library of their own.
_librt = _libc if hasattr(_libc, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)


def die_with_parent(signum: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class KillTimer:
    """Has the kernel kill this process at a ``boot_time()``, also while SIGSTOP has stopped it.

    A fork has no such timer.
    """

    def __init__(self) -> None:
        self._timer = ctypes.c_void_p()
        event = _SignalEvent(signo=signal.SIGKILL, notify=0)
        _checked(
            "timer_create",
            _librt.timer_create(CLOCK, ctypes.byref(event), ctypes.byref(self._timer)),
        )
        self._at: float | None = None

    def set(self, at: float | None) -> None:
        """Set the time; None is never."""
        if at == self._at:
            return
        # All zeros would disarm it: a moment long ago is one nanosecond after the clock began.
        nanoseconds = 0 if at is None else max(1, int(at * 1e9))
        value = _TimerValue(seconds=nanoseconds // 10**9, nanoseconds=nanoseconds % 10**9)
        _checked(
            "timer_settime", _librt.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(value), None)
        )
        self._at = at


class _SignalEvent(ctypes.Structure):
    """``struct sigevent``: 64 bytes, of which a signal without a value needs two numbers."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _TimerValue(ctypes.Structure):
    """``struct itimerspec``: a timer that fires once has no interval."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


def name_process(name: str) -> None:
    """Give this process the name that ps and top show; the kernel keeps 15 bytes of it."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(buffer))


def thread_count() -> int:
    """Return how many threads this process has, including threads that Python did not start."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - an iterator of paths for a count


def children() -> list[int]:
    """Return the children of this process; it must have one thread."""
    try:
        return [
            int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()
        ]
    except OSError:
        return []  # a kernel without CONFIG_PROC_CHILDREN: process groups are killed regardless


def is_named(pid: int, name: str) -> bool:
    """Whether there is a process with this id that :func:`name_process` gave this name."""
    return _read(f"/proc/{pid}/comm") == name.encode()[:15] + b"\n"


def start_time(pid: int) -> int | None:
    """Return when a process began, in ticks since boot; None if it has exited, reaped or not."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in {b"Z", b"X"} else int(fields[19])


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process and of its children that have ended."""
    fields = _stat(pid)
    return None if fields is None else sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int | None:
    """Return the memory of a process that is in RAM, shared pages included."""
    data = _read(f"/proc/{pid}/statm")
    return None if data is None else int(data.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[bytes] | None:
    data = _read(f"/proc/{pid}/stat")
    # The second field is a name that may hold spaces and brackets: count from its last bracket.
    return None if data is None else data[data.rfind(b")") + 2 :].split()


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _prctl(option: int, value: int) -> None:
    _checked(f"prctl({option})", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _checked(call: str, result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
